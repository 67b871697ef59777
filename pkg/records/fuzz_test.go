package records_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// FuzzVolume: whatever an object says, the node reads it without a panic, refuses it
// with ErrInvalid, or makes of it what can be written and read again as the same.
func FuzzVolume(f *testing.F) {
	for _, text := range []string{
		`{}`,
		`{"metadata":{"name":"v","uid":"u"},"spec":{"backend":"iscsi","capacityBytes":1073741824,"cacheMode":"writeback","cacheSize":"10%","acceptDirtyLoss":"node-loss"},
		  "status":{"generation":3,"ownerNode":"a","publication":"Published","dirtyState":"PossiblyDirty","warmSource":{"nodeName":"b","generation":2}}}`,
		`{"spec":{"cacheSize":"-1"}}`, `{"spec":{"cacheSize":"110%"}}`, `{"spec":{"cacheSize":"9223372036854775807Ti"}}`, `{"spec":{"cacheSize":"1e400"}}`,
		`{"spec":{"maxDirtyBytes":"x"}}`, `{"spec":{"maxDirtyBytes":"5%","maxDirtyAgeSeconds":2147483647}}`, `{"spec":{"maxDirtyAgeSeconds":-5}}`,
		`{"spec":{"static":{"portals":[],"lun":-1}}}`, `{"spec":{"static":{"portals":["a\nb"],"iqn":"","lun":2147483647}}}`,
		`{"spec":{"warmStart":{"from":"nowhere","method":"somehow","bandwidthBytesPerSecond":-1,"deadlineSeconds":-1}}}`,
		`{"status":{"generation":-1,"retainedCaches":[{"nodeName":"","generation":0}]}}`,
		`{"metadata":{"deletionTimestamp":"2026-11-21T10:00:00Z"},"spec":{"claimRef":{},"prewarmNode":"b"}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var obj v1alpha1.CachedVolume
		if json.Unmarshal(text, &obj) != nil {
			return
		}
		v, err := records.Volume(&obj)
		if err != nil {
			if !errors.Is(err, volume.ErrInvalid) {
				t.Errorf("error %v is not ErrInvalid", err)
			}
			return
		}
		again, err := records.Spec(records.NewObject(v.ID, v.Spec))
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if diff := cmp.Diff(v.Spec, again); diff != "" {
			t.Errorf("written and read again (-first +again):\n%s", diff)
		}
	})
}
