package kubectl_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestScrub(t *testing.T) {
	token := start.Format(time.RFC3339Nano)
	scrubbed := func(corrupted, unjudged int64) func(*v1alpha1.CachedVolume) {
		return func(v *v1alpha1.CachedVolume) {
			v.Status.Scrub = v1alpha1.ScrubStatus{
				Request: token, CompletionTime: before(0), NodeName: "node-a", CheckedBytes: ptr(2 * gib), CorruptedChunks: ptr(corrupted), UnjudgedPieces: ptr(unjudged),
			}
		}
	}
	requested := spec(wt, "10%")
	requested.ScrubRequest = token
	for tc, c := range map[string]changeCase{
		"intact": {
			args:  []string{"scrub", "data"},
			objs:  bound("default", "data", "pvc-1", on("node-a")),
			ticks: []func(*v1alpha1.CachedVolume){dirty(0), scrubbed(0, 0)},
			wantOut: `
data: node node-a compares the cache with the storage server
data: 2Gi compared on node node-a, nothing is corrupted
`,
			wantSpec: requested,
		},
		"corrupted": {
			args:  []string{"scrub", "data"},
			objs:  bound("default", "data", "pvc-1", on("node-a")),
			ticks: []func(*v1alpha1.CachedVolume){scrubbed(3, 2)},
			wantOut: `
data: node node-a compares the cache with the storage server
data: 2Gi compared on node node-a, corrupted chunks: 3; 2 pieces were written to all the time and could not be judged
`,
			wantSpec: requested,
		},
		"corrupted, and what was done": {
			args: []string{"scrub", "data"},
			objs: bound("default", "data", "pvc-1", on("node-a")),
			ticks: []func(*v1alpha1.CachedVolume){func(v *v1alpha1.CachedVolume) {
				scrubbed(3, 0)(v)
				v.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.ConditionCacheIntact, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCacheCorrupted, LastTransitionTime: before(0),
					Message: "node node-a: of 2Gi of the cache, corrupted chunks: 3. Nothing was replaced",
				}}
			}},
			wantOut: `
data: node node-a compares the cache with the storage server
data: node node-a: of 2Gi of the cache, corrupted chunks: 3. Nothing was replaced
`,
			wantSpec: requested,
		},
		"without waiting": {
			args:     []string{"scrub", "data", "--wait=false"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			wantOut:  "data: scrub requested (" + token + ")\n",
			wantSpec: requested,
		},
		"attached nowhere": {
			args:     []string{"scrub", "data"},
			objs:     bound("default", "data", "pvc-1", released("node-a")),
			wantErr:  "error: data: attached nowhere: a cache is compared while its volume is attached, so start a pod with it first\n",
			wantSpec: spec(wt, "10%"),
		},
		"detached meanwhile": {
			args:     []string{"scrub", "data"},
			objs:     bound("default", "data", "pvc-1", on("node-a")),
			ticks:    []func(*v1alpha1.CachedVolume){released("node-a")},
			wantOut:  "data: node node-a compares the cache with the storage server\n",
			wantErr:  "error: data: the volume was detached before its cache was compared; the request stays, and is carried out when it is attached again\n",
			wantSpec: requested,
		},
	} {
		t.Run(tc, c.check)
	}
}
