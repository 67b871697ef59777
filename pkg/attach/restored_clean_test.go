package attach_test

import (
	"maps"
	"os"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestRestoredClean: a record out of a backup shows this very ownership, from before the pod came
// back to its node, and calls it clean. That is nobody's consent: what is on the SSD alone is kept,
// and flushed.
func TestRestoredClean(t *testing.T) {
	for name, tc := range map[string]struct{ lost, spoilt bool }{
		"as it is": {}, "journal lost": {lost: true}, "not readable": {spoilt: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, volume.ModeWriteback)
			l.stay(l.a, 1, 0, 1)
			l.req = l.publish(l.a.name)
			clean := l.record().Status
			l.begin(l.a)
			before := maps.Clone(l.written)
			l.a.podWrites(2, 1, 2)
			l.a.powerLoss()
			l.setBack(clean)
			if tc.lost {
				l.must("lose the journal", os.Remove(l.a.gate.journal))
			}
			l.a.start()
			if tc.spoilt {
				l.a.spoil()
			}
			for range 3 {
				_ = l.a.Repair(l.ctx) // whatever it says: nothing is destroyed
			}
			if !tc.spoilt {
				l.begin(l.a)
				l.a.podReads()
				l.leave(l.a)
				return
			}
			if err := l.a.Stage(l.ctx, l.req); err == nil {
				t.Error("the volume was staged without its writes")
			}
			if e, dirty := l.a.entry(), l.record().Status.DirtyState; !e.MayBeDirty() || dirty != v1alpha1.DirtyStatePossiblyDirty {
				t.Errorf("the journal says %+v, the record %s", e, dirty)
			}
			l.abandon()
			l.written = before
			l.begin(l.a)
			l.a.podReads()
			l.leave(l.a)
		})
	}
}
