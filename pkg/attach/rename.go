package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/volume"
)

// deviceNames remembers which devices still have the name that a version before gave
// them (states.md, Names on the host).
type deviceNames struct {
	mu sync.Mutex
	// adopted is true once there is none.
	adopted bool
	// waiting are the names of devices that could not be renamed yet, or may be about to
	// appear, and why.
	waiting map[string]error
}

// AdoptNames gives devices of a version before their names of now. It is called before
// anything else acts; what has to wait is tried again when its volume is worked on, and
// nothing is done to that volume before.
func (a *Attacher) AdoptNames(ctx context.Context) {
	a.names.mu.Lock()
	defer a.names.mu.Unlock()
	if err := a.adoptNames(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Devices of an earlier version keep their names for now")
	}
}

// named returns an error while a device of the volume, or one that has its name, may have
// the name of a version before.
func (a *Attacher) named(ctx context.Context, id volume.ID) error {
	a.names.mu.Lock()
	defer a.names.mu.Unlock()
	if a.names.adopted {
		return nil
	}
	if err := a.adoptNames(ctx); err != nil {
		return err
	}
	for _, name := range slices.Concat(layout.Devices(id), layout.EarlierDevices(id)) {
		if why := a.names.waiting[name]; why != nil {
			return fmt.Errorf("device %s keeps the name of an earlier version for now: %w", name, why)
		}
	}
	return nil
}

// adoptPatience is how long one pass waits for commands that an earlier plugin gave up.
const adoptPatience = time.Second

// adoptNames renames what it can. The caller holds the lock.
func (a *Attacher) adoptNames(ctx context.Context) error {
	keys, err := a.Journal.Keys()
	if err != nil {
		return err
	}
	a.names.waiting = map[string]error{}
	a.awaitEarlier(ctx, keys)
	infos, err := a.DM.Info(ctx, layout.DevicePrefix)
	if err != nil {
		return err
	}
	for _, r := range layout.Renames(infos) {
		if a.names.waiting[r.From] != nil {
			continue
		}
		if err := a.rename(ctx, r); err != nil {
			a.names.waiting[r.From] = err
		}
	}
	a.names.adopted = len(a.names.waiting) == 0
	return nil
}

// awaitEarlier notes the devices that a command of an earlier plugin still works on.
func (a *Attacher) awaitEarlier(ctx context.Context, keys []string) {
	ctx, cancel := context.WithTimeout(ctx, adoptPatience)
	defer cancel()
	for _, key := range keys {
		for _, name := range layout.EarlierDevices(volume.ID(key)) {
			if err := a.DM.Await(ctx, name); err != nil {
				a.names.waiting[name] = err
			}
		}
	}
}

// rename renames a device that is this node's. The journal's format rises first: a plugin
// that knows only the names of before would not find the devices of the entry.
func (a *Attacher) rename(ctx context.Context, r layout.Rename) error {
	e, err := a.load(r.ID)
	switch {
	case errors.Is(err, journal.ErrNewer), errors.Is(err, journal.ErrCorrupt):
		return nil // nothing is done to the volume
	case err != nil:
		return err
	case !e.has(r.Part, r.UID):
		return nil
	}
	if err := a.Journal.Save(string(r.ID), *e); err != nil {
		return fmt.Errorf("journal of volume %s: %w", r.ID, err)
	}
	faultRenameJournaled.Hit()
	if err := a.DM.Rename(ctx, r.From, r.To); err != nil && !errors.Is(err, devmapper.ErrNotExist) {
		return err
	}
	faultRenamed.Hit()
	klog.FromContext(ctx).Info("Device of an earlier version renamed", "volume", r.ID, "from", r.From, "to", r.To)
	return nil
}

// has tells whether the entry speaks of the device of that part and record. Nodes that
// share a kernel (kind) see each other's, and one may lend a cache to the other.
func (e *Entry) has(p layout.Part, uid string) bool {
	switch {
	case e == nil || e.Fence.UID != uid:
		return false
	case p == layout.Lent:
		return e.Lent != nil
	}
	return e.State != StateResident && e.State != StatePrewarm
}
