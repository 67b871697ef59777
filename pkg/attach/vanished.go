package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// leaveTimeout bounds the removal of devices over an origin that has vanished: the call's own time
// went to it.
const leaveTimeout = 10 * time.Second

// leaveVanished removes the devices of a volume over another driver's, if the kernel does not have the
// origin's device any more: whatever comes back has another number, and nothing is written to that
// one. What is on the SSD stays, as after a crash (states.md, An origin that vanishes). left is false
// if there is nothing to remove, the origin is there, or the cache needs it no more.
// Errors: ErrInUse if the volume is mounted, or a pod has it open; ErrUnavailable if the cache has
// what the journal denies, and what comes after a crash would destroy.
func (a *Attacher) leaveVanished(ctx context.Context, e *state.Entry) (left bool, err error) {
	if e == nil || e.Source.CSI == nil || !needsOrigin[e.State] {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	vanished, err := a.vanished(ctx, e)
	if err != nil || !vanished {
		return false, err
	}
	if err := a.denied(ctx, e); err != nil {
		return false, err
	}
	klog.FromContext(ctx).Info("The origin's device is gone, and the volume's devices are removed; what the SSD has stays", "volume", e.ID)
	if err := a.leases.End(ctx, e); err != nil {
		return false, err
	}
	if err := a.streams.Stop(ctx, e.ID); err != nil {
		return false, err
	}
	if err := a.stack.RemoveDevices(ctx, e.ID); err != nil {
		return false, fmt.Errorf("devices of volume %s, whose origin is gone: %w", e.ID, err)
	}
	return true, nil
}

// needsOrigin are the states in which the cache is not yet what is kept of it.
var needsOrigin = map[state.State]bool{state.Staging: true, state.Staged: true, state.Flushing: true}

// denied is an error if the live cache has unflushed writes under a journal that says that there are
// none (states.md, A dirty block under a journal that denies it).
func (a *Attacher) denied(ctx context.Context, e *state.Entry) error {
	st, found, err := a.DM.Status(ctx, layout.Device(e.ID, layout.Top))
	switch {
	case errors.Is(err, devmapper.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found && st.Dirty > 0 && !e.MayBeDirty():
		return fmt.Errorf("%w: the origin of volume %s is gone, and its cache has %d unflushed blocks that the journal denies: a restart of the node loses them", volume.ErrUnavailable, e.ID, st.Dirty)
	}
	return nil
}

// vanished reports whether the device of a volume's origin is one of which the kernel has nothing left
// but what holds it open.
func (a *Attacher) vanished(ctx context.Context, e *state.Entry) (bool, error) {
	parts, err := a.stack.Parts(ctx, e.ID)
	if err != nil {
		return false, err
	}
	if _, there := parts[layout.Origin]; !there {
		return false, nil
	}
	below, err := a.DM.Deps(ctx, layout.Device(e.ID, layout.Origin))
	if err != nil {
		return false, err
	}
	for _, devno := range below {
		if there, err := blockdev.Exists(a.Sysfs, devno); there || err != nil {
			return false, err
		}
	}
	return len(below) > 0, nil
}
