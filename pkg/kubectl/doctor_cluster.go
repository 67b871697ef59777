package kubectl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/kube"
)

// The labels that the chart puts on the driver's pods.
const (
	nameLabel           = "app.kubernetes.io/name"
	componentLabel      = "app.kubernetes.io/component"
	componentNode       = "node"
	componentController = "controller"
)

// neededFields are what commands read and write, by the CustomResourceDefinition
// that must have them. A field that the API server does not know is dropped
// without an error.
var neededFields = map[string][]string{
	"cachedvolumes." + v1alpha1.GroupName: {
		"spec.acceptDirtyLoss", "spec.cacheMode", "spec.cacheSize", "spec.flushRequest", "spec.maxCacheSize", "spec.maxDirtyAgeSeconds", "spec.maxDirtyBytes", "spec.preload", "spec.redundancy", "spec.scrubRequest", "spec.target", "spec.warmStart.preload",
		"status.abandoned", "status.cache.hitRate", "status.cache.performance", "status.conditions", "status.dirtyState", "status.flush.request", "status.preload", "status.readers", "status.retainedCaches", "status.scrub.completionTime",
		"status.warmSource",
	},
	"cachehotsets." + v1alpha1.GroupName:    {"blocks", "recordedTime", "volumeUID"},
	"cachemigrations." + v1alpha1.GroupName: {"spec.method", "spec.volumeUID", "status.outcome", "status.progress", "status.source"},
	"cachepools." + v1alpha1.GroupName:      {"spec.integrity", "spec.namespaceSharePercent", "status.capacity", "status.conditions", "status.deleted", "status.devices", "status.kept", "status.retained"},
}

// checkDefinitions looks at the resources that everything else rests on, and
// reports whether the rest can be looked at.
func (o *doctorOptions) checkDefinitions(ctx context.Context, d *diagnosis) bool {
	readable := true
	for _, crdName := range slices.Sorted(maps.Keys(neededFields)) {
		object := "crd/" + crdName
		var crd apiextensionsv1.CustomResourceDefinition
		err := o.client.Get(ctx, client.ObjectKey{Name: crdName}, &crd)
		switch {
		case apierrors.IsNotFound(err):
			readable = readable && !essential(crdName)
			d.add(sevError, object, "kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart", "not in this cluster")
		case err != nil:
			d.add(sevWarning, object, "run doctor with an account that may read CustomResourceDefinitions", "cannot be read: %v", err)
		default:
			readable = (checkDefinition(d, object, &crd) || !essential(crdName)) && readable
		}
	}
	return readable
}

// essential reports whether nothing can be said without a definition. Without those of
// warm moves, caches start cold.
func essential(crdName string) bool {
	return crdName == "cachedvolumes."+v1alpha1.GroupName || crdName == "cachepools."+v1alpha1.GroupName
}

// checkDefinition reports whether objects of the definition can be read.
func checkDefinition(d *diagnosis, object string, crd *apiextensionsv1.CustomResourceDefinition) bool {
	const remedy = "kubectl apply --server-side --force-conflicts -f crds/ with the directory crds of the chart of this version"
	var served []string
	for _, v := range crd.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != v1alpha1.GroupVersion.Version || !v.Served {
			continue
		}
		var missing []string
		for _, path := range neededFields[crd.Name] {
			if v.Schema == nil || !hasField(v.Schema.OpenAPIV3Schema, strings.Split(path, ".")) {
				missing = append(missing, path)
			}
		}
		if len(missing) > 0 {
			d.add(sevError, object, remedy, "lacks %s", strings.Join(missing, ", "))
		} else {
			d.ok(object, "serves %s with all fields", strings.Join(served, ", "))
		}
		return true
	}
	d.add(sevError, object, remedy, "serves %s, this plugin needs %s", orNone(strings.Join(served, ", ")), v1alpha1.GroupVersion.Version)
	return false
}

func hasField(schema *apiextensionsv1.JSONSchemaProps, path []string) bool {
	for _, name := range path {
		if schema == nil {
			return false
		}
		below, ok := schema.Properties[name]
		if !ok {
			return false
		}
		schema = &below
	}
	return true
}

// clusterFacts are what the checks rest on.
type clusterFacts struct {
	nodes map[string]*corev1.Node
	// registered are the nodes whose kubelet knows the driver.
	registered map[string]bool
	pools      map[string]*v1alpha1.CachePool
	// plugins are the node plugin's pods by node.
	plugins     map[string]*corev1.Pod
	controllers []corev1.Pod
	// servers are the storage servers that a controller reports, "" being the default one; nil if
	// that is not known.
	servers map[string]bool
	classes []storagev1.StorageClass
	// provisioners are those of all classes.
	provisioners map[string]string
	volumes      []*volume
	moves        []move
	pvs          map[string]*corev1.PersistentVolume
	origins      originFacts
}

// gather reads everything once.
func (s *session) gather(ctx context.Context) (*clusterFacts, error) {
	f := &clusterFacts{nodes: map[string]*corev1.Node{}, registered: map[string]bool{}, pools: map[string]*v1alpha1.CachePool{}}
	var nodes corev1.NodeList
	var csiNodes storagev1.CSINodeList
	var pools v1alpha1.CachePoolList
	var pods corev1.PodList
	var classes storagev1.StorageClassList
	for _, l := range []struct {
		what string
		list client.ObjectList
		opts []client.ListOption
	}{
		{"nodes", &nodes, nil}, {"CSINodes", &csiNodes, nil}, {"CachePools", &pools, nil}, {"StorageClasses", &classes, nil},
		{"pods", &pods, []client.ListOption{client.MatchingLabels{nameLabel: "nearflash"}}},
	} {
		if err := s.client.List(ctx, l.list, l.opts...); err != nil {
			return nil, fmt.Errorf("list %s: %w", l.what, err)
		}
	}
	for i := range nodes.Items {
		f.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	for i := range csiNodes.Items {
		f.registered[csiNodes.Items[i].Name] = kube.Registered(&csiNodes.Items[i], driverName)
	}
	for i := range pools.Items {
		f.pools[pools.Items[i].Name] = &pools.Items[i]
	}
	f.plugins = pluginsByNode(pods.Items)
	f.controllers = slices.DeleteFunc(slices.Clone(pods.Items), func(pod corev1.Pod) bool {
		return pod.Labels[componentLabel] != componentController || over(&pod)
	})
	f.provisioners = map[string]string{}
	for _, c := range classes.Items {
		f.provisioners[c.Name] = c.Provisioner
	}
	f.origins = s.origins(ctx)
	f.classes = slices.DeleteFunc(classes.Items, func(c storagev1.StorageClass) bool { return c.Provisioner != driverName })
	var err error
	if f.volumes, err = s.all(ctx); err != nil {
		return nil, err
	}
	migrations, err := s.migrationsIfAny(ctx)
	if err != nil {
		return nil, err
	}
	f.moves = movesOf(migrations, f.volumes, false)
	f.pvs, err = s.pvs(ctx)
	return f, err
}

// over tells a pod that has ended for good, as after a shutdown of its node, or when etcd came back from a backup:
// its Deployment has another one in its place, and leaves it there.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

func checkController(d *diagnosis, f *clusterFacts) {
	const object = "controller"
	ready := 0
	var problems []string
	for i := range f.controllers {
		pod := &f.controllers[i]
		ok, why := podReady(pod)
		if ok {
			ready++
			continue
		}
		problems = append(problems, fmt.Sprintf("pod %s is not ready: %s", pod.Name, why))
	}
	switch {
	case len(f.controllers) == 0:
		d.add(sevError, object, "install the chart, or look at its Deployment: kubectl get deployments -A -l "+nameLabel+"=nearflash", "no pod of the controller runs: no volume is made, attached or detached")
	case ready == 0:
		d.add(sevError, object, logsOf(&f.controllers[0], "nearflash-controller"), "%s", strings.Join(problems, "; "))
	case len(problems) > 0:
		d.add(sevWarning, object, logsOf(&f.controllers[0], "nearflash-controller"), "%d of %d pods are ready: %s", ready, len(f.controllers), strings.Join(problems, "; "))
	default:
		d.ok(object, "%s ready", count(ready, "pod"))
	}
}

func logsOf(pod *corev1.Pod, container string) string {
	return fmt.Sprintf("read the log: kubectl logs -n %s %s -c %s", pod.Namespace, pod.Name, container)
}

func checkNodes(d *diagnosis, f *clusterFacts) {
	names := map[string]bool{}
	for n := range f.plugins {
		names[n] = n != ""
	}
	for n, registered := range f.registered {
		names[n] = names[n] || registered
	}
	for n := range f.pools {
		names[n] = true
	}
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if names[n] {
			checkNode(d, f, n)
		}
	}
	if len(f.plugins) == 0 {
		d.add(sevError, "nodes", "install the chart, or look at its DaemonSet: kubectl get daemonsets -A -l "+nameLabel+"=nearflash", "the node plugin runs on no node")
	}
}

func checkNode(d *diagnosis, f *clusterFacts, n string) {
	object, since := "node/"+n, len(d.Findings)
	pool, plugin := f.pools[n], f.plugins[n]
	switch state := stateOf(f.nodes[n]); {
	case state.gone:
		checkGone(d, object, pool)
		return
	case !state.ready:
		d.add(sevError, object, "kubectl describe node "+n, "is not Ready")
		return
	}
	if plugin == nil {
		d.add(sevError, object, "look at the DaemonSet's nodeSelector and tolerations: kubectl get daemonsets -A -l "+nameLabel+"=nearflash", "has no pod of the node plugin")
	} else if ok, why := podReady(plugin); !ok {
		d.add(sevError, object, logsOf(plugin, "nearflash-node"), "pod %s of the node plugin is not ready: %s", plugin.Name, why)
	}
	if !f.registered[n] {
		d.add(sevError, object, "the plugin registers once its preflight passes; see its log and the kubelet's", "the kubelet does not know the driver: no volume can be used here")
	}
	if pool == nil {
		d.add(sevWarning, object, "the plugin makes it when it starts; see its log", "has no CachePool: volumes run without a cache here")
		return
	}
	checkPool(d, object, pool)
	if !d.bad(since) {
		d.ok(object, "plugin ready and registered; pool of %s, %s free, %s in retained caches", bytesOf(pool.Status.Capacity), bytesOf(pool.Status.Free), bytesOf(pool.Status.Retained))
	}
}

// checkGone tells why the pool of a node is there that is not: the controller deletes it when
// nothing needs it.
func checkGone(d *diagnosis, object string, pool *v1alpha1.CachePool) {
	remedy := "kubectl delete cachepool " + pool.Name + ", if nobody wants what is on its SSDs (docs/how-to/recover-after-node-loss.md)"
	said := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionNodeGone)
	switch {
	case said == nil:
		d.add(sevWarning, object, remedy, "has a CachePool and is not in the cluster")
	case said.Reason == v1alpha1.ReasonNodeMayReturn:
		d.ok(object, "is not in the cluster; its CachePool goes by itself")
	default:
		d.add(sevWarning, object, remedy, "has a CachePool and is not in the cluster (%s): %s", said.Reason, said.Message)
	}
}

// wornOut is the wear in percent from which an SSD should be replaced.
const wornOut = 90

func checkPool(d *diagnosis, object string, pool *v1alpha1.CachePool) {
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionPreflight); c != nil && c.Status != metav1.ConditionTrue {
		d.add(sevError, object, "install or load what is missing, then delete the plugin's pod on the node", "preflight: %s", c.Message)
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionHostTools); c != nil && c.Status != metav1.ConditionTrue {
		d.add(sevWarning, object, "keep the host's tools away from volumes (docs/how-to/host-tools.md)", "host tools: %s", c.Message)
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady); c == nil {
		d.add(sevWarning, object, "see the log of the node plugin", "the pool has not reported yet")
	} else if c.Status != metav1.ConditionTrue {
		d.add(sevWarning, object, poolRemedy(c.Reason, c.Message), "the pool is not ready, volumes run without a cache here (%s): %s", c.Reason, c.Message)
	}
	for _, k := range pool.Status.Kept {
		d.add(sevError, object, fmt.Sprintf("restore the records or the node's access (docs/how-to/recover-a-lost-cluster.md); if nobody wants the writes: %s discard %s %s --accept-data-loss", name, pool.Name, k.VolumeName),
			"keeps unflushed writes of volume %s, generation %s, UID %s: %s", k.VolumeName, number(k.Generation), k.VolumeUID, k.Message)
	}
	for _, dev := range pool.Status.Devices {
		switch {
		case dev.Health == v1alpha1.DeviceFailing:
			d.add(sevError, object, "move the pods away and replace the SSD", "SSD %s expects to fail", dev.Path)
		case dev.WearPercent != nil && *dev.WearPercent >= wornOut:
			d.add(sevWarning, object, "plan its replacement", "SSD %s has used %d%% of its endurance", dev.Path, *dev.WearPercent)
		}
		switch e := dev.Evacuation; {
		case e != nil && e.State == v1alpha1.EvacuationWaiting:
			d.add(sevWarning, object, "see docs/how-to/prepare-ssds.md, Take a device out", "device %s does not leave the pool: %s", dev.Path, e.Message)
		case e != nil: // it is on its way, or out, as somebody wishes
		case dev.Message != "":
			remedy := "if the device holds nothing that you need, clear it on the node: wipefs --all " + dev.Path
			if foreign(dev.Message) {
				remedy = foreignRemedy
			}
			d.add(sevWarning, object, remedy, "device %s is not used: %s", dev.Path, dev.Message)
		}
	}
}

// foreignRemedy is for SSDs of another node, which may have unflushed writes: it does not say
// how to clear them.
const foreignRemedy = "see first what the SSD has: docs/how-to/prepare-ssds.md, Take over the SSDs of another node"

// foreign reports whether a device is not used because it is of another node, by what the plugin
// says of it.
func foreign(message string) bool { return strings.Contains(message, v1alpha1.MessageForeignDevice) }

func poolRemedy(reason, message string) string {
	if foreign(message) {
		return foreignRemedy
	}
	switch reason {
	case v1alpha1.ReasonNoDevices:
		return "give the node a blank SSD, or correct node.pool.devices of the chart"
	case v1alpha1.ReasonDeviceNotBlank:
		return "choose another device, or clear this one on the node with wipefs --all DEVICE if it holds nothing that you need"
	case v1alpha1.ReasonDeviceMissing:
		return "bring the SSD back, or make the pool anew (docs/how-to/prepare-ssds.md)"
	case v1alpha1.ReasonEvacuated:
		return "put a device in: one that spec.evacuate of the CachePool does not name"
	case v1alpha1.ReasonTooFewDevices:
		return "redundancy mirror needs two devices: add one, or choose redundancy none"
	}
	return "see the log of the node plugin"
}
