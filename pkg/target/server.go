package target

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearflash/nearflash/pkg/metrics"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/targetpb"
)

// Server is the gRPC face of a Service.
type Server struct {
	targetpb.UnimplementedTargetServer

	svc     *Service
	version string
	// calls has the durations of the calls.
	calls *prometheus.HistogramVec
}

var _ targetpb.TargetServer = (*Server)(nil)

// NewServer returns the gRPC face of svc; version is told by Health.
func NewServer(svc *Service, version string) *Server {
	return &Server{svc: svc, version: version, calls: metrics.NewTargetCalls()}
}

// CreateVolume implements targetpb.TargetServer.
func (s *Server) CreateVolume(ctx context.Context, req *targetpb.CreateVolumeRequest) (*targetpb.CreateVolumeResponse, error) {
	p, err := provisioningOf(req.GetProvisioning())
	if err != nil {
		return nil, statusFor(err)
	}
	v, err := s.svc.CreateVolume(ctx, req.GetName(), req.GetSizeBytes(), p)
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.CreateVolumeResponse{Volume: volumePB(v)}, nil
}

// DeleteVolume implements targetpb.TargetServer.
func (s *Server) DeleteVolume(ctx context.Context, req *targetpb.DeleteVolumeRequest) (*targetpb.DeleteVolumeResponse, error) {
	if err := s.svc.DeleteVolume(ctx, req.GetName()); err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.DeleteVolumeResponse{}, nil
}

// ExpandVolume implements targetpb.TargetServer.
func (s *Server) ExpandVolume(ctx context.Context, req *targetpb.ExpandVolumeRequest) (*targetpb.ExpandVolumeResponse, error) {
	size, err := s.svc.ExpandVolume(ctx, req.GetName(), req.GetSizeBytes())
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.ExpandVolumeResponse{SizeBytes: size}, nil
}

// ListVolumes implements targetpb.TargetServer.
func (s *Server) ListVolumes(ctx context.Context, req *targetpb.ListVolumesRequest) (*targetpb.ListVolumesResponse, error) {
	vols, next, err := s.svc.ListVolumes(ctx, req.GetMaxEntries(), req.GetStartingToken())
	if err != nil {
		return nil, statusFor(err)
	}
	res := &targetpb.ListVolumesResponse{NextToken: next}
	for _, v := range vols {
		res.Volumes = append(res.Volumes, volumePB(v))
	}
	return res, nil
}

// GetVolume implements targetpb.TargetServer.
func (s *Server) GetVolume(ctx context.Context, req *targetpb.GetVolumeRequest) (*targetpb.GetVolumeResponse, error) {
	v, err := s.svc.GetVolume(ctx, req.GetName())
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.GetVolumeResponse{Volume: volumePB(v)}, nil
}

// ExportVolume implements targetpb.TargetServer.
func (s *Server) ExportVolume(ctx context.Context, req *targetpb.ExportVolumeRequest) (*targetpb.ExportVolumeResponse, error) {
	account := Account{Username: req.GetChapUsername(), Password: exportstate.Secret(req.GetChapPassword())}
	c, err := s.svc.ExportVolume(ctx, req.GetName(), req.GetInitiatorIqn(), account, req.GetGeneration())
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.ExportVolumeResponse{Portals: c.Portals, TargetIqn: c.IQN, Lun: c.LUN, Wwid: c.WWID}, nil
}

// ExportVolumeReadOnly implements targetpb.TargetServer.
func (s *Server) ExportVolumeReadOnly(ctx context.Context, req *targetpb.ExportVolumeReadOnlyRequest) (*targetpb.ExportVolumeReadOnlyResponse, error) {
	account := Account{Username: req.GetChapUsername(), Password: exportstate.Secret(req.GetChapPassword())}
	c, err := s.svc.ExportVolumeReadOnly(ctx, req.GetName(), req.GetInitiatorIqn(), account, req.GetGeneration())
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.ExportVolumeReadOnlyResponse{Portals: c.Portals, TargetIqn: c.IQN, Lun: c.LUN, Wwid: c.WWID}, nil
}

// UnexportVolume implements targetpb.TargetServer.
func (s *Server) UnexportVolume(ctx context.Context, req *targetpb.UnexportVolumeRequest) (*targetpb.UnexportVolumeResponse, error) {
	if err := s.svc.UnexportVolume(ctx, req.GetName(), req.GetInitiatorIqn(), req.GetAdmission()); err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.UnexportVolumeResponse{}, nil
}

// GetEpoch implements targetpb.TargetServer.
func (s *Server) GetEpoch(ctx context.Context, _ *targetpb.GetEpochRequest) (*targetpb.GetEpochResponse, error) {
	epoch, err := s.svc.Epoch(ctx)
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.GetEpochResponse{ServerId: s.svc.cfg.ServerID, Epoch: epoch}, nil
}

// SwapEpoch implements targetpb.TargetServer.
func (s *Server) SwapEpoch(ctx context.Context, req *targetpb.SwapEpochRequest) (*targetpb.SwapEpochResponse, error) {
	if err := s.svc.SwapEpoch(ctx, req.GetCurrent(), req.GetNext()); err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.SwapEpochResponse{}, nil
}

// GetCapacity implements targetpb.TargetServer.
func (s *Server) GetCapacity(ctx context.Context, req *targetpb.GetCapacityRequest) (*targetpb.GetCapacityResponse, error) {
	p, err := provisioningOf(req.GetProvisioning())
	if err != nil {
		return nil, statusFor(err)
	}
	c, err := s.svc.Capacity(ctx, p)
	if err != nil {
		return nil, statusFor(err)
	}
	return &targetpb.GetCapacityResponse{
		AvailableBytes: c.AvailableBytes, MaximumVolumeBytes: c.MaximumBytes,
		TotalBytes: c.TotalBytes, UsedBytes: c.UsedBytes, MetadataPercent: c.MetadataPercent,
	}, nil
}

// Health implements targetpb.TargetServer.
func (s *Server) Health(ctx context.Context, _ *targetpb.HealthRequest) (*targetpb.HealthResponse, error) {
	problems := s.svc.Problems(ctx)
	return &targetpb.HealthResponse{
		Healthy: len(problems) == 0, Version: s.version, ServerId: s.svc.cfg.ServerID, Problems: problems,
	}, nil
}

func provisioningOf(p targetpb.Provisioning) (Provisioning, error) {
	switch p {
	case targetpb.Provisioning_PROVISIONING_UNSPECIFIED:
		return "", nil
	case targetpb.Provisioning_PROVISIONING_THIN:
		return Thin, nil
	case targetpb.Provisioning_PROVISIONING_THICK:
		return Thick, nil
	default:
		return "", &InvalidError{Field: "provisioning", Value: p.String(), Accepted: "THIN, THICK or UNSPECIFIED"}
	}
}

func volumePB(v Volume) *targetpb.Volume {
	out := &targetpb.Volume{
		Name: v.Name, SizeBytes: v.SizeBytes, UsedBytes: v.UsedBytes, Generation: v.Generation,
		Provisioning: targetpb.Provisioning_PROVISIONING_THICK, State: statePB(v.State), Wwid: v.WWID(), Snapshot: v.From,
	}
	if v.Thin {
		out.Provisioning = targetpb.Provisioning_PROVISIONING_THIN
	}
	for _, e := range v.Exports {
		out.Exports = append(out.Exports, &targetpb.Export{
			InitiatorIqn: e.Initiator, Generation: e.Generation, LoggedIn: e.LoggedIn, Admission: e.Admission, ChapUsername: e.Username,
			ReadOnly: e.ReadOnly,
		})
	}
	return out
}

func statePB(s lvol.State) targetpb.VolumeState {
	switch s {
	case lvol.Ready:
		return targetpb.VolumeState_VOLUME_STATE_READY
	case lvol.Unzeroed:
		return targetpb.VolumeState_VOLUME_STATE_CREATING
	case lvol.Deleting:
		return targetpb.VolumeState_VOLUME_STATE_DELETING
	default:
		return targetpb.VolumeState_VOLUME_STATE_UNSPECIFIED
	}
}
