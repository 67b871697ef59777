package origintest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stagedFile is what the driver keeps in a staging directory, as many do.
const stagedFile = "origintest.json"

// NodeGetCapabilities implements csipb.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	answer := &csipb.NodeGetCapabilitiesResponse{}
	add := func(has bool, c csipb.NodeServiceCapability_RPC_Type) {
		if has {
			answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{
				Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}},
			})
		}
	}
	add(d.c.Capabilities.Stage, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	add(d.c.Capabilities.Expand, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	add(d.c.Capabilities.MultiWriter, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	return answer, nil
}

// NodeGetInfo implements csipb.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: d.c.Node}, nil
}

// NodeStageVolume implements csipb.NodeServer.
func (d *Driver) NodeStageVolume(_ context.Context, req *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	err := d.do("NodeStageVolume", func(s *state, b breaches) error {
		v, err := find(s, req.GetVolumeId())
		if err != nil {
			return err
		}
		if !d.c.Capabilities.Stage {
			return b.add(codes.Unimplemented, "not announced")
		}
		call := nodeCall{publish: req.GetPublishContext(), context: req.GetVolumeContext(), secrets: req.GetSecrets(), capability: req.GetVolumeCapability()}
		if err := d.checkUse(b, v, call); err != nil {
			return err
		}
		path, n := req.GetStagingTargetPath(), v.node(d.c.Node)
		if err := d.checkPath(b, "staging_target_path", path); err != nil {
			return err
		}
		if err := d.checkDir(b, "staging_target_path", path); err != nil {
			return err
		}
		if n.Staging != "" && n.Staging != path {
			return b.add(codes.InvalidArgument, "staged at %s, and now at %s", n.Staging, path)
		}
		if err := d.c.Devices.Attach(req.GetVolumeId()); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		if err := os.WriteFile(filepath.Join(path, stagedFile), []byte("{}"), 0o600); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		n.Staging = path
		return nil
	})
	return &csipb.NodeStageVolumeResponse{}, err
}

// NodePublishVolume implements csipb.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context, req *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	err := d.do("NodePublishVolume", func(s *state, b breaches) error {
		v, err := find(s, req.GetVolumeId())
		if err != nil {
			return err
		}
		call := nodeCall{publish: req.GetPublishContext(), context: req.GetVolumeContext(), secrets: req.GetSecrets(), capability: req.GetVolumeCapability()}
		if err := d.checkUse(b, v, call); err != nil {
			return err
		}
		n := v.node(d.c.Node)
		if err := d.checkTarget(b, req, n); err != nil {
			return err
		}
		if !d.c.Capabilities.Stage {
			if err := d.c.Devices.Attach(req.GetVolumeId()); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
		}
		if err := d.c.Devices.Publish(req.GetVolumeId(), req.GetTargetPath()); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		if !n.published(req.GetTargetPath()) {
			n.Targets = append(n.Targets, req.GetTargetPath())
		}
		n.Stayed = slices.DeleteFunc(n.Stayed, func(t string) bool { return t == req.GetTargetPath() })
		return nil
	})
	return &csipb.NodePublishVolumeResponse{}, err
}

// checkTarget checks the paths of a publish call.
func (d *Driver) checkTarget(b breaches, req *csipb.NodePublishVolumeRequest, n *onNode) error {
	target := req.GetTargetPath()
	if err := d.checkPath(b, "target_path", target); err != nil {
		return err
	}
	if err := d.checkDir(b, "the folder of target_path", filepath.Dir(target)); err != nil {
		return err
	}
	switch {
	case req.GetReadonly():
		return b.add(codes.InvalidArgument, "readonly")
	case d.c.Capabilities.Stage && n.Staging == "":
		return b.add(codes.FailedPrecondition, "published before it is staged")
	case d.c.Capabilities.Stage && n.Staging != req.GetStagingTargetPath():
		return b.add(codes.FailedPrecondition, "staged at %s, and published from %q", n.Staging, req.GetStagingTargetPath())
	case len(n.Targets) > 0 && !n.published(target):
		return b.add(codes.FailedPrecondition, "a second target %s beside %v", target, n.Targets)
	}
	if _, err := os.Lstat(target); err == nil && !n.published(target) && !slices.Contains(n.Stayed, target) {
		return b.add(codes.FailedPrecondition, "target %s was made by the caller", target)
	}
	return nil
}

// NodeUnpublishVolume implements csipb.NodeServer. A volume that is not published is success.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	err := d.do("NodeUnpublishVolume", func(s *state, b breaches) error {
		v, err := find(s, req.GetVolumeId())
		if err != nil {
			return err
		}
		target, n := req.GetTargetPath(), v.node(d.c.Node)
		if err := d.checkPath(b, "target_path", target); err != nil {
			return err
		}
		if !n.published(target) {
			if !slices.Contains(n.Stayed, target) {
				return nil
			}
			// What was there before an unclean stop.
			n.Stayed = slices.DeleteFunc(n.Stayed, func(t string) bool { return t == target })
			return d.c.Devices.Unpublish(target)
		}
		if _, err := os.Lstat(target); err != nil {
			return b.add(codes.FailedPrecondition, "target %s was taken away by the caller: %v", target, err)
		}
		if !d.c.Capabilities.Stage {
			if err := d.detach(b, req.GetVolumeId()); err != nil {
				return err
			}
		}
		if err := d.c.Devices.Unpublish(target); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		n.Targets = slices.DeleteFunc(n.Targets, func(t string) bool { return t == target })
		if _, err := os.Lstat(target); err == nil && !slices.Contains(n.Stayed, target) {
			n.Stayed = append(n.Stayed, target)
		}
		return nil
	})
	return &csipb.NodeUnpublishVolumeResponse{}, err
}

// NodeUnstageVolume implements csipb.NodeServer. A volume that is not staged is success.
func (d *Driver) NodeUnstageVolume(_ context.Context, req *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	err := d.do("NodeUnstageVolume", func(s *state, b breaches) error {
		v, err := find(s, req.GetVolumeId())
		if err != nil {
			return err
		}
		path, n := req.GetStagingTargetPath(), v.node(d.c.Node)
		if !d.c.Capabilities.Stage {
			return b.add(codes.Unimplemented, "not announced")
		}
		if err := d.checkPath(b, "staging_target_path", path); err != nil {
			return err
		}
		switch {
		case n.Staging == "":
			// What was there before an unclean stop.
			if err := os.Remove(filepath.Join(path, stagedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return status.Error(codes.Internal, err.Error())
			}
			return nil
		case n.Staging != path:
			return b.add(codes.InvalidArgument, "staged at %s, and unstaged at %s", n.Staging, path)
		case len(n.Targets) > 0:
			return b.add(codes.FailedPrecondition, "unstaged while published at %v", n.Targets)
		}
		if err := os.Remove(filepath.Join(path, stagedFile)); err != nil {
			return b.add(codes.FailedPrecondition, "staging directory %s was changed by the caller: %v", path, err)
		}
		if err := d.detach(b, req.GetVolumeId()); err != nil {
			// It stays staged, with all that belongs to it.
			_ = os.WriteFile(filepath.Join(path, stagedFile), []byte("{}"), 0o600)
			return err
		}
		n.Staging = ""
		return nil
	})
	return &csipb.NodeUnstageVolumeResponse{}, err
}

// detach takes the device away, which nobody may use any more.
func (d *Driver) detach(b breaches, handle string) error {
	open, err := d.c.Devices.Open(handle)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if open {
		return b.add(codes.Internal, "the device of %s is open: device or resource busy", handle)
	}
	if err := d.c.Devices.Detach(handle); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// NodeExpandVolume implements csipb.NodeServer.
func (d *Driver) NodeExpandVolume(_ context.Context, req *csipb.NodeExpandVolumeRequest) (answer *csipb.NodeExpandVolumeResponse, err error) {
	err = d.do("NodeExpandVolume", func(s *state, b breaches) error {
		v, err := find(s, req.GetVolumeId())
		if err != nil {
			return err
		}
		if !d.c.Capabilities.Expand {
			return b.add(codes.Unimplemented, "not announced")
		}
		n := v.node(d.c.Node)
		call := nodeCall{publish: v.Publish, context: v.Context, secrets: req.GetSecrets(), capability: req.GetVolumeCapability()}
		if err := d.checkUse(b, v, call); err != nil {
			return err
		}
		size := req.GetCapacityRange().GetRequiredBytes()
		switch {
		case !n.published(req.GetVolumePath()):
			return b.add(codes.NotFound, "volume_path %q is not published", req.GetVolumePath())
		case req.GetStagingTargetPath() != n.Staging:
			return b.add(codes.InvalidArgument, "staging_target_path %q, not %q", req.GetStagingTargetPath(), n.Staging)
		case size > v.Size:
			return b.add(codes.OutOfRange, "%d bytes, and the controller has made it %d", size, v.Size)
		case size > 0 && size < v.Size:
			// As drivers do that look only for what they are asked for.
			answer = &csipb.NodeExpandVolumeResponse{CapacityBytes: size}
			return nil
		}
		if err := d.c.Devices.Refresh(req.GetVolumeId()); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		answer = &csipb.NodeExpandVolumeResponse{CapacityBytes: v.Size}
		return nil
	})
	return answer, err
}
