package attach_test

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestLeaveVanished: the devices of a volume whose origin is gone are left like after a crash, unless
// that would destroy what the journal denies.
func TestLeaveVanished(t *testing.T) {
	for name, denied := range map[string]bool{"as the journal says": false, "the journal denies it": true} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, volume.ModeWriteback)
			h := l.a
			req := l.publish(h.name)
			l.must("stage", h.Stage(l.ctx, req))
			h.podReads()
			h.podWrites(1, 0, 1, 2)
			top := layout.Device(volumeID, layout.Top)
			st, _, err := h.DM.Status(l.ctx, top)
			l.must("status", err)
			if st.Dirty == 0 {
				t.Fatal("nothing is dirty: the test proves nothing")
			}
			l.must("unmount", h.FS.Unmount(l.ctx, staging)) // the pod is gone

			e := h.entry()
			e.Source.CSI = &volume.CSISource{Driver: "other.example", Handle: "h", PV: "pv"}
			e.Clean = denied
			left, err := h.LeaveVanished(l.ctx, e)
			_, there, infoErr := h.DM.Status(l.ctx, top)
			switch {
			case denied && (left || !errors.Is(err, volume.ErrUnavailable) || infoErr != nil || !there):
				t.Errorf("left %t, %v; the cache: %t, %v", left, err, there, infoErr)
			case !denied && (!left || err != nil || infoErr == nil && there):
				t.Errorf("left %t, %v; the cache: %t, %v", left, err, there, infoErr)
			}
			if denied {
				return
			}
			// What is on the SSD is all there, and comes to the origin.
			l.must("stage anew", h.Stage(l.ctx, req))
			h.podReads()
			l.leave(h)
		})
	}
}
