package kubectl_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// reads gives a volume what its node has seen of it in two days.
func reads(writes int32, knee int64, hits ...int32) func(*v1alpha1.CachedVolume) {
	return func(v *v1alpha1.CachedVolume) {
		v.Spec.CapacityBytes = ptr(100 * gib)
		w := v1alpha1.ReuseWindow{
			Window: v1alpha1.ReuseDay, Operations: ptr(int64(120000)), WritePercent: &writes, ReadBytes: ptr(int64(8192)), WriteBytes: ptr(int64(16384)), ReadSizePercents: []int32{2, 90, 90, 92, 92, 98, 98, 98, 99},
			HitPercents: hits, AgainPercent: ptr(hits[5]),
		}
		if knee > 0 {
			w.KneeBytes, w.KneeHitPercent = &knee, ptr(hits[1])
		}
		v.Status.Cache.Reuse = v1alpha1.Reuse{
			SinceTime: before(48 * time.Hour), ObservedTime: before(time.Minute), ChunkBytes: ptr(128 * 1024 * int64(1)), AreaBytes: ptr(128 * 1024 * int64(1)),
			Windows: []v1alpha1.ReuseWindow{w},
		}
	}
}

// advisable are volumes of every kind on two nodes, one of which has no pool.
func advisable() []client.Object {
	var objs []client.Object
	objs = append(objs, bound("shop", "data", "pvc-1", on("node-a"), reads(40, 5*gib, 40, 62, 70, 82, 90, 98))...)
	objs = append(objs, bound("shop", "scan", "pvc-2", on("node-a"), reads(2, 0, 0, 0, 0, 1, 1, 2))...)
	objs = append(objs, bound("shop", "new", "pvc-3", on("node-b"))...)
	objs = append(objs, bound("shop", "gone", "pvc-4", released("node-b"))...)
	objs = append(objs, bound("web", "even", "pvc-5", on("node-a"), func(v *v1alpha1.CachedVolume) {
		v.Spec.CacheMode, v.Status.Cache.Mode, v.Status.Cache.SizeBytes = v1alpha1.CacheModeNone, v1alpha1.CacheModeNone, nil
	}, reads(0, 0, 1, 5, 10, 25, 50, 99))...)
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	pool.Status.Capacity = resource.MustParse("104Gi")
	return append(objs, pool)
}

func TestAdvise(t *testing.T) {
	for tc, c := range map[string]struct {
		args, want, wantErr string
		change              func(*rig)
		code                int
	}{
		"two": {args: "-n shop scan new", want: `
Volume:     scan, 100Gi on node node-a
Now:        writethrough, 10Gi; of the reads hit 94 % (5 minutes), 0 % are predicted
Seen:       in the last day 120000 reads and writes, 2 % of them writes; looked at since 2d ago
Average:    8Ki a read, 16Ki a write, chunk 128Ki
Reads:      2 % of at most 4Ki, 90 % of at most 8Ki, 92 % of at most 32Ki, 98 % of at most 128Ki, 99 % of at most 1Mi, 1 % longer
Predicted:  0 % at 1 %, 0 % at 5 %, 0 % at 10 %, 1 % at 25 %, 1 % at 50 %, 2 % at 100 % of the volume
Advice:     a cache will not help here, because 98 % of the reads are of data that was not read before, as in a scan: even one as large as the volume would answer 2 %
Do:         kubectl nearflash mode -n shop scan none
Or:         a VolumeAttributesClass with the parameters cacheMode: none

Volume:  new, 100Gi on node node-b
Now:     writethrough, 10Gi; of the reads hit 94 % (5 minutes)
Advice:  not known yet: no node has looked at what the volume reads (a volume that was attached before the node plugin was upgraded is looked at from its next attachment on, if it has no cache)
`},
		"of a week": {args: "-n shop scan --window week", want: `
Volume:  scan, 100Gi on node node-a
Now:     writethrough, 10Gi; of the reads hit 94 % (5 minutes)
Advice:  not known yet for a week: the node has looked for 2d, and half a week is the least
`},
		"a namespace without any": {args: "-n none", wantErr: "No attached volumes found in namespace none.\n"},
		"who may not read pools": {
			args: "-n web even", change: func(r *rig) { r.forbid(&v1alpha1.CachePool{}) }, want: `
Volume:     even, 100Gi on node node-a
Now:        none
Seen:       in the last day 120000 reads and writes, 0 % of them writes; looked at since 2d ago
Average:    8Ki a read, 16Ki a write, chunk 128Ki
Reads:      2 % of at most 4Ki, 90 % of at most 8Ki, 92 % of at most 32Ki, 98 % of at most 128Ki, 99 % of at most 1Mi, 1 % longer
Predicted:  1 % at 1 %, 5 % at 5 %, 10 % at 10 %, 25 % at 25 %, 50 % at 50 %, 99 % at 100 % of the volume
Advice:     writethrough, 100Gi, 99 % of the reads hit: reads are spread evenly: each more of cache helps as much as any other, up to the size that is advised
Mode:       0 % of the operations are writes
Do:         kubectl nearflash resize -n web even 100%
Do:         kubectl nearflash mode -n web even writethrough
Or:         a VolumeAttributesClass with the parameters cacheMode: writethrough, cacheSize: 100%
`},
		"another window":   {args: "--window month", code: 1, wantErr: "error: --window month is not known: accepted are hour, day, week\n"},
		"another format":   {args: "-o wide", code: 1, wantErr: "error: -o wide is not known: accepted are json, yaml\n"},
		"no such volume":   {args: "-n shop none", code: 1, wantErr: "error: there is no claim none in namespace shop: name its namespace with -n; `kubectl nearflash list -A` shows all volumes\n"},
		"nowhere attached": {args: "-n shop gone", want: "Volume:  gone, 100Gi on node -\nAdvice:  not known: the volume is attached nowhere, and only the node that has it sees what it reads\n"},
	} {
		t.Run(tc, func(t *testing.T) {
			r := newRig(t, advisable()...)
			if c.change != nil {
				c.change(r)
			}
			code, out, errOut := r.run(append([]string{"advise", "--reported"}, strings.Fields(c.args)...)...)
			if code != c.code {
				t.Errorf("exit status %d", code)
			}
			expect(t, "output", out, c.want)
			expect(t, "errors", errOut, c.wantErr)
		})
	}
}

// TestAdviseJSON: a program gets what is advised, what does it, and what the pools would need.
func TestAdviseJSON(t *testing.T) {
	r := newRig(t, advisable()...)
	code, out, errOut := r.run("advise", "--reported", "-A", "-o", "json")
	if code != 0 || errOut != "" {
		t.Fatalf("%d: %s", code, errOut)
	}
	var got struct {
		Volumes []struct {
			Claim, Verdict, Mode string
			SizeBytes            int64
			Commands             []string
			Parameters           map[string]string
			Seen                 *v1alpha1.ReuseWindow
		}
		Pools []struct {
			Node                                  string
			NowBytes, AdvisedBytes, CapacityBytes int64
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	zipf := got.Volumes[0]
	if zipf.Claim != "data" || zipf.Verdict != "Cache" || zipf.SizeBytes != 5*gib || zipf.Commands[0] != "kubectl nearflash resize -n shop data 5Gi" || zipf.Parameters["cacheSize"] != "5Gi" || len(zipf.Seen.HitPercents) != 6 {
		t.Errorf("%+v", zipf)
	}
	if p := got.Pools[0]; p.Node != "node-a" || p.NowBytes != 20*gib || p.AdvisedBytes != 105*gib || p.CapacityBytes != 104*gib {
		t.Errorf("%+v", p)
	}
}

// TestAdviseMirror: a cache takes its size twice where it has two copies, by its own wish or by the pool's.
func TestAdviseMirror(t *testing.T) {
	for name, tc := range map[string]struct {
		mirror       func([]client.Object)
		now, advised int64
	}{
		"none": {func([]client.Object) {}, 20 * gib, 105 * gib},
		"the pool": {func(objs []client.Object) {
			objs[len(objs)-1].(*v1alpha1.CachePool).Spec.Redundancy = v1alpha1.RedundancyMirror
		}, 40 * gib, 114 * gib},
		"the volume": {func(objs []client.Object) { cvolOf(objs, "pvc-1").Spec.Redundancy = v1alpha1.RedundancyMirror }, 30 * gib, 110 * gib},
	} {
		objs := advisable()
		tc.mirror(objs)
		code, out, errOut := newRig(t, objs...).run("advise", "--reported", "-A", "-o", "json")
		var got struct {
			Pools []struct{ NowBytes, AdvisedBytes, CapacityBytes int64 }
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
			t.Fatalf("%s: %d, %v: %s", name, code, err, errOut)
		}
		if p := got.Pools[0]; p.NowBytes != tc.now || p.AdvisedBytes != tc.advised || p.CapacityBytes != 104*gib {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestAdviseConsent: what is advised is accepted as it stands. A consent to lose more is none to
// writeback, and a volume in writeback-unsafe stays in it.
func TestAdviseConsent(t *testing.T) {
	for name, tc := range map[string]struct {
		loss       v1alpha1.DirtyLoss
		mode, want v1alpha1.CacheMode
		changes    bool
	}{
		"none":               {"", v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWritethrough, false},
		"of writeback":       {v1alpha1.DirtyLossNodeLoss, v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback, true},
		"left of before":     {v1alpha1.DirtyLossPowerLoss, v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWritethrough, false},
		"of writeback, used": {v1alpha1.DirtyLossNodeLoss, v1alpha1.CacheModeWriteback, v1alpha1.CacheModeWriteback, false},
		"unsafe":             {v1alpha1.DirtyLossPowerLoss, v1alpha1.CacheModeWritebackUnsafe, v1alpha1.CacheModeWritebackUnsafe, false},
	} {
		t.Run(name, func(t *testing.T) {
			objs := advisable()
			cv := cvolOf(objs, "pvc-1")
			cv.Spec.AcceptDirtyLoss, cv.Spec.CacheMode, cv.Status.Cache.Mode = tc.loss, tc.mode, tc.mode
			r := newRig(t, objs...)
			code, out, errOut := r.run("advise", "--reported", "-n", "shop", "data", "-o", "json")
			var got struct {
				Volumes []struct {
					Mode       v1alpha1.CacheMode
					Commands   []string
					Parameters map[string]string
				}
			}
			if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || len(got.Volumes) != 1 {
				t.Fatalf("%d, %v: %s%s", code, err, out, errOut)
			}
			v := got.Volumes[0]
			if v.Mode != tc.want || v.Parameters["cacheMode"] != string(tc.want) {
				t.Errorf("%+v", v)
			}
			changes := false
			for _, c := range v.Commands {
				if args, ok := strings.CutPrefix(c, "kubectl nearflash mode "); ok {
					changes = true
					if code, _, errOut := r.run(append([]string{"mode", "--wait=false"}, strings.Fields(args)...)...); code != 0 {
						t.Errorf("%s: %s", c, errOut)
					}
				}
			}
			if changes != tc.changes {
				t.Errorf("commands: %q", v.Commands)
			}
		})
	}
}

func cvolOf(objs []client.Object, name string) *v1alpha1.CachedVolume {
	for _, o := range objs {
		if cv, ok := o.(*v1alpha1.CachedVolume); ok && cv.Name == name {
			return cv
		}
	}
	return nil
}

// TestAdviseLive: what the node knows now counts, not what it has reported.
func TestAdviseLive(t *testing.T) {
	r, p := liveRig(t, nil)
	p.pods = map[string]program{"plugin-a": measures(t, map[string]int64{"pvc-1": 5})}
	if code, out, errOut := r.run("advise", "-n", "shop", "data"); code != 0 || errOut != "" || !strings.Contains(out, "no node has looked") || p.runs != 1 {
		t.Errorf("%d, %d runs: %s%s", code, p.runs, out, errOut)
	}
}
