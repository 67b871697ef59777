package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Node is the CSI node service.
type Node struct {
	csi.UnimplementedNodeServer
	attacher   volume.Attacher
	locks      Locker
	name       string
	maxVolumes int64
	writers    singleWriters
	topology   bool
	limit      func(context.Context) int64
	loginKey   *keyagreement.Key
}

// NewNode returns the node service of the node of the given name. maxVolumes is
// how many volumes may be published to it; 0 leaves that to Kubernetes.
func NewNode(a volume.Attacher, l Locker, name string, maxVolumes int64) *Node {
	return &Node{attacher: a, locks: l, name: name, maxVolumes: maxVolumes}
}

// WithTopology has the node say its name as its topology, if on: the scheduler then says for
// which node a volume is made.
func (n *Node) WithTopology(on bool) *Node {
	n.topology = on
	return n
}

// WithLoginKey has the node log in to the storage server with accounts that are derived of its
// key, where the controller has admitted it with one.
func (n *Node) WithLoginKey(key *keyagreement.Key) *Node {
	n.loginKey = key
	return n
}

// WithLimit has the node say how many volumes it takes by what limit returns, 0 for no limit. Of
// two limits the smaller one counts.
func (n *Node) WithLimit(limit func(context.Context) int64) *Node {
	n.limit = limit
	return n
}

var nodeCapabilities = []csi.NodeServiceCapability_RPC_Type{
	csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
	csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	capabilityVolumeCondition,
}

// NodeGetCapabilities implements csi.NodeServer.
func (n *Node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range nodeCapabilities {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// NodeGetInfo implements csi.NodeServer.
func (n *Node) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	resp := &csi.NodeGetInfoResponse{NodeId: n.name, MaxVolumesPerNode: n.maxVolumes}
	if n.limit != nil {
		if limit := n.limit(ctx); limit > 0 && (n.maxVolumes == 0 || limit < n.maxVolumes) {
			resp.MaxVolumesPerNode = limit
		}
	}
	if n.topology {
		resp.AccessibleTopology = &csi.Topology{Segments: map[string]string{TopologyNode: n.name}}
	}
	return resp, nil
}

// NodeStageVolume implements csi.NodeServer.
func (n *Node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	stage, err := parseStage(req)
	if err != nil {
		return nil, statusFor(err)
	}
	// Before it is announced: what is prestaged may log in with it.
	if stage.Credentials, err = n.withDerived(stage.ID, stage.Publication, stage.Credentials); err != nil {
		return nil, statusFor(err)
	}
	n.attacher.Announce(stage)
	unlock, err := lock(ctx, n.locks, stage.ID)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := n.attacher.Stage(ctx, stage); err != nil {
		return nil, statusFor(err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements csi.NodeServer. It answers Aborted while a flush
// goes on; kubelet's next call continues it.
func (n *Node) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err := errors.Join(err, required("staging_target_path", req.GetStagingTargetPath())); err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, n.locks, id)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := n.attacher.Unstage(ctx, id, req.GetStagingTargetPath()); err != nil {
		return nil, statusFor(err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer.
func (n *Node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	pub, a, err := parsePublish(req)
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, n.locks, pub.ID)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := n.writers.admit(pub.ID, pub.TargetPath, a.SingleWriter); err != nil {
		return nil, statusFor(err)
	}
	if err := n.attacher.Publish(ctx, pub); err != nil {
		return nil, statusFor(err)
	}
	n.writers.add(pub.ID, pub.TargetPath)
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements csi.NodeServer.
func (n *Node) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err := errors.Join(err, required("target_path", req.GetTargetPath())); err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, n.locks, id)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	if err := n.attacher.Unpublish(ctx, id, req.GetTargetPath()); err != nil {
		return nil, statusFor(err)
	}
	n.writers.remove(id, req.GetTargetPath())
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements csi.NodeServer.
func (n *Node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	exp, err := parseNodeExpand(req)
	if err != nil {
		return nil, statusFor(err)
	}
	unlock, err := lock(ctx, n.locks, exp.ID)
	if err != nil {
		return nil, statusFor(err)
	}
	defer unlock()
	size, err := n.attacher.Expand(ctx, exp)
	if err != nil {
		return nil, statusFor(unknownHere(err))
	}
	if size < exp.Size {
		// Not an error of the request: the storage server has grown the volume,
		// and its initiator does not see that yet.
		return nil, statusFor(fmt.Errorf("%w: volume %s has %d bytes on this node, %d are expected", volume.ErrUnavailable, exp.ID, size, exp.Size))
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// NodeGetVolumeStats implements csi.NodeServer. It takes no lock: kubelet asks
// every minute, also while the volume is being flushed.
func (n *Node) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err := errors.Join(err, required("volume_path", req.GetVolumePath())); err != nil {
		return nil, statusFor(err)
	}
	st, err := n.attacher.Stats(ctx, id, req.GetVolumePath())
	if err != nil {
		return nil, statusFor(unknownHere(err))
	}
	resp := &csi.NodeGetVolumeStatsResponse{Usage: usage(st)}
	setVolumeCondition(resp, st.Abnormal, st.Message)
	return resp, nil
}

// unknownHere gives "not staged" the code that the specification wants of the
// two calls for which a volume that is not on the node does not exist.
func unknownHere(err error) error {
	if errors.Is(err, volume.ErrNotStaged) {
		return fmt.Errorf("%w: %w", volume.ErrNotFound, err)
	}
	return err
}

func usage(st volume.Stats) []*csi.VolumeUsage {
	if st.Block {
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: st.TotalBytes}}
	}
	return []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: st.TotalBytes, Used: st.UsedBytes, Available: st.AvailableBytes},
		{Unit: csi.VolumeUsage_INODES, Total: st.TotalInodes, Used: st.UsedInodes, Available: st.AvailableInodes},
	}
}
