package attach

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// adoptTimeout bounds the renames at the start; what is left is renamed when its volume is
// worked on.
const adoptTimeout = 30 * time.Second

// AdoptNames gives the devices of a version before their names of now, and waits for nobody.
// It is called before anything else acts: what watches attached volumes looks for devices
// by their names.
func (a *Attacher) AdoptNames(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	log := klog.FromContext(ctx)
	infos, err := a.DM.Info(ctx, layout.DevicePrefix)
	if err != nil {
		log.Error(err, "Devices of an earlier version were not looked for")
		return
	}
	renames := layout.Renames(infos)
	for _, id := range slices.Sorted(maps.Keys(renames)) {
		if err := a.adoptNames(ctx, id, renames[id]); err != nil {
			log.Error(err, "Devices of an earlier version keep their names for now", "volume", id)
		}
	}
}

func (a *Attacher) adoptNames(ctx context.Context, id volume.ID, renames []layout.Rename) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil // whoever has it does the same
	}
	defer unlock()
	e, err := a.load(id)
	if err != nil || e == nil {
		return err
	}
	return a.rename(ctx, id, e, renames)
}

// settleNames is adoptNames for a step that works on the volume and has its lock. Commands
// that might make a device under an earlier name have ended.
func (a *Attacher) settleNames(ctx context.Context, id volume.ID, e *state.Entry) error {
	infos, err := a.DM.Info(ctx, layout.Device(id, layout.Top)) // all names begin with it
	if err != nil {
		return err
	}
	if err := a.rename(ctx, id, e, layout.Renames(infos)[id]); err != nil {
		return err
	}
	a.named.Store(id, nil)
	return nil
}

// rename renames those of the devices that are the volume's here. The journal's format
// rises first: a plugin that knows only the names of before would not find the devices of
// the entry.
func (a *Attacher) rename(ctx context.Context, id volume.ID, e *state.Entry, renames []layout.Rename) error {
	renames = slices.DeleteFunc(renames, func(r layout.Rename) bool { return !e.MayHave(r.Part) })
	if len(renames) == 0 {
		return nil
	}
	if e != nil {
		if err := a.write(ctx, e); err != nil {
			return err
		}
	}
	faultRenameJournaled.Hit()
	for _, r := range renames {
		if err := a.DM.Rename(ctx, r.From, r.To); err != nil && !errors.Is(err, devmapper.ErrNotExist) {
			return err
		}
		faultRenamed.Hit()
		klog.FromContext(ctx).Info("Device of an earlier version renamed", "volume", id, "from", r.From, "to", r.To)
	}
	return nil
}
