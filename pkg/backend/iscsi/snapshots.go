package iscsi

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/target/targetclient"
	"github.com/nearflash/nearflash/pkg/volume"
)

// SnapshotAPI is what is used of targetclient.Client for snapshots.
type SnapshotAPI interface {
	CreateSnapshot(ctx context.Context, req targetclient.SnapshotRequest) (targetclient.Snapshot, error)
	GetSnapshot(ctx context.Context, name string) (targetclient.Snapshot, error)
	AcceptSnapshot(ctx context.Context, name, hold string) error
	DeleteSnapshot(ctx context.Context, name, unacceptedHold string) error
	ListSnapshots(ctx context.Context, limit int32, token string) (snapshots []targetclient.Snapshot, next string, err error)
	CreateVolumeFromSnapshot(ctx context.Context, name string, sizeBytes int64, p targetclient.Provisioning, from string) (targetclient.Volume, error)
}

// listPage is the number of snapshots or volumes asked for at once: an answer has its limit.
const listPage = 1000

var _ backend.Snapshots = (*Backend)(nil)

// Cut implements backend.Snapshots.
func (b *Backend) Cut(ctx context.Context, id volume.SnapshotID, of volume.ID, req backend.CutRequest) (backend.Cut, error) {
	s, err := b.api.CreateSnapshot(epoch(ctx), targetclient.SnapshotRequest{
		Name: string(id), Volume: string(of), Hold: req.Hold, Filesystem: string(req.Filesystem),
	})
	if err != nil {
		return backend.Cut{}, translateSnapshot(ctx, err)
	}
	return cutOf(s), nil
}

// CanCut implements backend.Snapshots. Whether the server has room it says when it cuts.
func (b *Backend) CanCut(ctx context.Context, of volume.ID, _ string) error {
	v, err := b.api.GetVolume(ctx, string(of))
	switch {
	case err != nil:
		return translate(ctx, of, err)
	case v.Provisioning == targetclient.Thick:
		return fmt.Errorf("%w: volume %s is thick: only thin volumes have snapshots", volume.ErrInvalid, of)
	}
	_, _, err = b.api.ListSnapshots(ctx, 1, "")
	return translateSnapshot(ctx, err)
}

// CanBegin implements backend.Snapshots. Whether the server has room it says when it makes the volume.
func (b *Backend) CanBegin(_ context.Context, id, of volume.ID, req backend.Request) error {
	p, err := provisioning(req.Provisioning)
	if err == nil && p == targetclient.Thick {
		err = fmt.Errorf("%w: provisioning thick: volume %s is to begin as volume %s is: accepted is thin", volume.ErrInvalid, id, of)
	}
	return err
}

// Find implements backend.Snapshots.
func (b *Backend) Find(ctx context.Context, id volume.SnapshotID) (backend.Cut, error) {
	s, err := b.api.GetSnapshot(ctx, string(id))
	if err != nil {
		return backend.Cut{}, translateSnapshot(ctx, err)
	}
	return cutOf(s), nil
}

// Accept implements backend.Snapshots.
func (b *Backend) Accept(ctx context.Context, id volume.SnapshotID, hold string) error {
	return translateSnapshot(ctx, b.api.AcceptSnapshot(epoch(ctx), string(id), hold))
}

// DropCut implements backend.Snapshots.
func (b *Backend) DropCut(ctx context.Context, id volume.SnapshotID, hold string) error {
	if hold == "" { // to the server, whichever
		return fmt.Errorf("%w: hold of snapshot %s, which is to be dropped, is missing", volume.ErrInvalid, id)
	}
	return translateSnapshot(ctx, b.api.DeleteSnapshot(epoch(ctx), string(id), hold))
}

// DeleteCut implements backend.Snapshots.
func (b *Backend) DeleteCut(ctx context.Context, id volume.SnapshotID) error {
	return translateSnapshot(ctx, b.api.DeleteSnapshot(epoch(ctx), string(id), ""))
}

// Cuts implements backend.Snapshots.
func (b *Backend) Cuts(ctx context.Context) ([]backend.Cut, error) {
	var out []backend.Cut
	for token := ""; ; {
		page, next, err := b.api.ListSnapshots(ctx, listPage, token)
		if err != nil {
			return nil, translateSnapshot(ctx, err)
		}
		for _, s := range page {
			out = append(out, cutOf(s))
		}
		if next == "" {
			return out, nil
		}
		token = next
	}
}

// createFrom is Create for a volume that begins as a cut.
func (b *Backend) createFrom(ctx context.Context, id volume.ID, size int64, p targetclient.Provisioning, from volume.SnapshotID) error {
	_, err := b.api.CreateVolumeFromSnapshot(epoch(ctx), string(id), size, p, string(from))
	return translateSnapshot(ctx, err)
}

// cutOf is a snapshot in the words of package backend. A snapshot that is done is ready.
func cutOf(s targetclient.Snapshot) backend.Cut {
	return backend.Cut{
		ID: volume.SnapshotID(s.Name), Volume: volume.ID(s.Volume), SizeBytes: s.SizeBytes, Created: s.Created,
		Hold: s.Hold, Filesystem: volume.Formatted(s.Filesystem), Done: s.Done, Ready: s.Done, Accepted: s.Accepted,
	}
}

// translateSnapshot is translate for calls that a server of an earlier version does not know.
func translateSnapshot(ctx context.Context, err error) error {
	if errors.Is(err, targetclient.ErrUnknownCall) {
		return fmt.Errorf("%w: the storage server makes no snapshots: it is of an earlier version; upgrade nearflash-target: %w", volume.ErrInvalid, err)
	}
	return translate(ctx, "", err)
}
