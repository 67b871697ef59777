package backend

import (
	"context"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// CutRequest says under what a volume is cut.
type CutRequest struct {
	// Hold is the token of the hold under which the cut is made, 1 to 255 letters, digits and
	// hyphens. It is kept with the cut.
	Hold string
	// Filesystem is what the record says of the volume's content, for what is made from the cut.
	Filesystem volume.Formatted
	// Class is the VolumeSnapshotClass of the other driver, with a backend that is one; "" is
	// that driver's default.
	Class string
}

// Cut is a point-in-time copy of a volume's origin.
type Cut struct {
	ID         volume.SnapshotID
	Volume     volume.ID
	SizeBytes  int64
	Created    time.Time
	Hold       string
	Filesystem volume.Formatted
	// Done says that the content is fixed: no later write of the volume gets into it, and the
	// hold may end. Ready says that volumes can be made from it.
	Done, Ready bool
	// Accepted says that Accept was called. What is not accepted is no snapshot.
	Accepted bool
	// Ending is one of Cuts alone: it is no cut any more, and DeleteCut, which does not have to
	// wait for anybody, takes away what is left of it.
	Ending bool
}

// Snapshots is a Backend that makes snapshots. It is crash-consistent alone: the caller holds
// the volume (Snapshots and clones in docs/design/states.md).
//
// All methods are idempotent, have the epoch of the context as those of Backend, and fail
// with its errors. ErrInvalid says that this volume, or this server, has no snapshots.
type Snapshots interface {
	// Cut makes a copy of a volume, or finds the one that has the ID, whatever its hold is: the
	// caller compares. A cut that is not Done yet is asked for again. Errors: ErrNotFound
	// without the volume, ErrExists if the ID is that of a cut of another volume, ErrNoSpace,
	// ErrInvalid.
	Cut(ctx context.Context, id volume.SnapshotID, of volume.ID, req CutRequest) (Cut, error)
	// CanCut returns why Cut would refuse, as far as that can be known before; nil promises
	// nothing. It changes nothing. Errors: those of Cut.
	CanCut(ctx context.Context, of volume.ID, class string) error
	// CanBegin returns why Create would refuse a volume that begins as a cut of of, as far as
	// that can be known before there is one; nil promises nothing. It changes nothing. Errors:
	// those of Create.
	CanBegin(ctx context.Context, id, of volume.ID, req Request) error
	// Find returns a cut. Errors: ErrNotFound.
	Find(ctx context.Context, id volume.SnapshotID) (Cut, error)
	// Accept says, durably, that the hold of a cut was there all the time. It names the hold: a
	// caller that stalls must not accept what was cut under a later one. Errors: ErrNotFound
	// without a cut of this ID and hold.
	Accept(ctx context.Context, id volume.SnapshotID, hold string) error
	// DropCut deletes a cut that has this hold and was not accepted, judged in the same moment:
	// what was accepted, is of another hold, or is missing, is left, and that is success.
	DropCut(ctx context.Context, id volume.SnapshotID, hold string) error
	// DeleteCut deletes a cut; a missing one is success. What was made from it stays, or
	// ErrInUse says that it must go first.
	DeleteCut(ctx context.Context, id volume.SnapshotID) error
	// Cuts lists all, in the order of their IDs, and what deletions have left that were killed.
	Cuts(ctx context.Context) ([]Cut, error)
}
