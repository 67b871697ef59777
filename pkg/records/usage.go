package records

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ReportCache replaces status.cache of a volume by what its owner measured; nil
// clears it, which is success too if there is no such record or another node owns
// it meanwhile. While the volume may be dirty, what was last known of its unflushed
// writes stays: a node that cannot read its cache does not know better.
//
// Errors: ErrFenced if another node than the one that reports owns the volume;
// ErrNotFound, ErrUnavailable.
func (r *Records) ReportCache(ctx context.Context, id volume.ID, node string, st *v1alpha1.CacheStatus) error {
	err := UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		switch owner := obj.Status.OwnerNode; {
		case owner == node:
			obj.Status.Cache = reported(obj, st)
		case owner == volume.Readers: // there is one place for what each of them would say
		case st != nil:
			return fmt.Errorf("%w: CachedVolume %s is owned by node %q, not by %q", volume.ErrFenced, id, owner, node)
		}
		return nil
	})
	if st == nil && errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// reported is status.cache after the owner's report.
func reported(obj *v1alpha1.CachedVolume, st *v1alpha1.CacheStatus) v1alpha1.CacheStatus {
	old := obj.Status.Cache
	known := obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty && old.DirtyBytes != nil
	switch {
	case st == nil && known:
		return old
	case st == nil:
		return v1alpha1.CacheStatus{}
	}
	out := *st
	if known && st.DirtyBytes == nil {
		out.DirtyBytes, out.DirtySinceTime, out.ObservedTime = old.DirtyBytes, old.DirtySinceTime, old.ObservedTime
	}
	if out.DirtyBytes != nil {
		out.Dirty = quantity.Text(*out.DirtyBytes)
	}
	return out
}
