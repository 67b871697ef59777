package attach_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestStreamHandedOver: the old node is shut down while its cache is sent. What was not sent comes
// from the origin, the pod waits for nothing, and the old node keeps no lease.
func TestStreamHandedOver(t *testing.T) {
	for _, mode := range cacheModes[1:] {
		t.Run(string(mode), func(t *testing.T) {
			l := newStreamLife(t, mode, "")
			l.stay(l.a, 1, 0, 1, 2, 3, 4, 5)
			l.arrive(l.b)
			move := l.b.entry().Hydration.Move
			handed := make(chan error, 1)
			l.b.meanwhile = func() {
				go func() { handed <- l.a.handOver(t, move) }()
				for range 60_000 {
					if l.a.sends.over(move) {
						return
					}
					time.Sleep(time.Millisecond)
				}
				t.Error("the lease does not end")
			}
			l.step(l.b)
			if err := <-handed; err != nil {
				t.Fatalf("the old node: %v", err)
			}
			if e := l.a.entry(); e == nil || e.State != state.Retained || e.Exported != nil || e.StreamedTo != "" {
				t.Errorf("the old node's journal: %+v", e)
			}
			l.podReads(l.b)
			l.b.podWrites(2, 1)
			l.hydration(l.b, l.a, wholeHydration)
			if c := l.b.cacheOf(layout.Top); c == nil || c.Policy != devmapper.PolicySMQ {
				t.Errorf("what was streamed does not serve: %+v", c)
			}
			l.left()
		})
	}
}

// handOver gives a lease up as a node does that is shut down: nobody is waited for.
func (h *host) handOver(t *testing.T, m volume.MoveID) error {
	lessor := h.plugin.Lessor()
	if used, err := lessor.InUse(t.Context(), volumeID); used || err != nil {
		t.Errorf("a session is waited for: %t, %v", used, err)
	}
	for range 60_000 {
		err := lessor.EndLease(t.Context(), volumeID, m)
		// What is being read ends first.
		if !errors.Is(err, volume.ErrBusy) && !errors.Is(err, volume.ErrInUse) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("what is being read does not end")
}
