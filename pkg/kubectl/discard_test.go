package kubectl_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// TestDiscard: what would be lost is said, and nothing is given up without consent, or that
// the node does not keep.
func TestDiscard(t *testing.T) {
	const said = "node node-a keeps unflushed writes of volume pvc-lost, generation 4 (UID u-lost), on a cache of 2Gi: the volume has no record\n"
	word := []v1alpha1.DeletedVolume{{VolumeName: "pvc-lost", VolumeUID: "u-lost", Generation: ptr(int64(4))}}
	for tc, c := range map[string]struct {
		args             []string
		wantOut, wantErr string
		wantDeleted      []v1alpha1.DeletedVolume
	}{
		"with consent": {
			args:    []string{"discard", "node-a", "pvc-lost", "--accept-data-loss"},
			wantOut: said + "the writes are abandoned: the node wipes the cache within a minute\n", wantDeleted: word,
		},
		"by the name of its record": {
			args:    []string{"discard", "node-a", "cvol/pvc-lost", "--accept-data-loss", "-o", "name"},
			wantOut: "cachepool.nearflash.io/node-a\n", wantErr: said + "the writes are abandoned: the node wipes the cache within a minute\n", wantDeleted: word,
		},
		"without consent": {
			args: []string{"discard", "node-a", "pvc-lost"}, wantOut: said,
			wantErr: "error: acknowledged writes would be lost: add --accept-data-loss if nobody wants them\n",
		},
		"not kept": {
			args: []string{"discard", "node-a", "pvc-1", "--accept-data-loss"}, wantOut: "node node-a keeps no unflushed writes of volume pvc-1\n",
		},
		"no such node": {
			args:    []string{"discard", "node-x", "pvc-1", "--accept-data-loss"},
			wantErr: "error: node node-x has no CachePool: `kubectl nearflash pools` lists those there are, `kubectl nearflash doctor` says what is wrong on a node\n",
		},
		"no volume": {
			args:    []string{"discard", "node-a", "--accept-data-loss"},
			wantErr: "error: discard takes the name of a node and that of a volume: `kubectl nearflash doctor` lists what nodes keep\n",
		},
		"no name of a volume": {
			args:    []string{"discard", "node-a", "pv/x"},
			wantErr: "error: \"pv/x\" does not name a volume: `kubectl nearflash doctor` lists what nodes keep\n",
		},
	} {
		t.Run(tc, func(t *testing.T) {
			r := newRig(t, pool("node-a", keeping("pvc-lost", "pvc-other")))
			code, out, errOut := r.run(c.args...)
			expect(t, "output", out, c.wantOut)
			expect(t, "errors", errOut, c.wantErr)
			if failed := c.wantErr != "" && c.wantDeleted == nil; (code != 0) != failed {
				t.Errorf("exit status %d", code)
			}
			var got v1alpha1.CachePool
			if err := r.client.Get(t.Context(), client.ObjectKey{Name: "node-a"}, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.wantDeleted, got.Status.Deleted); diff != "" {
				t.Errorf("the node is told (-want +got):\n%s", diff)
			}
		})
	}
}
