package origintest

import (
	"context"
	"maps"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// GetInfo implements registerapi.RegistrationServer.
func (d *Driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: d.c.Name, Endpoint: d.Endpoint(), SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (d *Driver) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// GetPluginInfo implements csipb.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.c.Name, VendorVersion: "0"}, nil
}

// GetPluginCapabilities implements csipb.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (*csipb.GetPluginCapabilitiesResponse, error) {
	return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{
		{Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csipb.PluginCapability_VolumeExpansion_{VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: csipb.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

// Probe implements csipb.IdentityServer.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements csipb.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (*csipb.ControllerGetCapabilitiesResponse, error) {
	list := []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	}
	if d.c.Capabilities.Attach {
		list = append(list, csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	if d.c.Capabilities.MultiWriter {
		list = append(list, csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	}
	answer := &csipb.ControllerGetCapabilitiesResponse{}
	for _, c := range list {
		answer.Capabilities = append(answer.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return answer, nil
}

// defaultSize is that of a volume whose size nobody says, in bytes.
const defaultSize = 1 << 30

// CreateVolume implements csipb.ControllerServer.
func (d *Driver) CreateVolume(_ context.Context, req *csipb.CreateVolumeRequest) (answer *csipb.CreateVolumeResponse, err error) {
	err = d.do("CreateVolume", func(s *state, b breaches) error {
		if req.GetName() == "" || len(req.GetVolumeCapabilities()) == 0 {
			return b.add(codes.InvalidArgument, "a volume without a name or a capability")
		}
		for _, c := range req.GetVolumeCapabilities() {
			if err := d.checkCapability(b, c); err != nil {
				return err
			}
		}
		handle, size := "vol-"+req.GetName(), req.GetCapacityRange().GetRequiredBytes()
		if size == 0 {
			size = defaultSize
		}
		v := s.Volumes[handle]
		if v != nil && v.Size < size {
			return status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", handle, v.Size)
		}
		if v == nil {
			if err := d.c.Devices.Create(handle, size); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			v = &vol{Name: req.GetName(), Size: size, Context: map[string]string{"pool": "a", "image": "image-of-" + req.GetName()}}
			s.Volumes[handle] = v
		}
		answer = &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: handle, CapacityBytes: v.Size, VolumeContext: maps.Clone(v.Context)}}
		return nil
	})
	return answer, err
}

// DeleteVolume implements csipb.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, req *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	err := d.do("DeleteVolume", func(s *state, b breaches) error {
		v := s.Volumes[req.GetVolumeId()]
		if v == nil {
			return nil
		}
		if left := v.left(req.GetVolumeId()); len(left) > 0 {
			return b.add(codes.FailedPrecondition, "in use: %v", left)
		}
		if err := d.c.Devices.Delete(req.GetVolumeId()); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		delete(s.Volumes, req.GetVolumeId())
		return nil
	})
	return &csipb.DeleteVolumeResponse{}, err
}

// ControllerPublishVolume implements csipb.ControllerServer.
func (d *Driver) ControllerPublishVolume(_ context.Context, req *csipb.ControllerPublishVolumeRequest) (answer *csipb.ControllerPublishVolumeResponse, err error) {
	err = d.do("ControllerPublishVolume", func(s *state, b breaches) error {
		v, err := find(s, req.GetVolumeId())
		if err != nil {
			return err
		}
		switch {
		case !d.c.Capabilities.Attach:
			return b.add(codes.Unimplemented, "not announced")
		case req.GetNodeId() == "":
			return b.add(codes.InvalidArgument, "no node")
		case req.GetReadonly():
			return b.add(codes.InvalidArgument, "readonly")
		case !maps.Equal(req.GetVolumeContext(), v.Context):
			return b.add(codes.InvalidArgument, "volume_context %v, not %v", req.GetVolumeContext(), v.Context)
		case v.Attached != "" && v.Attached != req.GetNodeId():
			return b.add(codes.FailedPrecondition, "a second attachment: to %s, and it is attached to %s", req.GetNodeId(), v.Attached)
		}
		if err := d.checkCapability(b, req.GetVolumeCapability()); err != nil {
			return err
		}
		if v.Attached == "" {
			s.Serial++
			v.Attached = req.GetNodeId()
			v.Publish = map[string]string{"attachment": req.GetVolumeId() + "@" + v.Attached, "serial": strconv.FormatInt(s.Serial, 10)}
		}
		answer = &csipb.ControllerPublishVolumeResponse{PublishContext: maps.Clone(v.Publish)}
		return nil
	})
	return answer, err
}

// ControllerUnpublishVolume implements csipb.ControllerServer.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, req *csipb.ControllerUnpublishVolumeRequest) (*csipb.ControllerUnpublishVolumeResponse, error) {
	err := d.do("ControllerUnpublishVolume", func(s *state, b breaches) error {
		v := s.Volumes[req.GetVolumeId()]
		if !d.c.Capabilities.Attach {
			return b.add(codes.Unimplemented, "not announced")
		}
		if v == nil || v.Attached == "" || (req.GetNodeId() != "" && req.GetNodeId() != v.Attached) {
			return nil
		}
		if left := v.node(v.Attached).left(req.GetVolumeId(), v.Attached); len(left) > 0 {
			return b.add(codes.FailedPrecondition, "in use: %v", left)
		}
		v.Attached, v.Publish = "", nil
		return nil
	})
	return &csipb.ControllerUnpublishVolumeResponse{}, err
}

// ControllerExpandVolume implements csipb.ControllerServer.
func (d *Driver) ControllerExpandVolume(_ context.Context, req *csipb.ControllerExpandVolumeRequest) (answer *csipb.ControllerExpandVolumeResponse, err error) {
	err = d.do("ControllerExpandVolume", func(s *state, b breaches) error {
		v, err := find(s, req.GetVolumeId())
		if err != nil {
			return err
		}
		size := req.GetCapacityRange().GetRequiredBytes()
		if size <= 0 {
			return b.add(codes.InvalidArgument, "no size")
		}
		if size > v.Size {
			if err := d.c.Devices.Resize(req.GetVolumeId(), size); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
			v.Size = size
		}
		answer = &csipb.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: d.c.Capabilities.Expand}
		return nil
	})
	return answer, err
}

// ValidateVolumeCapabilities implements csipb.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, req *csipb.ValidateVolumeCapabilitiesRequest) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	err := d.do("ValidateVolumeCapabilities", func(s *state, _ breaches) error {
		_, err := find(s, req.GetVolumeId())
		return err
	})
	return &csipb.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities()},
	}, err
}
