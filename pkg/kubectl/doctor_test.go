package kubectl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// definitions are the chart's own.
func definitions(t *testing.T) []client.Object {
	t.Helper()
	var out []client.Object
	for _, file := range []string{
		"nearflash.io_cachedvolumes.yaml", "nearflash.io_cachehotsets.yaml", "nearflash.io_cachemigrations.yaml", "nearflash.io_cachepools.yaml",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "helm", "nearflash", "crds", file))
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			t.Fatal(err)
		}
		out = append(out, crd)
	}
	return out
}

func pool(name string, opts ...func(*v1alpha1.CachePool)) *v1alpha1.CachePool {
	p := &v1alpha1.CachePool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.CachePoolSpec{Devices: []string{"/dev/nvme*"}, Redundancy: v1alpha1.RedundancyNone},
		Status: v1alpha1.CachePoolStatus{
			InitiatorIQN: "iqn.1993-08.org.debian:01:" + name, VolumeGroup: "nearflash-0123456789",
			Capacity: resource.MustParse("20Gi"), Free: resource.MustParse("12Gi"), Retained: resource.MustParse("2Gi"),
			Devices: []v1alpha1.CachePoolDevice{{Path: "/dev/nvme0n1", SizeBytes: ptr(20 * gib), Health: v1alpha1.DevicePassed, WearPercent: ptr(int32(3))}},
		},
	}
	poolCondition(p, v1alpha1.ConditionReady, true, v1alpha1.ReasonPoolReady, "")
	poolCondition(p, v1alpha1.ConditionPreflight, true, v1alpha1.ReasonPreflightPassed, "")
	for _, o := range opts {
		o(p)
	}
	return p
}

// keeping is a node that keeps unflushed writes of volumes.
func keeping(volumes ...string) func(*v1alpha1.CachePool) {
	return func(p *v1alpha1.CachePool) {
		for _, v := range volumes {
			p.Status.Kept = append(p.Status.Kept, v1alpha1.KeptCache{VolumeName: v, VolumeUID: "u-lost", Generation: ptr(int64(4)), SizeBytes: ptr(2 * gib), Message: "the volume has no record"})
		}
	}
}

func poolCondition(p *v1alpha1.CachePool, kind string, ok bool, reason, message string) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: before(time.Hour)})
}

// mirrored has a second device, worn and not used, and a share for each namespace.
func mirrored(p *v1alpha1.CachePool) {
	p.Spec.Redundancy, p.Spec.NamespaceSharePercent = v1alpha1.RedundancyMirror, 25
	p.Status.Devices = append(p.Status.Devices, v1alpha1.CachePoolDevice{
		Path: "/dev/nvme1n1", Health: v1alpha1.DeviceFailing, WearPercent: ptr(int32(95)), Message: "has a signature of ext4",
	})
	poolCondition(p, v1alpha1.ConditionReady, false, v1alpha1.ReasonTooFewDevices, "1 of 2 devices")
	poolCondition(p, v1alpha1.ConditionPreflight, false, v1alpha1.ReasonPreflightFailures, "no target cache")
}

func driverPod(component, name, node string, ready bool) *corev1.Pod {
	status, message := corev1.ConditionTrue, ""
	if !ready {
		status, message = corev1.ConditionFalse, "containers with unready status: ["+component+"]"
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nearflash", Name: name, Labels: map[string]string{
			"app.kubernetes.io/name": "nearflash", "app.kubernetes.io/component": component,
		}},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, Message: message}}},
	}
}

func csiNode(name string, drivers ...string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, d := range drivers {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: d, NodeID: name})
	}
	return n
}

func class(name string, params map[string]string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, Parameters: params}
}

// healthy is a cluster in which everything works.
func healthy(t *testing.T) []client.Object {
	objs := append(definitions(t),
		node("node-a", true), csiNode("node-a", "other", driver), pool("node-a"), driverPod("node", "nearflash-node-1", "node-a", true),
		node("control", true), csiNode("control"),
		driverPod("controller", "nearflash-controller-1", "control", true),
		class("fast", map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "cacheSize": "10%", "csi.storage.k8s.io/node-stage-secret-name": "chap"}),
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}, Provisioner: "other", Parameters: map[string]string{"type": "x"}},
	)
	return append(objs, bound("shop", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib))...)
}

// without removes objects by name.
func without(objs []client.Object, names ...string) []client.Object {
	var out []client.Object
	for _, o := range objs {
		if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+o.GetName()+" ") {
			out = append(out, o)
		}
	}
	return out
}

func TestDoctor(t *testing.T) {
	const definitionsOK = `ok       crd/cachedvolumes.nearflash.io: serves v1alpha1 with all fields
ok       crd/cachehotsets.nearflash.io: serves v1alpha1 with all fields
ok       crd/cachemigrations.nearflash.io: serves v1alpha1 with all fields
ok       crd/cachepools.nearflash.io: serves v1alpha1 with all fields
`
	for tc, c := range map[string]struct {
		objs             func(t *testing.T) []client.Object
		wantOut, wantErr string
	}{
		"all is well": {
			objs: healthy,
			wantOut: definitionsOK + `ok       controller: 1 pod ready
ok       node/node-a: plugin ready and registered; pool of 20Gi, 12Gi free, 2Gi in retained caches
ok       storageclass/fast: valid
ok       volumes: 1 volume, none is stuck
ok       moves: 0 moves under way, none failed in the last hour
0 errors, 0 warnings
`,
		},
		"the host's tools look into volumes": {
			objs: func(t *testing.T) []client.Object {
				tools := pool("node-a")
				poolCondition(tools, v1alpha1.ConditionHostTools, false, v1alpha1.ReasonHostToolsLook, "multipathd takes LUNs")
				return append(without(healthy(t), "node-a"), node("node-a", true), csiNode("node-a", driver), tools)
			},
			wantOut: `
warning  node/node-a: host tools: multipathd takes LUNs
         remedy: keep the host's tools away from volumes (docs/how-to/host-tools.md)
` + definitionsOK + `ok       controller: 1 pod ready
ok       storageclass/fast: valid
ok       volumes: 1 volume, none is stuck
ok       moves: 0 moves under way, none failed in the last hour
0 errors, 1 warning
`,
		},
		"not installed": {
			objs: func(t *testing.T) []client.Object { return []client.Object{node("node-a", true)} },
			wantOut: `
error    crd/cachedvolumes.nearflash.io: not in this cluster
         remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart
error    crd/cachehotsets.nearflash.io: not in this cluster
         remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart
error    crd/cachemigrations.nearflash.io: not in this cluster
         remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart
error    crd/cachepools.nearflash.io: not in this cluster
         remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart
4 errors, 0 warnings
`,
			wantErr: "error: 4 problems found: see the findings marked error and their remedies\n",
		},
		"old definitions, nothing runs": {
			objs: func(t *testing.T) []client.Object {
				objs := definitions(t)
				status := objs[0].(*apiextensionsv1.CustomResourceDefinition).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
				delete(status.Properties, "flush")
				objs[3].(*apiextensionsv1.CustomResourceDefinition).Spec.Versions[0].Name = "v1alpha1"
				return objs
			},
			wantOut: `
error    crd/cachedvolumes.nearflash.io: lacks status.flush.request
         remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart of this version
error    controller: no pod of the controller runs: no volume is made, attached or detached
         remedy: install the chart, or look at its Deployment: kubectl get deployments -A -l app.kubernetes.io/name=nearflash
error    nodes: the node plugin runs on no node
         remedy: install the chart, or look at its DaemonSet: kubectl get daemonsets -A -l app.kubernetes.io/name=nearflash
ok       crd/cachehotsets.nearflash.io: serves v1alpha1 with all fields
ok       crd/cachemigrations.nearflash.io: serves v1alpha1 with all fields
ok       crd/cachepools.nearflash.io: serves v1alpha1 with all fields
ok       storageclasses: none of provisioner csi.nearflash.io: only existing LUNs can be used
ok       volumes: 0 volumes, none is stuck
ok       moves: 0 moves under way, none failed in the last hour
3 errors, 0 warnings
`,
			wantErr: "error: 3 problems found: see the findings marked error and their remedies\n",
		},
		"moves": {
			objs: func(t *testing.T) []client.Object {
				stale := func(age time.Duration) func(*v1alpha1.CachedVolume) {
					return func(v *v1alpha1.CachedVolume) {
						v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-a", Generation: 2, SizeBytes: ptr(gib), LastUsedTime: before(age)}}
					}
				}
				at := func(age time.Duration) func(*v1alpha1.CacheMigration) {
					return func(m *v1alpha1.CacheMigration) { m.CreationTimestamp = before(age) }
				}
				objs := append(without(healthy(t), "pvc-1", "data"), node("node-b", true))
				objs = append(objs, bound("shop", "a", "pvc-a", on("node-b"))...)
				objs = append(objs, bound("shop", "b", "pvc-b", on("node-b"), stale(time.Hour))...)
				objs = append(objs, bound("shop", "c", "pvc-c", on("node-b"), stale(time.Hour))...)
				objs = append(objs, bound("shop", "d", "pvc-d", on("node-b"), stale(time.Minute))...)
				objs = append(objs, bound("shop", "e", "pvc-e", on("node-b"), stale(time.Hour))...)
				objs = append(objs, bound("shop", "f", "pvc-f", on("node-b"))...)
				return append(objs,
					move("pvc-a", "node-a", 3, ended(v1alpha1.MigrationFailed, 10*time.Minute, "node node-a has not said whether it exports its cache")),
					move("pvc-a", "node-a", 2, ended(v1alpha1.MigrationFailed, 2*time.Hour, "long ago")),
					move("pvc-c", "node-a", 3, exported, at(time.Hour)),
					move("pvc-e", "node-a", 3, exported, ended(v1alpha1.MigrationCompleted, time.Minute, "everything was copied, 1m0s")),
					move("pvc-f", "node-a", 3, at(10*time.Minute)),
				)
			},
			wantOut: `
warning  pvc/f (namespace shop): move pvc-f-3 is waiting for 10m
         remedy: see the logs of the node plugins on node-a and node-b; the object goes when the volume moves on
warning  pvc/a (namespace shop): its cache on node-b did not begin with that of node-a, 10m ago: node node-a has not said whether it exports its cache
         remedy: none needed: the pod runs and the cache fills as it reads; docs/troubleshooting.md, "The cache is cold after a move", has the causes
warning  pvc/b (namespace shop): node node-a keeps 1Gi of generation 2 that nobody can use
         remedy: see the log of the node plugin on node-a
` + definitionsOK + `ok       controller: 1 pod ready
ok       node/node-a: plugin ready and registered; pool of 20Gi, 12Gi free, 2Gi in retained caches
ok       storageclass/fast: valid
ok       volumes: 6 volumes, none is stuck
0 errors, 3 warnings
`,
		},
		"definitions of an older version": {
			objs: func(t *testing.T) []client.Object {
				return without(healthy(t), "cachehotsets.nearflash.io", "cachemigrations.nearflash.io")
			},
			wantOut: `
error    crd/cachehotsets.nearflash.io: not in this cluster
         remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart
error    crd/cachemigrations.nearflash.io: not in this cluster
         remedy: kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart
ok       crd/cachedvolumes.nearflash.io: serves v1alpha1 with all fields
ok       crd/cachepools.nearflash.io: serves v1alpha1 with all fields
ok       controller: 1 pod ready
ok       node/node-a: plugin ready and registered; pool of 20Gi, 12Gi free, 2Gi in retained caches
ok       storageclass/fast: valid
ok       volumes: 1 volume, none is stuck
ok       moves: 0 moves under way, none failed in the last hour
2 errors, 0 warnings
`,
			wantErr: "error: 2 problems found: see the findings marked error and their remedies\n",
		},
		"writes that are kept, and a volume to adopt": {
			objs: func(t *testing.T) []client.Object {
				adopted := pvAndRecord("shop", "f", "pvc-f")[0].(*corev1.PersistentVolume)
				adopted.Spec.CSI.VolumeAttributes = map[string]string{"adopt": "true"}
				return append(without(healthy(t), "node-a"), node("node-a", true), csiNode("node-a", "other", driver), pool("node-a", keeping("pvc-lost")), adopted)
			},
			wantOut: `
error    node/node-a: keeps unflushed writes of volume pvc-lost, generation 4, UID u-lost: the volume has no record
         remedy: restore the records or the node's access (docs/how-to/recover-a-lost-cluster.md); if nobody wants the writes: kubectl nearflash discard node-a pvc-lost --accept-data-loss
` + definitionsOK + `ok       controller: 1 pod ready
ok       storageclass/fast: valid
ok       volumes: 1 volume, none is stuck
ok       moves: 0 moves under way, none failed in the last hour
1 error, 0 warnings
`,
			wantErr: "error: 1 problem found: see the findings marked error and their remedies\n",
		},
		"warm starts of classes": {
			objs: func(t *testing.T) []client.Object {
				return append(without(healthy(t), "fast"),
					class("a", map[string]string{"warmStart": "peer", "warmStartMethod": "stream", "warmStartBandwidth": "100Mi", "warmStartDeadline": "1h30m", "preload": "all"}),
					class("b", map[string]string{"warmStart": "disk", "warmStartMethod": "copy", "warmStartBandwidth": "1k", "warmStartDeadline": "1s", "preload": "some"}),
					class("c", map[string]string{"warmStart": "off", "warmStartMethod": "auto", "warmStartBandwidth": "100Mi", "warmStartDeadline": "1h", "preload": "all"}),
					class("d", map[string]string{"cacheMode": "none", "warmStart": "origin", "warmStartMethod": "clone", "warmStartDeadline": "1h", "preload": "all"}),
				)
			},
			wantOut: `
error    storageclass/b: claims of it will fail: preload "some" is not accepted (accepted: none, all); warmStart "disk" is not accepted (accepted: peer, origin, off); warmStartMethod "copy" is not accepted (accepted: auto, clone, stream); warmStartBandwidth "1k" is not accepted (accepted: 1Mi to 1Ti); warmStartDeadline "1s" is not accepted (accepted: 1m to 24h)
         remedy: parameters of a class cannot be changed: delete it and make it anew; its volumes stay
error    storageclass/c: claims of it will fail: warmStart off takes no warmStartBandwidth; warmStart off takes no preload all; warmStart off takes no warmStartMethod; warmStart off takes no warmStartDeadline
         remedy: parameters of a class cannot be changed: delete it and make it anew; its volumes stay
error    storageclass/d: claims of it will fail: cacheMode none takes no warmStart; cacheMode none takes no warmStartMethod; cacheMode none takes no warmStartDeadline; cacheMode none takes no preload
         remedy: parameters of a class cannot be changed: delete it and make it anew; its volumes stay
` + definitionsOK + `ok       controller: 1 pod ready
ok       node/node-a: plugin ready and registered; pool of 20Gi, 12Gi free, 2Gi in retained caches
ok       storageclass/a: valid
ok       volumes: 1 volume, none is stuck
ok       moves: 0 moves under way, none failed in the last hour
3 errors, 0 warnings
`,
			wantErr: "error: 3 problems found: see the findings marked error and their remedies\n",
		},
		"sick nodes and classes": {
			objs: func(t *testing.T) []client.Object {
				objs := without(healthy(t), "pvc-1", "data", "node-a", "nearflash-node-1", "nearflash-controller-1", "fast")
				return append(objs,
					driverPod("controller", "nearflash-controller-1", "control", false),
					node("down", false), csiNode("down", driver), pool("down"), driverPod("node", "nearflash-node-3", "down", true),
					pool("gone"),
					node("sick", true), csiNode("sick"), pool("sick", mirrored), driverPod("node", "nearflash-node-2", "sick", false),
					node("bare", true), csiNode("bare", driver),
					class("bad", map[string]string{"cacheMode": "writeback", "cacheSize": "much", "maxCacheSize": "5%", "type": "ssd", "fsType": "btrfs"}),
				)
			},
			wantOut: `
error    controller: pod nearflash-controller-1 is not ready: containers with unready status: [controller]
         remedy: read the log: kubectl logs -n nearflash nearflash-controller-1 -c nearflash-controller
error    node/bare: has no pod of the node plugin
         remedy: look at the DaemonSet's nodeSelector and tolerations: kubectl get daemonsets -A -l app.kubernetes.io/name=nearflash
error    node/down: is not Ready
         remedy: kubectl describe node down
error    node/sick: pod nearflash-node-2 of the node plugin is not ready: containers with unready status: [node]
         remedy: read the log: kubectl logs -n nearflash nearflash-node-2 -c nearflash-node
error    node/sick: the kubelet does not know the driver: no volume can be used here
         remedy: the plugin registers once its preflight passes; see its log and the kubelet's
error    node/sick: preflight: no target cache
         remedy: install or load what is missing, then delete the plugin's pod on the node
error    node/sick: SSD /dev/nvme1n1 expects to fail
         remedy: move the pods away and replace the SSD
error    storageclass/bad: claims of it will fail: "much" is not a whole number of bytes; accepted are quantities such as 10Gi, 1.5Gi or 500M; fsType "btrfs" is not accepted (accepted: ext4, xfs); maxCacheSize "5%" is not accepted (accepted: whole bytes of at least 1Mi); unknown parameter "type"; cacheMode writeback needs acceptDirtyLoss node-loss
         remedy: parameters of a class cannot be changed: delete it and make it anew; its volumes stay
warning  node/bare: has no CachePool: volumes run without a cache here
         remedy: the plugin makes it when it starts; see its log
warning  node/gone: has a CachePool and is not in the cluster
         remedy: kubectl delete cachepool gone, if nobody wants what is on its SSDs (docs/how-to/recover-after-node-loss.md)
warning  node/sick: the pool is not ready, volumes run without a cache here (TooFewDevices): 1 of 2 devices
         remedy: redundancy mirror needs two devices: add one, or choose redundancy none
warning  node/sick: device /dev/nvme1n1 is not used: has a signature of ext4
         remedy: if the device holds nothing that you need, clear it on the node: wipefs --all /dev/nvme1n1
` + definitionsOK + `ok       volumes: 0 volumes, none is stuck
ok       moves: 0 moves under way, none failed in the last hour
8 errors, 4 warnings
`,
			wantErr: "error: 8 problems found: see the findings marked error and their remedies\n",
		},
		"stuck volumes": {
			objs: func(t *testing.T) []client.Object {
				objs := append(without(healthy(t), "pvc-1", "data"), node("down", false))
				objs = append(objs, pvAndRecord("shop", "a", "pvc-a", writeback, released("down"))...)
				objs = append(objs, pvAndRecord("shop", "b", "pvc-b", on("gone"))...)
				objs = append(objs, pvAndRecord("shop", "c", "pvc-c", on("node-a"), applied(metav1.ConditionFalse, v1alpha1.ReasonRejected, "too small"))...)
				objs = append(objs, pvAndRecord("shop", "d", "pvc-d", on("node-a"), func(v *v1alpha1.CachedVolume) {
					v.Status.Cache.Health = v1alpha1.CacheNeedsCheck
					condition(v, v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonPoolFull, "no room")
					condition(v, v1alpha1.ConditionApplied, metav1.ConditionFalse, v1alpha1.ReasonPoolFull, "no room")
				})...)
				objs = append(objs, pvAndRecord("shop", "e", "pvc-e", writeback, released("node-a"), func(v *v1alpha1.CachedVolume) {
					deleted := before(time.Hour)
					v.DeletionTimestamp, v.Finalizers = &deleted, []string{v1alpha1.VolumeFinalizer}
				})...)
				objs = append(objs, pvAndRecord("shop", "g", "pvc-g", on("node-a"), func(v *v1alpha1.CachedVolume) {
					condition(v, v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonNamespaceShareFull, "the caches of namespace shop may take 25% (5Gi)")
				})...)
				objs = append(objs, pvAndRecord("shop", "h", "pvc-h", func(v *v1alpha1.CachedVolume) {
					condition(v, v1alpha1.ConditionConsistent, metav1.ConditionFalse, v1alpha1.ReasonUncleanStop, "node node-a stopped uncleanly")
				})...)
				objs = append(objs, pvAndRecord("shop", "i", "pvc-i", readBy("node-a", "gone"))...)
				return append(objs, pvAndRecord("shop", "f", "pvc-f")[0])
			},
			wantOut: `
error    pvc/a (namespace shop): node down may hold unflushed writes (generation 3) and is not Ready
         remedy: bring down back, its plugin flushes by itself; if it is lost for good: kubectl nearflash abandon -n shop a --accept-data-loss
error    pvc/b (namespace shop): published to node gone, which is not in the cluster
         remedy: delete the pods that were on that node and its VolumeAttachments: kubectl get volumeattachments
error    pv/pvc-f: its CachedVolume pvc-f is missing: it cannot be attached
         remedy: restore the CachedVolume from a backup of the cluster, or have it made anew (docs/how-to/recover-a-lost-cluster.md)
warning  pvc/c (namespace shop): node node-a refuses what is asked for: too small
         remedy: ask for something that is possible with kubectl nearflash mode or kubectl nearflash resize
warning  pvc/d (namespace shop): a change waits for 10m (PoolFull): no room
         remedy: see the log of the node plugin on node-a
warning  pvc/d (namespace shop): its cache is NeedsCheck
         remedy: check the SSD on node-a (kernel log, kubectl nearflash pools); kubectl nearflash drop -n shop d takes the cache away
warning  pvc/d (namespace shop): works without a cache on node-a (PoolFull): no room
         remedy: make room on node node-a: more SSDs, or smaller caches with ` + "`kubectl nearflash resize`" + `
warning  pvc/e (namespace shop): released, and node node-a has not reported its flush yet
         remedy: wait; if it does not end, see the log of the node plugin on node-a
warning  pvc/e (namespace shop): deleted 60m ago and waits for nearflash.io/volume
         remedy: delete the claim and the PersistentVolume; the object goes with them
warning  pvc/g (namespace shop): works without a cache on node-a (NamespaceShareFull): the caches of namespace shop may take 25% (5Gi)
         remedy: make caches of its namespace on node node-a smaller with ` + "`kubectl nearflash resize`" + `, give some back with ` + "`kubectl nearflash drop`" + `, or raise the share (node.namespaceSharePercent of the chart)
warning  pvc/h (namespace shop): node node-a stopped uncleanly
         remedy: make its data anew (docs/troubleshooting.md)
warning  pvc/i (namespace shop): read by node gone, which is not in the cluster
         remedy: delete the pods that were on that node and its VolumeAttachments: kubectl get volumeattachments
` + definitionsOK + `ok       controller: 1 pod ready
ok       node/node-a: plugin ready and registered; pool of 20Gi, 12Gi free, 2Gi in retained caches
ok       storageclass/fast: valid
ok       moves: 0 moves under way, none failed in the last hour
3 errors, 9 warnings
`,
			wantErr: "error: 3 problems found: see the findings marked error and their remedies\n",
		},
	} {
		t.Run(tc, func(t *testing.T) {
			code, out, errOut := newRig(t, c.objs(t)...).run("doctor")
			expect(t, "output", out, c.wantOut)
			expect(t, "errors", errOut, c.wantErr)
			if (code != 0) != (c.wantErr != "") {
				t.Errorf("exit status %d", code)
			}
		})
	}
}

func TestDoctorJSON(t *testing.T) {
	code, out, _ := newRig(t, node("node-a", true)).run("doctor", "-o", "json")
	expect(t, "output", out, `
{
    "errors": 4,
    "warnings": 0,
    "findings": [
        {
            "severity": "error",
            "object": "crd/cachedvolumes.nearflash.io",
            "message": "not in this cluster",
            "remedy": "kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart"
        },
        {
            "severity": "error",
            "object": "crd/cachehotsets.nearflash.io",
            "message": "not in this cluster",
            "remedy": "kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart"
        },
        {
            "severity": "error",
            "object": "crd/cachemigrations.nearflash.io",
            "message": "not in this cluster",
            "remedy": "kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart"
        },
        {
            "severity": "error",
            "object": "crd/cachepools.nearflash.io",
            "message": "not in this cluster",
            "remedy": "kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart"
        }
    ]
}
`)
	if code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
}

func TestPools(t *testing.T) {
	objs := []client.Object{pool("node-a"), pool("node-b", mirrored), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-c"}}}
	for tc, c := range map[string]struct {
		args             []string
		wantOut, wantErr string
	}{
		"all": {
			args: []string{"pools"},
			wantOut: `
NODE     DEVICES   CAPACITY   FREE   RETAINED   REDUNDANCY   WEAR   HEALTH    READY   REASON
node-a   1         20Gi       12Gi   2Gi        none         3%     Passed    True    PoolReady
node-b   1/2       20Gi       12Gi   2Gi        mirror       95%    Failing   False   TooFewDevices
node-c   0         0          0      0          -            -      -         -       -
`,
		},
		"one, wide": {
			args: []string{"pools", "node-b", "-o", "wide"},
			wantOut: `
NODE     DEVICES   CAPACITY   FREE   RETAINED   REDUNDANCY   WEAR   HEALTH    READY   REASON          NAMESPACE-SHARE   VOLUME-GROUP           PATHS                       INITIATOR
node-b   1/2       20Gi       12Gi   2Gi        mirror       95%    Failing   False   TooFewDevices   25%               nearflash-0123456789   /dev/nvme0n1,/dev/nvme1n1   iqn.1993-08.org.debian:01:node-b
`,
		},
		"names": {args: []string{"pools", "-o", "name"}, wantOut: "cachepool.nearflash.io/node-a\ncachepool.nearflash.io/node-b\ncachepool.nearflash.io/node-c\n"},
		"missing": {
			args:    []string{"pools", "node-x"},
			wantErr: "error: node node-x has no CachePool: `kubectl nearflash pools` lists those there are, `kubectl nearflash doctor` says what is wrong on a node\n",
		},
	} {
		t.Run(tc, func(t *testing.T) {
			_, out, errOut := newRig(t, objs...).run(c.args...)
			expect(t, "output", out, c.wantOut)
			expect(t, "errors", errOut, c.wantErr)
		})
	}
}
