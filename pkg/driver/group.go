package driver

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nearflash/nearflash/pkg/volume"
)

// GroupController is the CSI group controller service.
type GroupController struct {
	csi.UnimplementedGroupControllerServer
	groups volume.GroupSnapshotter
	locks  Locker
}

// Groups returns the service for groups of what the controller has, nil where it makes no
// snapshots. Both share their locks.
func (c *Controller) Groups() *GroupController {
	if c.snapshots == nil {
		return nil
	}
	return &GroupController{groups: c.snapshots, locks: c.locks}
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (*GroupController) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// groupRequest is a checked CreateVolumeGroupSnapshotRequest.
type groupRequest struct {
	ID volume.GroupID
	// Of are the volumes, in order.
	Of    []volume.ID
	Class volume.SnapshotClass
}

func parseCreateGroup(req *csi.CreateVolumeGroupSnapshotRequest) (groupRequest, error) {
	if err := required("name", req.GetName()); err != nil {
		return groupRequest{}, err
	}
	if err := requiredList("source_volume_ids", len(req.GetSourceVolumeIds())); err != nil {
		return groupRequest{}, err
	}
	out := groupRequest{ID: volume.GroupNamed(req.GetName())}
	for _, s := range req.GetSourceVolumeIds() {
		if err := required("source_volume_ids", s); err != nil {
			return groupRequest{}, err
		}
		id, err := volume.ParseID(s)
		if err != nil {
			return groupRequest{}, fmt.Errorf("%w: source_volume_ids: %q", volume.ErrNotFound, s)
		}
		if slices.Contains(out.Of, id) {
			return groupRequest{}, fmt.Errorf("%w: source_volume_ids: %q is there twice; accepted is each volume once", volume.ErrInvalid, s)
		}
		out.Of = append(out.Of, id)
	}
	slices.Sort(out.Of)
	p := &problems{what: "parameter"}
	p.unknown(req.GetParameters(), groupParameters)
	if err := p.err(); err != nil {
		return groupRequest{}, err
	}
	var err error
	out.Class, err = parseSnapshotClass(req.GetParameters())
	return out, err
}

// groupParameters are the accepted keys of a VolumeGroupSnapshotClass: what is in use is frozen,
// always.
var groupParameters = []string{keyOriginSnapshotClass}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer. It answers Aborted while nodes
// write out what the origins do not have, and when the volumes did not all stand still until
// they were cut: external-snapshotter asks again.
func (g *GroupController) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	create, err := parseCreateGroup(req)
	if err != nil {
		return nil, statusFor(err)
	}
	keys := []string{groupKey(create.ID)}
	for _, id := range create.Of {
		keys = append(keys, string(id))
	}
	unlock, err := lockAll(ctx, g.locks, keys...)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	members, err := g.groups.CreateGroup(ctx, create.ID, create.Of, create.Class)
	if err != nil {
		return nil, statusFor(err)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: encodeGroup(create.ID, members)}, nil
}

// groupKey is the lock of a group; no volume has such an ID.
func groupKey(id volume.GroupID) string { return "group/" + string(id) }

// encodeGroup answers with a group. It was taken when the last of its volumes was cut: all stood
// still since before the first.
func encodeGroup(id volume.GroupID, members []volume.Snapshot) *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: string(id), ReadyToUse: true}
	last := members[0].Created
	for _, s := range members {
		out.Snapshots = append(out.Snapshots, encodeSnapshot(s))
		out.ReadyToUse = out.ReadyToUse && s.Ready
		if s.Created.After(last) {
			last = s.Created
		}
	}
	out.CreationTime = timestamppb.New(last)
	return out
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer.
func (g *GroupController) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if err := required("group_snapshot_id", req.GetGroupSnapshotId()); err != nil {
		return nil, statusFor(err)
	}
	id, err := volume.ParseGroupID(req.GetGroupSnapshotId())
	if err != nil {
		// No group can have such an ID, so it is gone.
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	members, err := parseMembers(req.GetSnapshotIds())
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lockAll(ctx, g.locks, groupKey(id))
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := g.groups.DeleteGroup(ctx, id, members); err != nil {
		return nil, statusFor(err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// parseMembers reads snapshot_ids.
func parseMembers(ids []string) ([]volume.SnapshotHandle, error) {
	var out []volume.SnapshotHandle
	for _, s := range ids {
		h, err := volume.ParseSnapshotHandle(s)
		if err != nil {
			return nil, fmt.Errorf("snapshot_ids: %w", err)
		}
		out = append(out, h)
	}
	return out, nil
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (g *GroupController) GetVolumeGroupSnapshot(ctx context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if err := required("group_snapshot_id", req.GetGroupSnapshotId()); err != nil {
		return nil, statusFor(err)
	}
	id, err := volume.ParseGroupID(req.GetGroupSnapshotId())
	if err != nil {
		return nil, statusFor(fmt.Errorf("%w: group_snapshot_id %q", volume.ErrNotFound, req.GetGroupSnapshotId()))
	}
	members, err := g.groups.Group(ctx, id)
	if err != nil {
		return nil, statusFor(err)
	}
	group := encodeGroup(id, members)
	var have []string
	for _, s := range group.GetSnapshots() {
		have = append(have, s.GetSnapshotId())
	}
	if got := slices.Sorted(slices.Values(req.GetSnapshotIds())); !slices.Equal(got, slices.Sorted(slices.Values(have))) {
		return nil, statusFor(fmt.Errorf("%w: snapshot_ids %q: group %s has %q", volume.ErrInvalid, got, id, have))
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: group}, nil
}
