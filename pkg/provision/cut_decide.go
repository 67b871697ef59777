package provision

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cutFacts are what decideCut rests on. The cut was looked for before the record was read.
type cutFacts struct {
	// Name is that of the cut, Volume what it is to be made of.
	Name   volume.SnapshotID
	Volume volume.ID
	// Cut is nil if there is none of the name.
	Cut *backend.Cut
	// Record is nil if there is none.
	Record *volume.Volume
	// Ours is true if this process has put the record's hold there, since the last takeover of
	// the storage server. Another one may be out of a backup.
	Ours bool
	// Lost is gathered for the node of a published volume: Kubernetes does not hear of it.
	Lost bool
	// Admitted is true while the storage admits anybody.
	Admitted bool
	// Filesystem is what the record says of the content.
	Filesystem volume.Formatted
}

// cutStep is one step of the table "Snapshots and clones" in states.md.
type cutStep string

const (
	// cutAnswer: the cut is the answer, and the hold of its name ends.
	cutAnswer cutStep = "Answer"
	cutHold   cutStep = "Hold"
	// cutDrop deletes a cut of which nobody knows whether its hold lasted.
	cutDrop   cutStep = "Drop"
	cutAccept cutStep = "Accept"
	cutCut    cutStep = "Cut"
	// cutFlush asks for the flush of this hold again.
	cutFlush cutStep = "Flush"
	// cutSettle ends the access of whoever is admitted to a volume that is published nowhere.
	cutSettle cutStep = "Settle"
	// cutWait: the node is at it.
	cutWait cutStep = "Wait"
)

// decideCut is that table, in its order. Errors: ErrExists, ErrNotFound, ErrBusy, ErrFenced.
func decideCut(f cutFacts) (cutStep, error) {
	c, r := f.Cut, f.Record
	switch {
	case c != nil && c.Volume != f.Volume:
		return "", fmt.Errorf("%w: snapshot %s is of volume %s, asked for was one of %s", volume.ErrExists, f.Name, c.Volume, f.Volume)
	case c != nil && c.Accepted:
		return cutAnswer, nil
	case r == nil:
		return "", fmt.Errorf("%w: CachedVolume %s", volume.ErrNotFound, f.Volume)
	case r.Deleting:
		return "", fmt.Errorf("%w: volume %s is being deleted", volume.ErrBusy, f.Volume)
	case r.PossiblyDirty && (!r.Published || f.Lost):
		return "", fmt.Errorf("%w: node %s may hold unflushed writes of volume %s, and cannot be asked for them now: bring the node back so that it flushes them", volume.ErrFenced, r.Fence.Node, f.Volume)
	case r.Hold != nil && r.Hold.Name != f.Name:
		return "", fmt.Errorf("%w: volume %s is held for %s", volume.ErrBusy, f.Volume, r.Hold.Name)
	case r.Hold == nil, !f.Ours:
		return cutHold, nil
	}
	return decideHeld(f)
}

// decideHeld decides for a volume that is held for the cut.
func decideHeld(f cutFacts) (cutStep, error) {
	c, r := f.Cut, f.Record
	switch {
	case c != nil && c.Hold != r.Hold.Token:
		return cutDrop, nil
	case c != nil && c.Done && c.Filesystem != f.Filesystem:
		// It was formatted meanwhile, before or after the cut.
		return cutDrop, nil
	case c != nil && c.Done:
		return cutAccept, nil
	case c != nil:
		return cutCut, nil
	case r.PossiblyDirty:
		return cutWait, nil
	case r.Published && r.FlushDone != r.Hold.Token && f.Lost:
		return "", fmt.Errorf("%w: node %s has volume %s, and cannot be asked to flush it now", volume.ErrFenced, r.Fence.Node, f.Volume)
	case r.Published && r.FlushDone != r.Hold.Token:
		// A flush that somebody else waits for is left to its end.
		if r.FlushRequest != r.Hold.Token && !r.FlushPending() {
			return cutFlush, nil
		}
		return cutWait, nil
	case !r.Published && f.Admitted:
		return cutSettle, nil
	}
	return cutCut, nil
}
