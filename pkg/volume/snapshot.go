package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// SnapshotID names a snapshot among those of its backend. It is formed as an ID is.
type SnapshotID string

// SnapshotHandle is the snapshot_id of the CSI specification: which backend has the snapshot,
// and its ID there. What has it needs no record of the volume, which may be gone.
type SnapshotHandle struct {
	// Backend is the word of a record: "iscsi" or "csi".
	Backend string
	// Target is the name of the storage server, with "iscsi"; "" is the default one.
	Target string
	ID     SnapshotID
}

// String returns "<backend>/<id>", or "<backend>@<target>/<id>".
func (h SnapshotHandle) String() string {
	if h.Target != "" {
		return h.Backend + "@" + h.Target + "/" + string(h.ID)
	}
	return h.Backend + "/" + string(h.ID)
}

// ParseSnapshotHandle reads what String has written. Errors: ErrInvalid.
func ParseSnapshotHandle(s string) (SnapshotHandle, error) {
	where, name, _ := strings.Cut(s, "/")
	kind, target, named := strings.Cut(where, "@")
	id, err := ParseID(name)
	if err != nil || kind != "iscsi" && (kind != "csi" || named) || named && !IsTarget(target) {
		return SnapshotHandle{}, fmt.Errorf("%w: snapshot_id %q: accepted are iscsi/ID, iscsi@TARGET/ID and csi/ID, ID being formed as a volume's", ErrInvalid, s)
	}
	return SnapshotHandle{Backend: kind, Target: target, ID: SnapshotID(id)}, nil
}

// Snapshot is a snapshot that was accepted (Snapshots and clones in docs/design/states.md).
type Snapshot struct {
	Handle SnapshotHandle
	// Volume is the volume that it was made of.
	Volume ID
	// SizeBytes is the least size of a volume that is made from it.
	SizeBytes int64
	Created   time.Time
	// Ready says that volumes can be made from it.
	Ready bool
}

// Parent says what a new volume begins with: one of the two is set.
type Parent struct {
	Snapshot *SnapshotHandle
	Volume   ID
}

// Equal reports whether both are nothing, or the same.
func (p *Parent) Equal(other *Parent) bool {
	if p == nil || other == nil {
		return p == other
	}
	return p.Volume == other.Volume && (p.Snapshot == nil) == (other.Snapshot == nil) && (p.Snapshot == nil || *p.Snapshot == *other.Snapshot)
}

// Hold says for what a volume is held while its origin is cut.
type Hold struct {
	// Name is that of the cut.
	Name SnapshotID
	// Token tells the hold from all others of its name.
	Token string
	// Since is when the cut was last asked for.
	Since time.Time
	// Freeze is what is asked of the node's filesystem; "" is nothing.
	Freeze FreezeRequest
}

// FreezeRequest is what is asked of the filesystem of a volume that is held.
type FreezeRequest string

// The requests.
const (
	FreezeAsked FreezeRequest = "Freeze"
	FreezeOver  FreezeRequest = "Thaw"
)

// FreezeState is how a freeze stands.
type FreezeState string

// The states. Frozen may be over by now; Held was frozen until the node saw that the request was
// gone.
const (
	FreezeFrozen       FreezeState = "Frozen"
	FreezeHeld         FreezeState = "Held"
	FreezeFailed       FreezeState = "Failed"
	FreezeNoFilesystem FreezeState = "NoFilesystem"
)

// FreezeReport is the node's answer to the request of the hold with the token.
type FreezeReport struct {
	Token string
	State FreezeState
	// Message says why one has Failed.
	Message string
}

// SnapshotClass is what a VolumeSnapshotClass says of a snapshot.
type SnapshotClass struct {
	// Origin is the other driver's VolumeSnapshotClass, "" for its default.
	Origin string
	// Freeze asks for the filesystem to be frozen while the volume is cut.
	Freeze bool
}

// clonePrefix begins the IDs of cuts that clones are made from. No snapshot has it.
const clonePrefix = "clone-"

// CloneCut returns the ID of the cut that a clone is made from.
func CloneCut(clone ID) SnapshotID {
	if id, err := ParseID(clonePrefix + string(clone)); err == nil {
		return SnapshotID(id)
	}
	sum := sha256.Sum256([]byte(clone))
	return SnapshotID(clonePrefix + hex.EncodeToString(sum[:])[:32])
}

// ForClone reports whether a cut is no snapshot, but what a clone is made from.
func (id SnapshotID) ForClone() bool { return strings.HasPrefix(string(id), clonePrefix) }

// Snapshotter is the controller's side of snapshots.
type Snapshotter interface {
	// CreateSnapshot holds a volume, cuts it, and lets it go, or finds the snapshot. Errors:
	// ErrNotFound, ErrExists, ErrBusy while the volume is drained or held for another, or if
	// its filesystem could not be kept frozen, ErrFenced while a lost node may have unflushed
	// writes, ErrNoSpace, ErrInvalid, ErrBackend.
	CreateSnapshot(ctx context.Context, id SnapshotID, of ID, class SnapshotClass) (Snapshot, error)
	// DeleteSnapshot deletes a snapshot and ends a hold that was for it; a missing one is
	// success. Errors: ErrInUse, ErrBackend.
	DeleteSnapshot(ctx context.Context, h SnapshotHandle) error
	// Snapshot returns one. Errors: ErrNotFound, ErrUnavailable.
	Snapshot(ctx context.Context, h SnapshotHandle) (Snapshot, error)
	// Snapshots lists the accepted ones, in the order of their handles. It fails if anything that
	// has snapshots cannot be asked. Errors: ErrUnavailable.
	Snapshots(ctx context.Context) ([]Snapshot, error)
}
