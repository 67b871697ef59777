package targetclient

import (
	"context"
	"time"

	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

// Snapshot is a snapshot of a volume.
type Snapshot struct {
	Name string
	// Volume is what it was made of, which may be gone.
	Volume    string
	SizeBytes int64
	Created   time.Time
	// Hold and Filesystem are those of the request that made it.
	Hold, Filesystem string
	// Done says that the content is fixed; CreateSnapshot has not succeeded without it.
	Done, Accepted bool
}

// SnapshotRequest asks for a snapshot. Hold and Filesystem, which may be empty, are up to 255
// letters, digits and _ + . - / = ! : & #.
type SnapshotRequest struct {
	Name, Volume, Hold, Filesystem string
}

// CreateSnapshot makes a snapshot of a thin volume, or finds the one of that name.
// Errors: ErrNotFound without the volume, ErrAlreadyExists (of another volume), ErrNoSpace,
// *InvalidFieldError, ErrInProgress, ErrUnknownCall.
func (c *Client) CreateSnapshot(ctx context.Context, req SnapshotRequest) (Snapshot, error) {
	res, err := c.api.CreateSnapshot(ctx, &targetpb.CreateSnapshotRequest{Name: req.Name, Volume: req.Volume, Hold: req.Hold, Filesystem: req.Filesystem})
	if err != nil {
		return Snapshot{}, wrap("create snapshot", req.Name, err)
	}
	return snapshot(res.GetSnapshot()), nil
}

// GetSnapshot returns one snapshot.
// Errors: ErrNotFound, *InvalidFieldError, ErrUnknownCall.
func (c *Client) GetSnapshot(ctx context.Context, name string) (Snapshot, error) {
	res, err := c.api.GetSnapshot(ctx, &targetpb.GetSnapshotRequest{Name: name})
	if err != nil {
		return Snapshot{}, wrap("get snapshot", name, err)
	}
	return snapshot(res.GetSnapshot()), nil
}

// AcceptSnapshot keeps with a snapshot of a hold that it was accepted.
// Errors: ErrNotFound, *InvalidFieldError, ErrInProgress, ErrUnknownCall.
func (c *Client) AcceptSnapshot(ctx context.Context, name, hold string) error {
	_, err := c.api.AcceptSnapshot(ctx, &targetpb.AcceptSnapshotRequest{Name: name, Hold: hold})
	return wrap("accept snapshot", name, err)
}

// DeleteSnapshot deletes a snapshot; one that does not exist is not an error. With a hold, one
// that was accepted, or has another hold, stays, and that is no error either.
// Errors: *InvalidFieldError, ErrInUse, ErrInProgress, ErrUnknownCall.
func (c *Client) DeleteSnapshot(ctx context.Context, name, unacceptedHold string) error {
	_, err := c.api.DeleteSnapshot(ctx, &targetpb.DeleteSnapshotRequest{Name: name, UnacceptedHold: unacceptedHold})
	return wrap("delete snapshot", name, err)
}

// ListSnapshots returns one page of snapshots, sorted by name, as ListVolumes does.
// Errors: ErrUnknownCall.
func (c *Client) ListSnapshots(ctx context.Context, limit int32, token string) (snapshots []Snapshot, next string, err error) {
	res, err := c.api.ListSnapshots(ctx, &targetpb.ListSnapshotsRequest{MaxEntries: limit, StartingToken: token})
	if err != nil {
		return nil, "", wrap("list snapshots", "", err)
	}
	for _, s := range res.GetSnapshots() {
		snapshots = append(snapshots, snapshot(s))
	}
	return snapshots, res.GetNextToken(), nil
}

// CreateVolumeFromSnapshot makes a thin volume of at least sizeBytes that begins as an accepted
// snapshot, or finds the one that an earlier call has made.
// Errors: ErrNotFound without the snapshot, ErrAlreadyExists (other size or content),
// ErrNoSpace, *InvalidFieldError, ErrInProgress, ErrUnknownCall.
func (c *Client) CreateVolumeFromSnapshot(ctx context.Context, name string, sizeBytes int64, p Provisioning, from string) (Volume, error) {
	res, err := c.api.CreateVolumeFromSnapshot(ctx, &targetpb.CreateVolumeFromSnapshotRequest{Name: name, SizeBytes: sizeBytes, Provisioning: p, Snapshot: from})
	if err != nil {
		return Volume{}, wrap("create volume", name, err)
	}
	return volume(res.GetVolume()), nil
}

func snapshot(s *targetpb.Snapshot) Snapshot {
	return Snapshot{
		Name: s.GetName(), Volume: s.GetVolume(), SizeBytes: s.GetSizeBytes(), Created: s.GetCreated().AsTime(),
		Hold: s.GetHold(), Filesystem: s.GetFilesystem(), Done: s.GetDone(), Accepted: s.GetAccepted(),
	}
}
