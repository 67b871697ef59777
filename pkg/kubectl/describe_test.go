package kubectl_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func event(namespace, name, kind, about, reason, message string, age time.Duration) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about},
		Type:           corev1.EventTypeNormal, Reason: reason, Message: message,
		EventTime: metav1.NewMicroTime(start.Add(-age)),
	}
}

// hotSet is a volume's hot set of 12 KiB.
func hotSet(id string) *v1alpha1.CacheHotSet {
	return &v1alpha1.CacheHotSet{
		ObjectMeta: metav1.ObjectMeta{Name: id}, VolumeUID: "uid-" + id, Blocks: make([]byte, 12<<10), RecordedTime: before(25 * time.Minute),
	}
}

func TestDescribe(t *testing.T) {
	for tc, c := range map[string]struct {
		args    []string
		objs    []client.Object
		wantOut string
	}{
		"attached, dirty": {
			args: []string{"describe", "-n", "shop", "data"},
			objs: append(bound("shop", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib), func(v *v1alpha1.CachedVolume) {
				v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-b", Generation: 2, SizeBytes: ptr(10 * gib), LastUsedTime: before(3 * time.Hour)}}
				v.Status.Flush = v1alpha1.FlushStatus{Request: "x", CompletionTime: before(time.Hour)}
			}),
				node("node-a", true), userPod("shop", "db-0", "data", "node-a"), userPod("shop", "other", "logs", "node-a"),
				event("shop", "e2", "PersistentVolumeClaim", "data", "CacheActive", "on", time.Minute),
				event("default", "e1", "CachedVolume", "pvc-1", "CacheActive", "on", 2*time.Minute),
				event("shop", "e3", "Pod", "data", "Started", "a pod of the same name", time.Minute),
			),
			wantOut: `
Claim:             shop/data
CachedVolume:      pvc-1
PersistentVolume:  pvc-1
Capacity:          100Gi
Origin:            iscsi, made by nearflash-target
Node:              node-a (Ready)
State:             Published, PossiblyDirty, generation 3
Asked for:         mode writeback, size 10%, acceptDirtyLoss node-loss
Warm start:        peer
Cache:             mode writeback, Healthy, seen 12s ago
  Size:            10Gi
  Used:            8.2Gi (81%)
  Dirty:           512Mi, none of it older than 40s
  Hits, 5 min:     reads 94%, writes 99%
  Hits, total:     reads 91%, writes 98%
  Load:            1200 reads/s, 310 writes/s
  Latency, pod:    p50 250us, p99 4.2ms
  Latency, hit:    p50 120us, p99 500us
  Latency, miss:   p50 2.1ms, p99 15ms
  Last flush:      60m ago
Kept on:           node-b: 10Gi, stale, will be wiped, generation 2, left 3h ago
Hot set:           none
Used by:           pod db-0 on node-a (Running)
What this means:
  - Writes are acknowledged by the SSD of node-a: what is dirty is lost if that node or its SSD is lost now.
  - No other node gets the volume before node-a has flushed it.
Conditions:
  TYPE     STATUS  REASON       SINCE  MESSAGE
  Cached   True    CacheActive  10m    -
  Applied  True    Applied      10m    mode writeback
Events:
  AGE  TYPE    REASON       OBJECT                      MESSAGE
  2m   Normal  CacheActive  CachedVolume/pvc-1          on
  60s  Normal  CacheActive  PersistentVolumeClaim/data  on
`,
		},
		"lost": {
			args: []string{"describe", "cvol/pvc-1"},
			objs: append(bound("shop", "data", "pvc-1", writeback, released("node-a"), func(v *v1alpha1.CachedVolume) {
				v.Spec.ChunkSizeBytes = ptr(256 * int64(1024))
				v.Spec.Provisioning, v.Spec.Target = "thin", "second"
			}), node("node-a", false)),
			wantOut: `
Claim:             shop/data
CachedVolume:      pvc-1
PersistentVolume:  pvc-1
Capacity:          100Gi
Origin:            iscsi, made by nearflash-target on storage server second, thin
Node:              node-a (not Ready since 20m)
State:             Released, PossiblyDirty, generation 3
Asked for:         mode writeback, size 10%, chunks of 256Ki, acceptDirtyLoss node-loss
Warm start:        peer
Cache:             none reported
Kept on:           no node
Hot set:           none
Used by:           no pod
What this means:
  - Node node-a may hold writes that the storage server does not have; the volume waits for that node, which flushes by itself when it is back.
  - If the node is lost for good, so are the writes: ` + "`kubectl nearflash abandon -n shop data --accept-data-loss`" + ` lets the volume go on without them.
Conditions:
  TYPE     STATUS   REASON       SINCE  MESSAGE
  Cached   False    Detached     10m    not attached
  Applied  Unknown  NotAttached  10m    takes effect when the volume is attached
Events: none
`,
		},
		"never used, static": {
			args: []string{"describe", "cvol/lun-7"}, objs: fleet(),
			wantOut: `
Claim:             -
CachedVolume:      lun-7
PersistentVolume:  -
Origin:            iscsi LUN 0 of iqn.2026-11.com.example:lun7 at 192.0.2.10:3260
Node:              none yet
State:             -, -, generation -
Asked for:         mode none
Cache:             none reported
Kept on:           no node
Used by:           no pod
What this means:
  - No pod has used the volume yet.
Conditions: none
Events: none
`,
		},
		"warm": {
			args: []string{"describe", "-n", "web", "site"}, objs: append(fleet(), node("node-b", true)),
			wantOut: `
Claim:             web/site
CachedVolume:      pvc-6
PersistentVolume:  pvc-6
Capacity:          100Gi
Origin:            iscsi, made by nearflash-target
Node:              node-b (Ready)
State:             Released, Clean, generation 3
Asked for:         mode writethrough, size 10%
Warm start:        peer
Cache:             none reported
Kept on:           node-b: 10Gi, warm, generation 3, left 60m ago
Kept on:           node-c: 10Gi, stale, will be wiped, generation 2, left 30h ago
Hot set:           none
Used by:           no pod
What this means:
  - The storage server has every acknowledged write: losing a node or an SSD loses none.
  - A pod that starts on node-b finds a warm cache; on any other node it begins with that cache too, read over the network until it is copied.
Conditions:
  TYPE     STATUS   REASON       SINCE  MESSAGE
  Cached   False    Detached     10m    not attached
  Applied  Unknown  NotAttached  10m    takes effect when the volume is attached
Events: none
`,
		},
		"following its pod": {
			args: []string{"describe", "-n", "shop", "data"},
			objs: append(bound("shop", "data", "pvc-1", on("node-b"), func(v *v1alpha1.CachedVolume) {
				v.Spec.WarmStart = v1alpha1.WarmStart{From: v1alpha1.WarmStartPeer, Method: v1alpha1.WarmStartStream, BandwidthBytesPerSecond: ptr(64 * mib), DeadlineSeconds: ptr(int32(1800))}
				v.Status.Cache = v1alpha1.CacheStatus{}
				v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-a", Generation: 2, SizeBytes: ptr(10 * gib), LastUsedTime: before(time.Minute)}}
			}),
				node("node-b", true), hotSet("pvc-1"),
				move("pvc-1", "node-a", 3, exported, by(v1alpha1.MigrationStream, "no dm-clone on node-b")),
				move("pvc-1", "node-c", 2, exported, ended(v1alpha1.MigrationCompleted, 20*time.Minute, "everything was copied, 1m0s")),
			),
			wantOut: `
Claim:             shop/data
CachedVolume:      pvc-1
PersistentVolume:  pvc-1
Capacity:          100Gi
Origin:            iscsi, made by nearflash-target
Node:              node-b (Ready)
State:             Published, Clean, generation 3
Asked for:         mode writethrough, size 10%
Warm start:        peer by stream, at most 64Mi/s, deadline 30m
Cache:             none reported
Kept on:           node-a: 10Gi, exported to node-b, generation 2, left 60s ago
Move:              node-a to node-b by stream (no dm-clone on node-b): running, 3Gi/4Gi (75%), served from Peer, 50Mi/s, 20s left
Move:              node-c to node-b by clone: completed 20m ago, everything was copied, 1m0s
Hot set:           a list of 12Ki, recorded 25m ago
Used by:           no pod
What this means:
  - The storage server has every acknowledged write: losing a node or an SSD loses none.
Conditions:
  TYPE     STATUS  REASON       SINCE  MESSAGE
  Cached   True    CacheActive  10m    -
  Applied  True    Applied      10m    mode writethrough
Events: none
`,
		},
		"as an object": {args: []string{"describe", "cvol/lun-7", "-o", "name"}, objs: fleet(), wantOut: "cachedvolume.nearflash.io/lun-7\n"},
	} {
		t.Run(tc, func(t *testing.T) {
			code, out, errOut := newRig(t, c.objs...).run(c.args...)
			expect(t, "output", out, c.wantOut)
			if code != 0 || errOut != "" {
				t.Errorf("exit status %d, errors %q", code, errOut)
			}
		})
	}
}

// What is known of a retained cache, and what a pod finds on another node, depends on
// who may still use it.
// TestDescribeLastSeen: what a node reported of writes that it has not flushed stays to be
// seen when it is gone, and only then.
func TestDescribeLastSeen(t *testing.T) {
	gone := func(v *v1alpha1.CachedVolume) { v.Status.Publication = v1alpha1.PublicationReleased }
	unflushed := func(v *v1alpha1.CachedVolume) { v.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty }
	clean := func(v *v1alpha1.CachedVolume) { v.Status.DirtyState = v1alpha1.DirtyStateClean }
	for tc, c := range map[string]struct {
		opts []func(*v1alpha1.CachedVolume)
		want string
	}{
		"dirty": {[]func(*v1alpha1.CachedVolume){on("node-a"), dirty(512 * mib), unflushed, gone}, "Dirty:           512Mi, none of it older than 40s"},
		"clean": {[]func(*v1alpha1.CachedVolume){on("node-a"), dirty(512 * mib), gone, clean}, "Cache:             none reported"},
	} {
		_, out, errOut := newRig(t, append(bound("shop", "data", "pvc-1", c.opts...), node("node-a", false))...).run("describe", "-n", "shop", "data")
		if !strings.Contains(out, c.want) {
			t.Errorf("%s: output has no %q:\n%s%s", tc, c.want, out, errOut)
		}
	}
}

// TestDescribeUnsafe: it is said what dropped flushes may cost, and have cost.
func TestDescribeUnsafe(t *testing.T) {
	mode := func(v *v1alpha1.CachedVolume) {
		v.Spec.CacheMode, v.Spec.AcceptDirtyLoss = v1alpha1.CacheModeWritebackUnsafe, v1alpha1.DirtyLossPowerLoss
	}
	unflushed := func(v *v1alpha1.CachedVolume) { v.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty }
	stopped := func(v *v1alpha1.CachedVolume) {
		condition(v, v1alpha1.ConditionConsistent, metav1.ConditionFalse, v1alpha1.ReasonUncleanStop, "node node-a stopped uncleanly")
	}
	for tc, c := range map[string]struct {
		opts []func(*v1alpha1.CachedVolume)
		want string
	}{
		"at work": {[]func(*v1alpha1.CachedVolume){mode, on("node-a"), dirty(512 * mib), unflushed}, "Flushes end at the cache: if node-a loses its power"},
		"stopped": {[]func(*v1alpha1.CachedVolume){mode, on("node-a"), stopped}, "A node stopped uncleanly while flushes ended at the cache"},
	} {
		_, out, errOut := newRig(t, append(bound("shop", "data", "pvc-1", c.opts...), node("node-a", true))...).run("describe", "-n", "shop", "data")
		if !strings.Contains(out, c.want) || strings.Contains(out, "losing a node or an SSD loses none") {
			t.Errorf("%s: output has no %q, or promises more:\n%s%s", tc, c.want, out, errOut)
		}
	}
}

func TestDescribeWarmth(t *testing.T) {
	kept := func(v *v1alpha1.CachedVolume) {
		v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-a", Generation: 3, SizeBytes: ptr(gib), LastUsedTime: before(time.Hour)}}
	}
	from := func(f v1alpha1.WarmStartFrom) func(*v1alpha1.CachedVolume) {
		return func(v *v1alpha1.CachedVolume) { v.Spec.WarmStart.From = f }
	}
	preload := func(v *v1alpha1.CachedVolume) { v.Spec.WarmStart.Preload = v1alpha1.WarmStartPreloadAll }
	inPart := func(v *v1alpha1.CachedVolume) { v.Status.RetainedCaches[0].Content = v1alpha1.RetainedCachePartial }
	earlier := func(v *v1alpha1.CachedVolume) { v.Status.RetainedCaches[0].Generation = 2 }
	source := func(v *v1alpha1.CachedVolume) {
		v.Status.WarmSource = v1alpha1.WarmSource{NodeName: "node-a", Generation: 2}
	}
	for tc, c := range map[string]struct {
		opts []func(*v1alpha1.CachedVolume)
		objs []client.Object
		want string
	}{
		"peer":                      {[]func(*v1alpha1.CachedVolume){released("node-a"), kept}, []client.Object{node("node-a", true)}, "on any other node it begins with that cache too, read"},
		"peer that is away":         {[]func(*v1alpha1.CachedVolume){released("node-a"), kept}, []client.Object{node("node-a", false)}, "on any other node it starts cold."},
		"peer that is away, listed": {[]func(*v1alpha1.CachedVolume){released("node-a"), kept}, []client.Object{hotSet("pvc-1")}, "on any other node it begins with the blocks that were hottest, read"},
		"in part":                   {[]func(*v1alpha1.CachedVolume){released("node-a"), kept, inPart}, nil, "node-a: 1Gi, warm in part, generation 3"},
		"in part, elsewhere":        {[]func(*v1alpha1.CachedVolume){released("node-a"), kept, inPart}, []client.Object{node("node-a", true), hotSet("pvc-1")}, "finds a cache that is warm in part; on any other node it begins with the blocks that were hottest, read"},
		"origin":                    {[]func(*v1alpha1.CachedVolume){released("node-a"), kept, from(v1alpha1.WarmStartOrigin)}, []client.Object{node("node-a", true), hotSet("pvc-1")}, "on any other node it begins with the blocks that were hottest, read"},
		"off":                       {[]func(*v1alpha1.CachedVolume){released("node-a"), kept, from(v1alpha1.WarmStartOff)}, []client.Object{node("node-a", true), hotSet("pvc-1")}, "on any other node it starts cold."},
		"preloaded":                 {[]func(*v1alpha1.CachedVolume){released("node-a"), kept, preload}, []client.Object{hotSet("pvc-1")}, "on any other node it is filled from the storage server, as far as it has room"},
		"preloaded, as asked for":   {[]func(*v1alpha1.CachedVolume){released("node-a"), preload}, nil, "Warm start:        peer, preload all\n"},
		"preloaded, with a peer":    {[]func(*v1alpha1.CachedVolume){released("node-a"), kept, preload}, []client.Object{node("node-a", true)}, "on any other node it begins with that cache too, read"},
		"a source":                  {[]func(*v1alpha1.CachedVolume){on("node-b"), kept, earlier, source}, nil, "Warm source:       node-a, generation 2\nKept on:           node-a: 1Gi, kept for node-b, generation 2"},
		"asked for":                 {[]func(*v1alpha1.CachedVolume){on("node-b"), kept, earlier}, []client.Object{move("pvc-1", "node-a", 3)}, "asked for by node-b, generation 2, left 60m ago\nMove:              node-a to node-b by clone: waiting\n"},
		"refused":                   {[]func(*v1alpha1.CachedVolume){on("node-b"), kept, earlier}, []client.Object{move("pvc-1", "node-a", 3, refused)}, "stale, will be wiped, generation 2, left 60m ago\nMove:              node-a to node-b by clone: refused, not found: no clean"},
		"another volume's hot set":  {[]func(*v1alpha1.CachedVolume){on("node-b"), func(v *v1alpha1.CachedVolume) { v.UID = "uid-new" }}, []client.Object{hotSet("pvc-1")}, "Hot set:           none"},
	} {
		t.Run(tc, func(t *testing.T) {
			_, out, errOut := newRig(t, append(bound("shop", "data", "pvc-1", c.opts...), c.objs...)...).run("describe", "-n", "shop", "data")
			if !strings.Contains(out, c.want) {
				t.Errorf("output has no %q:\n%s%s", c.want, out, errOut)
			}
		})
	}
}

// TestDescribeHold: a volume that is held says for what, and what it waits for.
func TestDescribeHold(t *testing.T) {
	const asked = "asked for 2m ago: no write stays in the cache alone until it is cut"
	for name, tc := range map[string]struct {
		hold  string
		dirty bool
		flush string
		want  string
	}{
		"draining": {"s-1", true, "t", "Held:              for snapshot s-1, " + asked + "; node node-a flushes the cache\n"},
		"asked":    {"s-1", false, "t", "Held:              for snapshot s-1, " + asked + "; node node-a is asked for a flush\n"},
		"cutting":  {"clone-pvc-2", false, "", "Held:              for a clone (clone-pvc-2), " + asked + "\n"},
	} {
		objs := append(bound("shop", "data", "pvc-1", writeback, on("node-a"), func(v *v1alpha1.CachedVolume) {
			v.Spec.Hold, v.Spec.FlushRequest = &v1alpha1.VolumeHold{Name: tc.hold, Token: "t", Since: before(2 * time.Minute)}, tc.flush
			v.Spec.Origin = &v1alpha1.OriginSource{StorageClassName: "disks"}
			v.Status.DirtyState = v1alpha1.DirtyStateClean
			if tc.dirty {
				v.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty
			}
		}), node("node-a", true))
		_, out, errOut := newRig(t, objs...).run("describe", "-n", "shop", "data")
		if !strings.Contains(out, tc.want) || !strings.Contains(out, ", made by StorageClass disks\n") {
			t.Errorf("%s: want %q in\n%s%s", name, tc.want, out, errOut)
		}
	}
}
