package main

import (
	"context"
	"errors"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Keys of a class's parameters and of a volume's context.
const (
	paramPool     = "pool"
	paramMonitors = "monitors"
	// paramDisk is how nodes show an image: diskSCSI, or as the kernel's client does.
	paramDisk = "disk"
	diskSCSI  = "scsi"
)

// Sizes of images. What is asked for is rounded up to whole objects of RBD.
const (
	defaultSize = 1 << 30
	objectSize  = 4 << 20
)

// controller makes images, and says which node may have one.
type controller struct {
	csi.UnimplementedControllerServer
	inProgress
	ceph  *cluster
	boots boots
}

func newController(c *cluster, b boots) *controller {
	return &controller{ceph: c, boots: b}
}

// ControllerGetCapabilities implements ControllerServer.
func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	} {
		rpc := &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}}
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{Type: rpc})
	}
	return answer, nil
}

// checkCapability refuses what is no raw block volume of one writer.
func checkCapability(capabilities ...*csi.VolumeCapability) error {
	if len(capabilities) == 0 {
		return status.Error(codes.InvalidArgument, "no volume capability")
	}
	for _, v := range capabilities {
		switch {
		case v.GetBlock() == nil:
			return status.Error(codes.InvalidArgument, "raw block volumes only (volumeMode: Block)")
		case v.GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:
			return status.Errorf(codes.InvalidArgument, "access mode %v: want SINGLE_NODE_WRITER", v.GetAccessMode().GetMode())
		}
	}
	return nil
}

// roundUp returns a size in whole objects, or an error if the limit is below it.
func roundUp(r *csi.CapacityRange) (int64, error) {
	size := r.GetRequiredBytes()
	if size == 0 {
		size = defaultSize
	}
	size = (size + objectSize - 1) / objectSize * objectSize
	if limit := r.GetLimitBytes(); limit > 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes in objects of %d are more than the limit of %d", r.GetRequiredBytes(), objectSize, limit)
	}
	return size, nil
}

// failed gives an error of Ceph its code.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoImage):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, errSmaller):
		return status.Error(codes.OutOfRange, err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return status.Error(codes.DeadlineExceeded, err.Error())
	default:
		return status.Error(codes.Internal, err.Error())
	}
}

// CreateVolume implements ControllerServer.
func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := checkCapability(r.GetVolumeCapabilities()...); err != nil {
		return nil, err
	}
	from, err := sourceOf(r)
	if err != nil {
		return nil, err
	}
	monitors := r.GetParameters()[paramMonitors]
	if monitors == "" || strings.ContainsAny(monitors, " \t\n") {
		return nil, status.Errorf(codes.InvalidArgument, "parameter %s %q: want ADDRESS:PORT,...", paramMonitors, monitors)
	}
	kind := r.GetParameters()[paramDisk]
	if kind != "" && kind != diskSCSI {
		return nil, status.Errorf(codes.InvalidArgument, "parameter %s %q: want %s, or none", paramDisk, kind, diskSCSI)
	}
	want, err := roundUp(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	image := r.GetParameters()[paramPool] + "/" + r.GetName()
	end, err := c.begin(image)
	if err != nil {
		return nil, err
	}
	defer end()
	have, err := c.ceph.size(ctx, image)
	if errors.Is(err, errNoImage) {
		if have = want; from == "" {
			err = c.ceph.create(ctx, image, want)
		} else {
			err = c.fill(ctx, from, image, want)
		}
	}
	if err != nil {
		return nil, failed(err)
	}
	if have != want {
		return nil, status.Errorf(codes.AlreadyExists, "image %s has %d bytes, not %d", image, have, want)
	}
	volume := &csi.Volume{
		VolumeId: image, CapacityBytes: have, VolumeContext: map[string]string{paramMonitors: monitors}, ContentSource: r.GetVolumeContentSource(),
	}
	if kind != "" {
		volume.VolumeContext[paramDisk] = kind
	}
	return &csi.CreateVolumeResponse{Volume: volume}, nil
}

// DeleteVolume implements ControllerServer.
func (c *controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	image := r.GetVolumeId()
	end, err := c.begin(image)
	if err != nil {
		return nil, err
	}
	defer end()
	n, err := c.ceph.notes(ctx, image)
	if errors.Is(err, errNoImage) {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, failed(err)
	}
	if n.Node != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "image %s is published to %s", image, n.Node)
	}
	all, err := c.ceph.snapshots(ctx, image)
	if err != nil {
		return nil, failed(err)
	}
	if len(all) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "image %s has %d snapshots", image, len(all))
	}
	if err := c.unfence(ctx, image, &n); err != nil {
		return nil, failed(err)
	}
	// Before the image: without it there is nothing that a repeated call would look for.
	if err := c.ceph.removeNotes(ctx, image); err != nil {
		return nil, failed(err)
	}
	if err := c.ceph.remove(ctx, image); err != nil {
		return nil, failed(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements ControllerServer. It tells the node which clients are
// fenced: one of them may be a mapping that the node still has.
func (c *controller) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	image, node := r.GetVolumeId(), r.GetNodeId()
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if node == "" {
		return nil, status.Error(codes.InvalidArgument, "no node")
	}
	if r.GetReadonly() {
		return nil, status.Error(codes.InvalidArgument, "read-only volumes are not made")
	}
	end, err := c.begin(image)
	if err != nil {
		return nil, err
	}
	defer end()
	n, err := c.ceph.notes(ctx, image)
	if err != nil {
		return nil, failed(err)
	}
	if n.Node != "" && n.Node != node {
		return nil, status.Errorf(codes.FailedPrecondition, "image %s is published to %s", image, n.Node)
	}
	if err := c.unfence(ctx, image, &n); err != nil {
		return nil, failed(err)
	}
	n.Node = node
	if err := c.ceph.setNotes(ctx, image, n); err != nil {
		return nil, failed(err)
	}
	var addresses []string
	for _, f := range n.Fenced {
		addresses = append(addresses, f.Address)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{contextFenced: strings.Join(addresses, " ")}}, nil
}

// ControllerUnpublishVolume implements ControllerServer. A node that has unstaged the
// volume has no client any more; one that has it is lost, and fenced before the answer.
func (c *controller) ControllerUnpublishVolume(ctx context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	image, node := r.GetVolumeId(), r.GetNodeId()
	end, err := c.begin(image)
	if err != nil {
		return nil, err
	}
	defer end()
	done := &csi.ControllerUnpublishVolumeResponse{}
	n, err := c.ceph.notes(ctx, image)
	if errors.Is(err, errNoImage) {
		return done, nil
	}
	if err != nil {
		return nil, failed(err)
	}
	if n.Node == "" || node != "" && n.Node != node {
		return done, nil
	}
	if err := c.fence(ctx, image, &n); err != nil {
		return nil, failed(err)
	}
	n.Node, n.Clients = "", nil
	return done, failed(c.ceph.setNotes(ctx, image, n))
}

// ControllerExpandVolume implements ControllerServer.
func (c *controller) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	image := r.GetVolumeId()
	want, err := roundUp(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	end, err := c.begin(image)
	if err != nil {
		return nil, err
	}
	defer end()
	have, err := c.ceph.size(ctx, image)
	if err == nil && have < want {
		have, err = want, c.withLock(ctx, image, func() error { return c.ceph.resize(ctx, image, want) })
	}
	if err != nil {
		return nil, failed(err)
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: have, NodeExpansionRequired: true}, nil
}

// ValidateVolumeCapabilities implements ControllerServer.
func (c *controller) ValidateVolumeCapabilities(ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if !imagePattern.MatchString(r.GetVolumeId()) {
		return nil, status.Errorf(codes.InvalidArgument, "%q is no POOL/IMAGE", r.GetVolumeId())
	}
	if _, err := c.ceph.size(ctx, r.GetVolumeId()); err != nil {
		return nil, failed(err)
	}
	if err := checkCapability(r.GetVolumeCapabilities()...); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(),
	}}, nil
}
