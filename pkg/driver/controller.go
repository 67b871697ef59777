package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Controller is the CSI controller service.
type Controller struct {
	csi.UnimplementedControllerServer
	volumes volume.Provisioner
	locks   Locker
	// snapshots is nil where there are none.
	snapshots volume.GroupSnapshotter
}

// NewController returns a controller service over p.
func NewController(p volume.Provisioner, l Locker) *Controller {
	return &Controller{volumes: p, locks: l}
}

// WithSnapshots has the controller offer snapshots, groups of them, and clones, which p makes
// volumes from.
func (c *Controller) WithSnapshots(s volume.GroupSnapshotter) *Controller {
	c.snapshots = s
	return c
}

// snapshotCapabilities are those offered with snapshots.
var snapshotCapabilities = []csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
}

// controllerCapabilities are the ones offered. GET_CAPACITY is not: what a
// storage server with thin and thick volumes can still hold depends on the
// class, and no caller of Kubernetes asks without storage capacity tracking,
// which is for topologies. Neither is PUBLISH_READONLY: the access mode says
// whether a volume is read by many, and a pod's read-only mount is made on the node.
var controllerCapabilities = []csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
	csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
	csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	csi.ControllerServiceCapability_RPC_GET_VOLUME,
	csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (c *Controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	resp := &csi.ControllerGetCapabilitiesResponse{}
	offered := controllerCapabilities
	if c.snapshots != nil {
		offered = slices.Concat(offered, snapshotCapabilities)
	}
	for _, t := range offered {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// CreateVolume implements csi.ControllerServer.
func (c *Controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	create, err := parseCreate(req)
	if err != nil {
		return nil, statusFor(err)
	}
	keys := []string{string(create.ID)}
	if p := create.Spec.Parent; p != nil {
		if c.snapshots == nil {
			return nil, statusFor(fmt.Errorf("%w: %w", volume.ErrInvalid, errNoContent))
		}
		if p.Volume != "" && p.Volume != create.ID {
			keys = append(keys, string(p.Volume)) // it is cut
		}
	}
	unlock, err := lockAll(ctx, c.locks, keys...)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	v, err := c.create(ctx, create)
	if err != nil {
		return nil, statusFor(err)
	}
	resp := &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: string(v.ID), CapacityBytes: v.Spec.CapacityBytes, ContentSource: req.GetVolumeContentSource(),
	}}
	for _, segments := range v.Topologies {
		resp.Volume.AccessibleTopology = append(resp.Volume.AccessibleTopology, &csi.Topology{Segments: segments})
	}
	if create.FSType != "" {
		resp.Volume.VolumeContext = map[string]string{keyFSType: create.FSType}
	}
	return resp, nil
}

// create makes the volume. CSI's idea of "the same volume" is a size within the
// requested range, the domain's is an equal spec: an existing volume whose size
// satisfies the request is asked for with that size.
func (c *Controller) create(ctx context.Context, req createRequest) (volume.Volume, error) {
	existing, err := c.volumes.Get(ctx, req.ID)
	switch {
	case err == nil && inRange(existing.Spec.CapacityBytes, req.Range):
		req.Spec.CapacityBytes = existing.Spec.CapacityBytes
	case err == nil || errors.Is(err, volume.ErrNotFound):
	default:
		return volume.Volume{}, err
	}
	return c.volumes.Create(ctx, req.ID, req.Spec)
}

// DeleteVolume implements csi.ControllerServer.
func (c *Controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil && req.GetVolumeId() != "" {
		// No volume can have such an ID, so it is gone.
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, c.locks, id)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := c.volumes.Delete(ctx, id); err != nil {
		return nil, statusFor(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements csi.ControllerServer.
func (c *Controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	pub, err := parseControllerPublish(req)
	if err != nil {
		return nil, statusFor(err)
	}
	take, publish := lock, c.volumes.Publish
	if pub.Many {
		take, publish = lockInTurn, c.volumes.PublishReader
	}
	unlock, err := take(ctx, c.locks, pub.ID)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	publication, err := publish(ctx, pub.ID, pub.Node, pub.Spec, pub.Credentials)
	if err != nil {
		return nil, statusFor(err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: encodePublication(publication)}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (c *Controller) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil && req.GetVolumeId() != "" {
		// No volume can have such an ID, so it is published nowhere: a volume that could
		// not be attached must not keep its VolumeAttachment for good.
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, c.locks, id)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := c.unpublish(ctx, id, req.GetNodeId()); err != nil {
		return nil, statusFor(err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// unpublish ends node's entitlement; an empty node means whichever has it.
func (c *Controller) unpublish(ctx context.Context, id volume.ID, node string) error {
	if node == "" {
		v, err := c.volumes.Get(ctx, id)
		if errors.Is(err, volume.ErrNotFound) || err == nil && !v.Published {
			return nil
		}
		if err != nil {
			return err
		}
		node = v.Fence.Node
	}
	err := c.volumes.Unpublish(ctx, id, node)
	if errors.Is(err, volume.ErrNotFound) {
		// "If the volume is already not published to the node, or does not
		// exist, the Plugin MUST reply 0 OK."
		return nil
	}
	return err
}

// ControllerExpandVolume implements csi.ControllerServer. A node must always
// follow: even a raw block volume has a cache table to be lengthened.
func (c *Controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	id, size, err := parseExpand(req)
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, c.locks, id)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	size, err = c.volumes.Expand(ctx, id, size)
	if err != nil {
		return nil, statusFor(err)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (c *Controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := errors.Join(required("volume_id", req.GetVolumeId()), requiredList("volume_capabilities", len(req.GetVolumeCapabilities()))); err != nil {
		return nil, statusFor(err)
	}
	id, err := volume.ParseID(req.GetVolumeId())
	if err != nil {
		return nil, statusFor(fmt.Errorf("%w: %s", volume.ErrNotFound, req.GetVolumeId()))
	}
	if _, err := c.volumes.Get(ctx, id); err != nil {
		return nil, statusFor(err)
	}
	if message := unsupported(req); message != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: message}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(), Parameters: req.GetParameters(),
		MutableParameters: req.GetMutableParameters(),
	}}, nil
}

// ControllerGetVolume implements csi.ControllerServer.
func (c *Controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil {
		return nil, statusFor(err)
	}
	v, err := c.volumes.Get(ctx, id)
	if err != nil {
		return nil, statusFor(err)
	}
	resp := &csi.ControllerGetVolumeResponse{
		Volume: &csi.Volume{VolumeId: string(v.ID), CapacityBytes: v.Spec.CapacityBytes},
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{},
	}
	resp.Status.PublishedNodeIds = v.PublishedTo()
	return resp, nil
}
