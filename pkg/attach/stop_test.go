package attach_test

import (
	"context"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestStopIsNoted: a step whose time ends when it has just removed the devices notes the
// clean stop all the same, and the cache is used again (I4). Repair has five seconds for a
// step, and spends most of them on the flush.
func TestStopIsNoted(t *testing.T) {
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		t.Run(string(mode), func(t *testing.T) {
			l := newLife(t, mode)
			req := l.publish(l.a.name)
			l.must("stage", l.a.Stage(l.ctx, req))
			l.a.podWrites(1, 0, 1, 2)
			l.a.podReads()
			used := func() uint64 {
				s, _, err := l.a.kernel.Client(nil).Status(l.ctx, layout.Device(volumeID, layout.Top))
				l.must("status", err)
				return s.CacheUsed
			}
			before := used()
			ctx, cancel := context.WithCancel(l.ctx)
			defer cancel()
			l.a.UseDM(&endsAfter{Client: l.a.DM, name: layout.Device(volumeID, layout.Origin), end: cancel})
			if err := l.a.Unstage(ctx, volumeID, staging); err == nil {
				t.Error("unstage succeeds although its time has ended")
			}
			l.must("stage", l.a.Stage(l.ctx, req))
			if got := used(); got < before {
				t.Errorf("the cache has %d blocks, it had %d", got, before)
			}
			l.a.podReads()
			l.leave(l.a)
		})
	}
}

// endsAfter ends the caller's time when a device has been removed.
type endsAfter struct {
	devmapper.Client
	name string
	end  func()
}

func (e *endsAfter) Remove(ctx context.Context, name string) error {
	err := e.Client.Remove(ctx, name)
	if name == e.name {
		e.end()
	}
	return err
}
