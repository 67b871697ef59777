package attach

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// leaving are the volumes of which something lies on a device that is to leave the pool. While LVM
// does not say, nothing leaves.
func (a *Attacher) leaving(ctx context.Context) map[volume.ID]bool {
	out, err := a.ssd.OnLeaving(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "What lies on devices that are to leave the pool is not known")
	}
	return out
}

// Evacuate evicts the retained caches and the prewarmed data that lie on devices which are to leave
// the pool, but for those whose volume somebody works on (states.md, A device leaves the pool).
// Change leads the caches of attached volumes away.
func (a *Attacher) Evacuate(ctx context.Context) error {
	leaving, err := a.ssd.OnLeaving(ctx)
	if err != nil || len(leaving) == 0 {
		return err
	}
	retained, err := a.retained("")
	if err != nil {
		return err
	}
	var problems []error
	for i := range retained {
		if leaving[retained[i].ID] && a.idle(retained[i:i+1]) != nil {
			problems = append(problems, a.evict(ctx, &retained[i]))
		}
	}
	return errors.Join(problems...)
}

// Left implements pool.Caches.
func (a *Attacher) Left(ctx context.Context, lvs []string) []volume.LeftCache {
	var out []volume.LeftCache
	seen := map[volume.ID]bool{}
	for _, name := range lvs {
		ids := layout.IDs([]lvm.LV{{Name: name}})
		if len(ids) == 0 {
			out = append(out, volume.LeftCache{Name: name, Waits: true, Why: "a logical volume that is of no cache"})
			continue
		}
		if id := ids[0]; !seen[id] {
			seen[id] = true
			l := volume.LeftCache{Name: string(id)}
			l.Why, l.Waits = leftOf(a.leftFacts(ctx, id))
			out = append(out, l)
		}
	}
	return out
}

// leftFacts are what leftOf rests on.
type leftFacts struct {
	// Entry is nil if there is none; Unreadable is true if nobody knows.
	Entry      *state.Entry
	Unreadable bool
	// SameBoot is true when the entry was written by the running kernel.
	SameBoot bool
	// Kept is true if unflushed writes wait for an administrator.
	Kept bool
	// Broken says how the live cache fails, or is empty.
	Broken string
}

func (a *Attacher) leftFacts(ctx context.Context, id volume.ID) leftFacts {
	e, err := a.load(id)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Journal entry of a cache on a device that leaves the pool cannot be read", "volume", id)
	}
	return leftFacts{Entry: e, Unreadable: err != nil, SameBoot: e != nil && e.Boot == a.Boot, Kept: a.keeps.has(id), Broken: a.cacheFaults.Why(id)}
}

// leftOf says what becomes of a cache on a device that is to leave the pool, by the table of states.md,
// and whether it waits for something.
func leftOf(f leftFacts) (why string, waits bool) {
	e := f.Entry
	switch {
	case f.Kept:
		return "its unflushed writes wait for an administrator: kubectl nearflash doctor", true
	case f.Unreadable:
		return "its journal entry cannot be read", true
	case e == nil:
		return "nobody knows it, and it is wiped unless it may have unflushed writes", false
	}
	switch e.State {
	case state.Staged:
		return leftStaged(f)
	case state.Staging:
		return "the volume is being attached", true
	case state.Flushing, state.Flushed, state.Releasing:
		if e.MayBeDirty() {
			return "its unflushed writes are being written to the storage server, as the volume is detached", true
		}
		return "the volume is being detached", true
	case state.Retained:
		if e.Exported != nil {
			return "a retained cache, which another node reads", true
		}
		return "a retained cache, which is evicted", false
	case state.Prewarmed:
		return "prewarmed data, which are evicted", false
	case state.Wiping:
	}
	return "it is being wiped", false
}

// leftStaged is leftOf for a volume that is, or was, in use.
func leftStaged(f leftFacts) (why string, waits bool) {
	e := f.Entry
	switch {
	case !f.SameBoot && e.MayBeDirty():
		return "its unflushed writes of before the node's restart are written to the storage server first", true
	case !f.SameBoot:
		return "a cache of before the node's restart, which is wiped", false
	case e.Lost != nil:
		return "its LUN is somebody else's, and it goes when the volume is detached", true
	case e.ReadOnly:
		return "a reader's cache, which goes when the volume is detached here", true
	case f.Broken != "":
		return "the cache fails (" + f.Broken + "), and goes when the volume is detached", true
	case e.MayBeDirty():
		return "its unflushed writes are written to the storage server, then it is made anew on the other devices", false
	}
	return "it is made anew on the other devices", false
}
