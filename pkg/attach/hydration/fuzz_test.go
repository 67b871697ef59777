package hydration

import (
	"encoding/json"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// FuzzDecide: whatever stands in the journal, the table decides without a panic, and no copy is
// called whole that is not.
func FuzzDecide(f *testing.F) {
	for _, text := range []string{
		`{}`, `{"id":"v","state":"Staged","mode":"writeback","hydration":{"regionSectors":0}}`,
		`{"id":"v","state":"Staged","mode":"writethrough","hydration":{"regionSectors":64,"peer":{}}}`, `{"id":"v","state":"Wiping","hydration":{}}`,
	} {
		for flags := range uint16(64) {
			f.Add([]byte(text), flags, uint64(flags), uint64(40))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, flags uint16, hydrated, regions uint64) {
		var e state.Entry
		if json.Unmarshal(text, &e) != nil {
			return
		}
		on := func(bit uint) bool { return flags>>bit&1 == 1 }
		got := decide(facts{
			Entry: &e, Clone: on(0), OnOrigin: on(1), PathFailed: on(2), Expired: on(3), SourceStopped: on(4), OverBudget: on(5), Settling: on(6),
			Status: devmapper.CloneStatus{Hydrated: hydrated, Regions: regions, Fail: on(7), Silent: on(8)},
		})
		if got == stepSwap && (hydrated != regions || !on(0) || on(7) || on(8)) || got == stepSweep {
			t.Errorf("step %s with %d of %d regions, flags %b", got, hydrated, regions, flags)
		}
	})
}
