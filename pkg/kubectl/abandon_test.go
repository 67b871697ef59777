package kubectl_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// TestDescribeAbandoned: what was given up is shown, and nothing that contradicts it.
func TestDescribeAbandoned(t *testing.T) {
	objs := bound("shop", "data", "pvc-1", writeback, on("node-b"), func(v *v1alpha1.CachedVolume) {
		v.Status.DirtyState = v1alpha1.DirtyStateClean
		v.Status.Abandoned = []v1alpha1.AbandonedWrites{
			{
				Generation: 1, NodeName: "node-z", Consent: v1alpha1.LossConsent{Time: before(time.Hour), By: "alice"},
				LastSeen: v1alpha1.LastSeenWrites{ObservedTime: before(2 * time.Hour), SinceTime: before(3 * time.Hour)},
				Told:     v1alpha1.ToldPod{Time: before(time.Minute), Namespace: "shop", Name: "db-0"},
			},
			{Generation: 2, NodeName: "node-a", Consent: v1alpha1.LossConsent{Time: before(2 * time.Minute)}},
		}
	})
	r := newRig(t, append(objs, node("node-b", true))...)
	code, out, errOut := r.run("describe", "cvol/pvc-1")
	if code != 0 {
		t.Fatal(errOut)
	}
	for _, want := range []string{
		"unflushed writes of generation 1 on node node-z, 60m ago by alice, none of them older than 3h; pod shop/db-0 was told\n",
		"unflushed writes of generation 2 on node node-a, 2m ago; no pod was told yet\n",
		"  - Writes were abandoned and may be lost; of all others the storage server has every acknowledged one",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output has no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "The storage server has every acknowledged write") {
		t.Errorf("output contradicts itself:\n%s", out)
	}
}

func TestAbandon(t *testing.T) {
	lost := bound("default", "data", "pvc-1", writeback, released("node-a"))
	onNode := func(ready bool) []client.Object { return append(cloned(lost), node("node-a", ready)) }
	for tc, c := range map[string]struct {
		args             []string
		objs             []client.Object
		wantOut, wantErr string
		wantDirty        v1alpha1.DirtyState
		// wantLoss goes on record; its generation and node are those of lost.
		wantLoss *v1alpha1.AbandonedWrites
	}{
		"node lost": {
			args: []string{"abandon", "data", "--accept-data-loss"}, objs: onNode(false), wantLoss: abandoned("--accept-data-loss", nil),
			wantOut: `
data: unflushed writes of generation 3 on node node-a, which is not Ready since 20m
data: the writes are abandoned: the volume goes on with what the storage server has; check its filesystem before you trust it
`,
			wantDirty: v1alpha1.DirtyStateClean,
		},
		"node not in the cluster": {
			args: []string{"abandon", "cvol/pvc-1", "--accept-data-loss"}, objs: lost, wantLoss: abandoned("--accept-data-loss", nil),
			wantOut: `
data: unflushed writes of generation 3 on node node-a, which is not in the cluster
data: the writes are abandoned: the volume goes on with what the storage server has; check its filesystem before you trust it
`,
			wantDirty: v1alpha1.DirtyStateClean,
		},
		"without consent": {
			args: []string{"abandon", "data"}, objs: onNode(false),
			wantOut:   "data: unflushed writes of generation 3 on node node-a, which is not Ready since 20m\n",
			wantErr:   "error: data: acknowledged writes would be lost: add --accept-data-loss if they cannot come back\n",
			wantDirty: v1alpha1.DirtyStatePossiblyDirty,
		},
		"node Ready": {
			args: []string{"abandon", "data", "--accept-data-loss"}, objs: onNode(true),
			wantOut:   "data: unflushed writes of generation 3 on node node-a, which is Ready\n",
			wantErr:   "error: data: node node-a is Ready and flushes by itself: see `kubectl nearflash doctor` if it does not; add --force only if its SSD is lost\n",
			wantDirty: v1alpha1.DirtyStatePossiblyDirty,
		},
		"node Ready, SSD lost": {
			args: []string{"abandon", "data", "--accept-data-loss", "--force"}, objs: onNode(true), wantLoss: abandoned("--accept-data-loss --force", nil),
			wantOut: `
data: unflushed writes of generation 3 on node node-a, which is Ready
data: the writes are abandoned: the volume goes on with what the storage server has; check its filesystem before you trust it
`,
			wantDirty: v1alpha1.DirtyStateClean,
		},
		"in use": {
			args: []string{"abandon", "data", "--accept-data-loss", "--force"},
			objs: append(bound("default", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib)), node("node-a", true), userPod("default", "db-0", "data", "node-a")),
			wantOut: `
data: unflushed writes of generation 3 on node node-a, which is Ready; 12s ago 512Mi were dirty
`,
			wantErr:   "error: data: pod db-0 runs with the volume on node node-a, which would go on writing: delete the pod, or use `kubectl nearflash flush -n default data`\n",
			wantDirty: v1alpha1.DirtyStatePossiblyDirty,
		},
		"something was dirty": {
			args: []string{"abandon", "data", "--accept-data-loss"},
			objs: append(bound("default", "data", "pvc-1", writeback, on("node-a"), dirty(512*mib)), node("node-a", false)),
			wantOut: `
data: unflushed writes of generation 3 on node node-a, which is not Ready since 20m; 12s ago 512Mi were dirty
data: the writes are abandoned: the volume goes on with what the storage server has; check its filesystem before you trust it
`,
			wantDirty: v1alpha1.DirtyStateClean,
			wantLoss:  abandoned("--accept-data-loss", &v1alpha1.LastSeenWrites{ObservedTime: before(12 * time.Second), DirtyBytes: ptr(512 * mib), SinceTime: before(40 * time.Second)}),
		},
		"nothing was dirty when it was last seen": {
			args: []string{"abandon", "data", "--accept-data-loss"},
			objs: append(bound("default", "data", "pvc-1", writeback, on("node-a")), node("node-a", false)),
			wantOut: `
data: unflushed writes of generation 3 on node node-a, which is not Ready since 20m; 12s ago 0 were dirty
data: the writes are abandoned: the volume goes on with what the storage server has; check its filesystem before you trust it
`,
			wantDirty: v1alpha1.DirtyStateClean,
			// What is lost was written after the node was last heard of.
			wantLoss: abandoned("--accept-data-loss", &v1alpha1.LastSeenWrites{ObservedTime: before(12 * time.Second), DirtyBytes: ptr(int64(0)), SinceTime: before(12 * time.Second)}),
		},
		"nothing to give up": {
			args: []string{"abandon", "data"}, objs: bound("default", "data", "pvc-1", on("node-a")),
			wantOut:   "data: there is nothing to abandon: the storage server has every write\n",
			wantDirty: v1alpha1.DirtyStateClean,
		},
	} {
		t.Run(tc, func(t *testing.T) {
			r := newRig(t, cloned(c.objs)...)
			code, out, errOut := r.run(c.args...)
			expect(t, "output", out, c.wantOut)
			expect(t, "errors", errOut, c.wantErr)
			if (code == 0) != (c.wantErr == "") {
				t.Errorf("exit status %d", code)
			}
			if got := r.record("pvc-1").Status.DirtyState; got != c.wantDirty {
				t.Errorf("dirtyState %s, want %s", got, c.wantDirty)
			}
			var want []v1alpha1.AbandonedWrites
			if c.wantLoss != nil {
				want = append(want, *c.wantLoss)
			}
			if diff := cmp.Diff(want, r.record("pvc-1").Status.Abandoned, equateTimes); diff != "" {
				t.Errorf("on record (-want +got):\n%s", diff)
			}
		})
	}
}

// equateTimes compares instants: the API keeps no time zone.
var equateTimes = cmp.Comparer(func(a, b metav1.Time) bool { return a.Equal(&b) })

// abandoned is what goes on record of the writes of generation 3 on node-a.
func abandoned(given string, seen *v1alpha1.LastSeenWrites) *v1alpha1.AbandonedWrites {
	a := &v1alpha1.AbandonedWrites{Generation: 3, NodeName: "node-a", Consent: v1alpha1.LossConsent{Time: before(0), Given: given}}
	if seen != nil {
		a.LastSeen = *seen
	}
	return a
}

// TestAbandonKeepsTheNewest: the bound of the list drops the oldest, not the newest.
func TestAbandonKeepsTheNewest(t *testing.T) {
	objs := bound("default", "data", "pvc-1", writeback, released("node-a"), func(v *v1alpha1.CachedVolume) {
		for g := range int64(v1alpha1.MaxAbandoned) {
			v.Status.Abandoned = append(v.Status.Abandoned, v1alpha1.AbandonedWrites{Generation: 10 + g, NodeName: "node-z", Consent: v1alpha1.LossConsent{Time: before(time.Hour)}})
		}
	})
	r := newRig(t, objs...)
	if code, _, errOut := r.run("abandon", "data", "--accept-data-loss"); code != 0 {
		t.Fatal(errOut)
	}
	got := r.record("pvc-1").Status.Abandoned
	if len(got) != v1alpha1.MaxAbandoned || got[0].Generation != 11 || got[len(got)-1].Generation != 3 {
		t.Errorf("%d on record: %+v", len(got), got)
	}
}
