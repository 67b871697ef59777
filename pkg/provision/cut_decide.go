package provision

import (
	"fmt"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/volume"
)

// bugCutUndrained is a defect that a test puts in: a volume is cut before its node has flushed
// what it alone has.
var bugCutUndrained = faultpoint.NewBug("cut-undrained")

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
	// the storage server, for this clone if for one. Another one may be out of a backup.
	Ours bool
	// Lost is gathered for the node of a published volume: Kubernetes does not hear of it.
	Lost bool
	// Clone is the mark of the clone that the cut is for, "" for a snapshot.
	Clone string
	// UsedOn is a node that says that it uses a volume which its record shows as published
	// nowhere, "" if none does.
	UsedOn string
	// Answers is true if the last owner of such a volume can be asked what it has of it, and has
	// to be: what the record says may be of before a restore of etcd.
	Answers bool
	// Mute says why that owner cannot be asked now, "" if nothing is known against it.
	Mute string
	// Admitted is true while the storage admits anybody.
	Admitted bool
	// Filesystem is what the record says of the content.
	Filesystem volume.Formatted
	// Freeze is true if the filesystem is to be frozen while the volume is cut.
	Freeze bool
}

// cutStep is one step of the table "Snapshots and clones" in states.md.
type cutStep string

const (
	// cutAnswer: the cut is the answer, and the hold of its name ends.
	cutAnswer cutStep = "Answer"
	cutHold   cutStep = "Hold"
	// cutDiscard deletes what was accepted for an earlier clone of the name.
	cutDiscard cutStep = "Discard"
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

// asked reports whether a node is asked for a flush before the cut.
func (f *cutFacts) asked() bool { return f.Record.Published || f.Answers }

// answered reports whether the node that was asked under this process's own hold has answered.
func (f *cutFacts) answered() bool {
	h := f.Record.Hold
	return h != nil && f.Ours && f.Record.FlushDone == h.Token
}

// mayAsk reports whether a flush may be asked for: one that somebody waits for, of a node that
// has the volume, is left to its end.
func (f *cutFacts) mayAsk() bool { return !f.Record.Published || !f.Record.FlushPending() }

// decideCut is that table, in its order. Errors: ErrExists, ErrNotFound, ErrBusy, ErrFenced.
func decideCut(f cutFacts) (cutStep, error) {
	c, r := f.Cut, f.Record
	switch {
	case c != nil && c.Volume != f.Volume:
		return "", fmt.Errorf("%w: snapshot %s is of volume %s, asked for was one of %s", volume.ErrExists, f.Name, c.Volume, f.Volume)
	case c != nil && c.Accepted && f.Clone != "" && f.Clone != markIn(c.Hold):
		return cutDiscard, nil
	case c != nil && c.Accepted:
		return cutAnswer, nil
	case r == nil:
		return "", fmt.Errorf("%w: CachedVolume %s", volume.ErrNotFound, f.Volume)
	case r.Deleting:
		return "", fmt.Errorf("%w: volume %s is being deleted", volume.ErrBusy, f.Volume)
	case r.PossiblyDirty && (!r.Published || f.Lost):
		return "", fmt.Errorf("%w: node %s may hold unflushed writes of volume %s, and cannot be asked for them now: bring the node back so that it flushes them", volume.ErrFenced, r.Fence.Node, f.Volume)
	case f.UsedOn != "":
		return "", fmt.Errorf("%w: the record of volume %s shows it as published nowhere, but node %s uses it (was etcd restored from a backup?): stop the volume's pods there; it can be cut when the node has unmounted it", volume.ErrFenced, f.Volume, f.UsedOn)
	case r.Hold != nil && r.Hold.Name != f.Name:
		return "", fmt.Errorf("%w: volume %s is held for %s", volume.ErrBusy, f.Volume, r.Hold.Name)
	case f.Mute != "" && !f.answered():
		return "", fmt.Errorf("%w: volume %s cannot be cut while it is detached: node %s, which had it last, has to say whether it has anything of it that is not written, and cannot: %s. Mend that; or have the volume cut while a pod uses it", volume.ErrFenced, f.Volume, r.Fence.Node, f.Mute)
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
	case r.Hold.Freeze != "" && f.report() != volume.FreezeNoFilesystem:
		return decideFrozen(f), nil
	case f.Freeze && r.Hold.Freeze == "" && (f.report() == volume.FreezeFailed || r.Published && c != nil):
		return cutUnfrozen, nil
	case c != nil && c.Done && c.Filesystem != f.Filesystem:
		// It was formatted meanwhile, before or after the cut.
		return cutDrop, nil
	case c != nil && c.Done:
		return cutAccept, nil
	case c != nil:
		return cutCut, nil
	case bugCutUndrained.On():
		return cutCut, nil
	case r.PossiblyDirty:
		return cutWait, nil
	case r.Published && r.FlushDone != r.Hold.Token && f.Lost:
		return "", fmt.Errorf("%w: node %s has volume %s, and cannot be asked to flush it now", volume.ErrFenced, r.Fence.Node, f.Volume)
	case f.asked() && r.FlushDone != r.Hold.Token:
		if r.FlushRequest != r.Hold.Token && f.mayAsk() {
			return cutFlush, nil
		}
		return cutWait, nil
	case !r.Published && f.Admitted:
		return cutSettle, nil
	case f.Freeze && r.Published && r.Hold.Freeze == "":
		return cutFreeze, nil
	}
	return cutCut, nil
}
