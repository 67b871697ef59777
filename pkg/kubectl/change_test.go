package kubectl_test

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// accept returns what the node reports of the spec as it is in the record.
func accept(status metav1.ConditionStatus, reason, message string, more ...func(*v1alpha1.CachedVolume)) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		applied(status, reason, message)(v)
		for _, m := range more {
			m(v)
		}
	}
}

// stale makes the conditions speak of an older spec: the fake client does not
// count the changes of a spec, as the API server does.
func stale(v *v1alpha1.CachedVolume) {
	for i := range v.Status.Conditions {
		v.Status.Conditions[i].ObservedGeneration = v.Generation - 1
	}
}

func withLoss(s v1alpha1.CachedVolumeSpec, loss v1alpha1.DirtyLoss) v1alpha1.CachedVolumeSpec {
	s.AcceptDirtyLoss = loss
	return s
}

type changeCase struct {
	args []string
	objs []client.Object
	// ticks change the record pvc-1 while the command waits.
	ticks            []func(*v1alpha1.CachedVolume)
	input            string
	interactive      bool
	wantOut, wantErr string
	wantSpec         v1alpha1.CachedVolumeSpec
}

func (c changeCase) check(t *testing.T) {
	r := newRig(t, c.objs...)
	r.input, r.interactive = c.input, c.interactive
	r.tick("pvc-1", c.ticks...)
	code, out, errOut := r.run(c.args...)
	expect(t, "output", out, c.wantOut)
	expect(t, "errors", errOut, c.wantErr)
	if failed := strings.Contains(c.wantErr, "error: "); (code != 0) != failed {
		t.Errorf("exit status %d", code)
	}
	if len(r.clock.ticks) > 0 {
		t.Errorf("the command ended before %d more changes", len(r.clock.ticks))
	}
	spec := r.record("pvc-1").Spec
	if !reflect.DeepEqual(spec.Origin, c.wantSpec.Origin) || spec.CacheMode != c.wantSpec.CacheMode || spec.CacheSize != c.wantSpec.CacheSize || spec.AcceptDirtyLoss != c.wantSpec.AcceptDirtyLoss || spec.FlushRequest != c.wantSpec.FlushRequest || spec.ScrubRequest != c.wantSpec.ScrubRequest {
		t.Errorf("spec is %+v, want %+v", spec, c.wantSpec)
	}
}

func spec(mode v1alpha1.CacheMode, size string) v1alpha1.CachedVolumeSpec {
	return v1alpha1.CachedVolumeSpec{CacheMode: mode, CacheSize: size}
}

// over is a volume of another driver.
func over(consent v1alpha1.WithoutFence) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		v.Spec.Origin = &v1alpha1.OriginSource{StorageClassName: "rbd", WithoutFence: consent}
	}
}

func consented(mode v1alpha1.CacheMode, size string) v1alpha1.CachedVolumeSpec {
	return v1alpha1.CachedVolumeSpec{CacheMode: mode, CacheSize: size, AcceptDirtyLoss: v1alpha1.DirtyLossNodeLoss}
}

const (
	wt = v1alpha1.CacheModeWritethrough
	wb = v1alpha1.CacheModeWriteback
)

func TestMode(t *testing.T) {
	twice := consented(wb, "10%")
	twice.Origin = &v1alpha1.OriginSource{StorageClassName: "rbd", WithoutFence: v1alpha1.WithoutFenceAcceptTwoWriters}
	for tc, c := range map[string]changeCase{
		"to writeback": {
			args: []string{"mode", "data", "writeback", "--accept-dirty-loss", "node-loss"},
			objs: bound("default", "data", "pvc-1", on("node-a"), stale),
			ticks: []func(*v1alpha1.CachedVolume){
				accept(metav1.ConditionFalse, v1alpha1.ReasonApplying, "the cache begins to take writes"),
				accept(metav1.ConditionTrue, v1alpha1.ReasonApplied, "mode writeback"),
			},
			wantOut: `
data: cacheMode writethrough -> writeback
data: waiting for node node-a
data: node node-a applies it: the cache begins to take writes
data: done: mode writeback on node node-a
`,
			wantSpec: consented(wb, "10%"),
		},
		"to writeback without consent": {
			args:     []string{"mode", "data", "writeback"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantErr:  "error: data: writeback loses the writes that were not flushed when node or SSD are lost: add --accept-dirty-loss node-loss if that is acceptable\n",
			wantSpec: spec(wt, "10%"),
		},
		"to unsafe": {
			args:     []string{"mode", "data", "writeback-unsafe", "--accept-dirty-loss", "power-loss", "--wait=false", "-o", "name"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantOut:  "cachedvolume.nearflash.io/pvc-1\n",
			wantErr:  "data: cacheMode writethrough -> writeback-unsafe\n",
			wantSpec: withLoss(spec(v1alpha1.CacheModeWritebackUnsafe, "10%"), v1alpha1.DirtyLossPowerLoss),
		},
		"to unsafe without consent": {
			args:     []string{"mode", "data", "writeback-unsafe"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantErr:  "error: data: writeback-unsafe loses writes in any order, flushed ones among them, when a node loses its power or its kernel crashes: add --accept-dirty-loss power-loss if that is acceptable\n",
			wantSpec: spec(wt, "10%"),
		},
		"to unsafe with another consent": {
			args:     []string{"mode", "data", "writeback-unsafe", "--accept-dirty-loss", "node-loss"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantErr:  "error: --accept-dirty-loss node-loss does not go with mode writeback-unsafe: accepted is power-loss\n",
			wantSpec: spec(wt, "10%"),
		},
		"to writeback over a driver without a fence": {
			args:     []string{"mode", "data", "writeback", "--accept-dirty-loss", "node-loss", "--without-fence", "AcceptTwoWriters", "--wait=false", "-o", "name"},
			objs:     bound("default", "data", "pvc-1", over(""), on("node-a")),
			wantOut:  "cachedvolume.nearflash.io/pvc-1\n",
			wantErr:  "data: cacheMode writethrough -> writeback\n",
			wantSpec: twice,
		},
		"back to writeback, the other consent stays": {
			args:     []string{"mode", "data", "writeback", "--accept-dirty-loss", "node-loss", "--wait=false", "-o", "name"},
			objs:     bound("default", "data", "pvc-1", over(v1alpha1.WithoutFenceAcceptTwoWriters), on("node-a")),
			wantOut:  "cachedvolume.nearflash.io/pvc-1\n",
			wantErr:  "data: cacheMode writethrough -> writeback\n",
			wantSpec: twice,
		},
		"the other consent, without another driver": {
			args:     []string{"mode", "data", "writeback", "--accept-dirty-loss", "node-loss", "--without-fence", "AcceptTwoWriters"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantErr:  "error: data: --without-fence AcceptTwoWriters is for volumes of another CSI driver, and this is none\n",
			wantSpec: spec(wt, "10%"),
		},
		"back to writeback with the consent of the class": {
			args: []string{"mode", "data", "writeback"},
			objs: bound("default", "data", "pvc-1", func(v *v1alpha1.CachedVolume) {
				v.Spec.AcceptDirtyLoss = v1alpha1.DirtyLossNodeLoss
			}, on("node-a")),
			wantOut: `
data: cacheMode writethrough -> writeback
data: done: mode writeback on node node-a
`,
			wantSpec: consented(wb, "10%"),
		},
		"from writeback, with progress": {
			args: []string{"mode", "data", "writethrough"},
			objs: bound("default", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib), stale),
			ticks: []func(*v1alpha1.CachedVolume){
				accept(metav1.ConditionFalse, v1alpha1.ReasonFlushing, "536870912 bytes of the cache are still dirty"),
				accept(metav1.ConditionFalse, v1alpha1.ReasonFlushing, "536870912 bytes of the cache are still dirty"),
				accept(metav1.ConditionFalse, v1alpha1.ReasonFlushing, "1048576 bytes of the cache are still dirty"),
				accept(metav1.ConditionTrue, v1alpha1.ReasonApplied, "mode writethrough"),
			},
			wantOut: `
data: cacheMode writeback -> writethrough
data: waiting for node node-a
data: node node-a flushes: 512Mi of the cache are still dirty
data: node node-a flushes: 1Mi of the cache are still dirty
data: done: mode writethrough on node node-a
`,
			wantSpec: consented(wt, "10%"),
		},
		"attached nowhere": {
			args: []string{"mode", "data", "none"},
			objs: bound("default", "data", "pvc-1", released("node-a"), stale),
			wantOut: `
data: cacheMode writethrough -> none
data: attached nowhere: it takes effect when a pod next uses the volume
`,
			wantSpec: spec("none", "10%"),
		},
		"pool full": {
			args: []string{"mode", "data", "writethrough"},
			objs: bound("default", "data", "pvc-1", func(v *v1alpha1.CachedVolume) { v.Spec.CacheMode = "none" }, on("node-a"), stale),
			ticks: []func(*v1alpha1.CachedVolume){
				accept(metav1.ConditionFalse, v1alpha1.ReasonPoolFull, "no room for 10Gi"),
			},
			wantOut: `
data: cacheMode none -> writethrough
data: waiting for node node-a
`,
			wantErr:  "error: data: node node-a cannot do it now (PoolFull: no room for 10Gi): it is tried again by itself, `kubectl nearflash doctor` says what helps\n",
			wantSpec: spec(wt, "10%"),
		},
		"no size yet": {
			args:     []string{"mode", "data", "writethrough"},
			objs:     bound("default", "data", "pvc-1", func(v *v1alpha1.CachedVolume) { v.Spec.CacheMode, v.Spec.CacheSize = "none", "" }),
			wantErr:  "error: data: the volume has no cache size yet: give it one with `kubectl nearflash resize -n default data 10%`, then repeat the command\n",
			wantSpec: spec("none", ""),
		},
		"the node takes no note": {
			args: []string{"mode", "data", "none", "--timeout", "31s"},
			objs: bound("default", "data", "pvc-1", on("node-a"), stale),
			ticks: func() (out []func(*v1alpha1.CachedVolume)) {
				for range 31 {
					out = append(out, func(*v1alpha1.CachedVolume) {})
				}
				return out
			}(),
			wantOut: `
data: cacheMode writethrough -> none
data: waiting for node node-a
data: node node-a has not taken note for 30s: ` + "`kubectl nearflash doctor`" + ` shows whether its plugin works
`,
			wantErr:  "error: data: timed out after 31s (node node-a has not taken note for 30s: `kubectl nearflash doctor` shows whether its plugin works): the request stays, repeat the command to wait again\n",
			wantSpec: spec("none", "10%"),
		},
		"of a claim with a VolumeAttributesClass": {
			args: []string{"mode", "data", "none"},
			objs: func() []client.Object {
				objs := bound("default", "data", "pvc-1", released("node-a"))
				objs[1].(*corev1.PersistentVolume).Spec.VolumeAttributesClassName = ptr("cache-fast")
				return objs
			}(),
			wantOut: `
data: cacheMode writethrough -> none
data: note: the claim names the VolumeAttributesClass cache-fast and goes on to do so; this change lasts until it is given another class
data: attached nowhere: it takes effect when a pod next uses the volume
`,
			wantSpec: spec("none", "10%"),
		},
		"without waiting, as an object": {
			args:     []string{"mode", "data", "none", "--wait=false", "-o", "name"},
			objs:     bound("default", "data", "pvc-1", on("node-a"), stale),
			wantOut:  "cachedvolume.nearflash.io/pvc-1\n",
			wantErr:  "data: cacheMode writethrough -> none\n",
			wantSpec: spec("none", "10%"),
		},
	} {
		t.Run(tc, c.check)
	}
}

func TestResize(t *testing.T) {
	for tc, c := range map[string]changeCase{
		"grow": {
			args:  []string{"resize", "data", "20Gi"},
			objs:  bound("default", "data", "pvc-1", on("node-a"), stale),
			ticks: []func(*v1alpha1.CachedVolume){accept(metav1.ConditionTrue, v1alpha1.ReasonApplied, "", func(v *v1alpha1.CachedVolume) { v.Status.Cache.SizeBytes = ptr(20 * gib) })},
			wantOut: `
data: cacheSize 10% -> 20Gi (it grows and stays warm)
data: waiting for node node-a
data: done: 20Gi on node node-a
`,
			wantSpec: spec(wt, "20Gi"),
		},
		"shrink": {
			args:  []string{"resize", "data", "5%"},
			objs:  bound("default", "data", "pvc-1", on("node-a"), stale),
			ticks: []func(*v1alpha1.CachedVolume){accept(metav1.ConditionTrue, v1alpha1.ReasonApplied, "", func(v *v1alpha1.CachedVolume) { v.Status.Cache.SizeBytes = ptr(5 * gib) })},
			wantOut: `
data: cacheSize 10% -> 5% (it shrinks and starts cold)
data: waiting for node node-a
data: done: 5Gi on node node-a
`,
			wantSpec: spec(wt, "5%"),
		},
		"bytes without a unit": {
			args:  []string{"resize", "data", "21474836480"},
			objs:  bound("default", "data", "pvc-1", on("node-a"), stale),
			ticks: []func(*v1alpha1.CachedVolume){accept(metav1.ConditionTrue, v1alpha1.ReasonApplied, "", func(v *v1alpha1.CachedVolume) { v.Status.Cache.SizeBytes = ptr(20 * gib) })},
			wantOut: `
data: cacheSize 10% -> 20Gi (it grows and stays warm)
data: waiting for node node-a
data: done: 20Gi on node node-a
`,
			wantSpec: spec(wt, "20Gi"),
		},
		"more than its maximum": {
			args:     []string{"resize", "data", "20Gi"},
			objs:     bound("default", "data", "pvc-1", func(v *v1alpha1.CachedVolume) { v.Spec.MaxCacheSize = "15Gi" }, on("node-a")),
			wantErr:  "error: SIZE: \"20Gi\" is more than the volume's maxCacheSize 15Gi; accepted are at most that, or a percentage of the volume, which is cut down to it\n",
			wantSpec: spec(wt, "10%"),
		},
		"rejected": {
			args:  []string{"resize", "data", "64Ki"},
			objs:  bound("default", "data", "pvc-1", on("node-a"), stale),
			ticks: []func(*v1alpha1.CachedVolume){accept(metav1.ConditionFalse, v1alpha1.ReasonRejected, "a cache of 65536 bytes holds no block")},
			wantOut: `
data: cacheSize 10% -> 64Ki (it shrinks and starts cold)
data: waiting for node node-a
`,
			wantErr:  "error: data: node node-a refuses it: a cache of 65536 bytes holds no block: ask for something else, the volume goes on as it was\n",
			wantSpec: spec(wt, "64Ki"),
		},
		"without a cache": {
			args: []string{"resize", "data", "5%"},
			objs: bound("default", "data", "pvc-1", func(v *v1alpha1.CachedVolume) { v.Spec.CacheMode, v.Spec.CacheSize = "none", "" }, on("node-a")),
			wantOut: `
data: cacheSize - -> 5% (the mode is none: the size counts once ` + "`kubectl nearflash mode`" + ` gives the volume a cache)
data: done: no cache on node node-a
`,
			wantSpec: spec("none", "5%"),
		},
	} {
		t.Run(tc, c.check)
	}
}

func TestDrop(t *testing.T) {
	warm := func(v *v1alpha1.CachedVolume) {
		v.Status.RetainedCaches = []v1alpha1.RetainedCache{{NodeName: "node-a", Generation: 3}}
	}
	for tc, c := range map[string]changeCase{
		"attached": {
			args: []string{"drop", "data", "--yes"},
			objs: bound("default", "data", "pvc-1", on("node-a"), stale),
			ticks: []func(*v1alpha1.CachedVolume){
				accept(metav1.ConditionTrue, v1alpha1.ReasonApplied, "mode none", with(v1alpha1.ConditionCached, metav1.ConditionFalse, v1alpha1.ReasonModeNone, "")),
			},
			wantOut: `
data: gives up its cache of 10Gi on node node-a
data: waiting for node node-a
data: done: no cache on node node-a; ` + "`kubectl nearflash mode -n default data writethrough`" + ` brings one of 10% back
`,
			wantSpec: spec("none", "10%"),
		},
		"answered yes, kept warm": {
			args: []string{"drop", "data"}, input: "y\n", interactive: true,
			objs: bound("default", "data", "pvc-1", released("node-a"), warm),
			wantOut: `
data: gives up its cache; what is kept warm on node-a goes too
data: attached nowhere: it takes effect when a pod next uses the volume
`,
			wantErr:  "Go on? [y/N] ",
			wantSpec: spec("none", "10%"),
		},
		"answered with the end of input": {
			args: []string{"drop", "data"}, interactive: true,
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantOut:  "data: gives up its cache of 10Gi on node node-a\n",
			wantErr:  "Go on? [y/N] error: nothing was changed: answer y, or add --yes\n",
			wantSpec: spec(wt, "10%"),
		},
		"nobody to ask": {
			args:     []string{"drop", "data"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantErr:  "error: drop gives up the warm cache and there is nobody to ask: add --yes\n",
			wantSpec: spec(wt, "10%"),
		},
	} {
		t.Run(tc, c.check)
	}
}

func TestFlush(t *testing.T) {
	const token = "2026-11-21T12:00:00Z"
	requested := consented(wb, "10%")
	requested.FlushRequest = token
	flushed := func(token string) func(*v1alpha1.CachedVolume) {
		return func(v *v1alpha1.CachedVolume) {
			v.Status.Flush = v1alpha1.FlushStatus{Request: token, CompletionTime: before(0)}
		}
	}
	for tc, c := range map[string]changeCase{
		"with progress": {
			args: []string{"flush", "data"},
			objs: bound("default", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib), stale),
			ticks: []func(*v1alpha1.CachedVolume){
				dirty(500 * mib),
				accept(metav1.ConditionFalse, v1alpha1.ReasonFlushing, "1048576 bytes of the cache are still dirty"),
				flushed("2026-11-20T00:00:00Z"),
				flushed(token),
			},
			wantOut: `
data: waiting for node node-a: 512Mi dirty
data: waiting for node node-a: 500Mi dirty
data: node node-a flushes: 1Mi of the cache are still dirty
data: flushed: the storage server has every write that was made before
`,
			wantSpec: requested,
		},
		"nothing is dirty": {
			args:     []string{"flush", "data"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantOut:  "data: nothing is dirty: the storage server has every write\n",
			wantSpec: spec(wt, "10%"),
		},
		"nothing is dirty and nowhere attached": {
			args:     []string{"flush", "data"},
			objs:     bound("default", "data", "pvc-1", released("node-a")),
			wantOut:  "data: nothing is dirty: the storage server has every write\n",
			wantSpec: spec(wt, "10%"),
		},
		"detached and dirty": {
			args:     []string{"flush", "data"},
			objs:     bound("default", "data", "pvc-1", writeback, released("node-a")),
			wantErr:  "error: data: attached nowhere, and node node-a may hold unflushed writes of it: bring node-a back, its plugin flushes by itself; if it is lost for good, `kubectl nearflash abandon -n default data --accept-data-loss` gives the writes up\n",
			wantSpec: consented(wb, "10%"),
		},
		"detached meanwhile": {
			args: []string{"flush", "data"},
			objs: bound("default", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib), stale),
			ticks: []func(*v1alpha1.CachedVolume){func(v *v1alpha1.CachedVolume) {
				released("node-a")(v)
				v.Status.DirtyState = v1alpha1.DirtyStateClean
			}},
			wantOut: `
data: waiting for node node-a: 512Mi dirty
data: flushed when it was detached: the storage server has every write
`,
			wantSpec: requested,
		},
		"without waiting": {
			args:     []string{"flush", "data", "--wait=false"},
			objs:     bound("default", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib)),
			wantOut:  "data: flush requested (" + token + ")\n",
			wantSpec: requested,
		},
	} {
		t.Run(tc, c.check)
	}
}

// cloned returns objects that a client may write to.
func cloned(objs []client.Object) []client.Object {
	out := make([]client.Object, 0, len(objs))
	for _, o := range objs {
		out = append(out, o.DeepCopyObject().(client.Object))
	}
	return out
}
