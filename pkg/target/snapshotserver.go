package target

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

// CreateSnapshot implements targetpb.TargetServer.
func (s *Server) CreateSnapshot(ctx context.Context, req *targetpb.CreateSnapshotRequest) (*targetpb.CreateSnapshotResponse, error) {
	c, err := s.svc.CreateSnapshot(ctx, SnapshotRequest{Name: req.GetName(), Volume: req.GetVolume(), Hold: req.GetHold(), Filesystem: req.GetFilesystem()})
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.CreateSnapshotResponse{Snapshot: snapshotPB(c)}, nil
}

// GetSnapshot implements targetpb.TargetServer.
func (s *Server) GetSnapshot(ctx context.Context, req *targetpb.GetSnapshotRequest) (*targetpb.GetSnapshotResponse, error) {
	c, err := s.svc.GetSnapshot(ctx, req.GetName())
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.GetSnapshotResponse{Snapshot: snapshotPB(c)}, nil
}

// AcceptSnapshot implements targetpb.TargetServer.
func (s *Server) AcceptSnapshot(ctx context.Context, req *targetpb.AcceptSnapshotRequest) (*targetpb.AcceptSnapshotResponse, error) {
	if err := s.svc.AcceptSnapshot(ctx, req.GetName(), req.GetHold()); err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.AcceptSnapshotResponse{}, nil
}

// DeleteSnapshot implements targetpb.TargetServer.
func (s *Server) DeleteSnapshot(ctx context.Context, req *targetpb.DeleteSnapshotRequest) (*targetpb.DeleteSnapshotResponse, error) {
	if err := s.svc.DeleteSnapshot(ctx, req.GetName(), req.GetUnacceptedHold()); err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.DeleteSnapshotResponse{}, nil
}

// ListSnapshots implements targetpb.TargetServer.
func (s *Server) ListSnapshots(ctx context.Context, req *targetpb.ListSnapshotsRequest) (*targetpb.ListSnapshotsResponse, error) {
	all, next, err := s.svc.ListSnapshots(ctx, req.GetMaxEntries(), req.GetStartingToken())
	if err != nil {
		return nil, statusFor(err)
	}
	res := &targetpb.ListSnapshotsResponse{NextToken: next}
	for _, c := range all {
		res.Snapshots = append(res.Snapshots, snapshotPB(c))
	}
	return res, nil
}

// CreateVolumeFromSnapshot implements targetpb.TargetServer.
func (s *Server) CreateVolumeFromSnapshot(ctx context.Context, req *targetpb.CreateVolumeFromSnapshotRequest) (*targetpb.CreateVolumeFromSnapshotResponse, error) {
	p, err := provisioningOf(req.GetProvisioning())
	if err != nil {
		return nil, statusFor(err)
	}
	v, err := s.svc.CreateVolumeFromSnapshot(ctx, req.GetName(), req.GetSizeBytes(), p, req.GetSnapshot())
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.CreateVolumeFromSnapshotResponse{Volume: volumePB(v)}, nil
}

func snapshotPB(c lvol.Snapshot) *targetpb.Snapshot {
	return &targetpb.Snapshot{
		Name: c.Name, Volume: c.Volume, SizeBytes: c.SizeBytes, Created: timestamppb.New(c.Created),
		Hold: c.Hold, Filesystem: c.Filesystem, Done: c.Done, Accepted: c.Accepted, UsedBytes: c.UsedBytes,
	}
}
