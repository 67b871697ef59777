package driver

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

func parseStage(req *csi.NodeStageVolumeRequest) (volume.StageRequest, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil {
		return volume.StageRequest{}, err
	}
	if err := required("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return volume.StageRequest{}, err
	}
	a, fsType, err := parseNodeAccess(req.GetVolumeCapability(), req.GetVolumeContext())
	if err != nil {
		return volume.StageRequest{}, err
	}
	publication, err := decodePublication(req.GetPublishContext())
	if err != nil {
		return volume.StageRequest{}, err
	}
	cred, err := credentialsFor(publication.Source, req.GetSecrets())
	if err != nil {
		return volume.StageRequest{}, err
	}
	return volume.StageRequest{
		ID: id, Publication: publication, StagingPath: req.GetStagingTargetPath(),
		Block: a.Block, FSType: fsType, MountOptions: a.MountFlags, Credentials: cred, ReadOnly: a.ReadOnly,
		AcceptTwoWriters: req.GetVolumeContext()[keyNoReservations] == volume.AcceptTwoWriters,
	}, nil
}

func parsePublish(req *csi.NodePublishVolumeRequest) (volume.PublishRequest, access, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil {
		return volume.PublishRequest{}, access{}, err
	}
	if err := required("target_path", req.GetTargetPath()); err != nil {
		return volume.PublishRequest{}, access{}, err
	}
	a, fsType, err := parseNodeAccess(req.GetVolumeCapability(), req.GetVolumeContext())
	if err != nil {
		return volume.PublishRequest{}, access{}, err
	}
	if req.GetStagingTargetPath() == "" {
		return volume.PublishRequest{}, access{}, fmt.Errorf("%w: staging_target_path is missing: NodeStageVolume comes first", errPrecondition)
	}
	return volume.PublishRequest{
		ID: id, StagingPath: req.GetStagingTargetPath(), TargetPath: req.GetTargetPath(),
		Block: a.Block, FSType: fsType, MountOptions: a.MountFlags, ReadOnly: req.GetReadonly() || a.ReadOnly,
		Pod: parsePod(req.GetVolumeContext()),
	}, a, nil
}

// Keys that the kubelet adds for a CSIDriver with podInfoOnMount
// (https://kubernetes-csi.github.io/docs/pod-info.html).
const (
	keyPodNamespace = "csi.storage.k8s.io/pod.namespace"
	keyPodName      = "csi.storage.k8s.io/pod.name"
	keyPodUID       = "csi.storage.k8s.io/pod.uid"
)

// parsePod returns the pod that the volume is for, as far as the kubelet says it.
func parsePod(volumeContext map[string]string) volume.Pod {
	return volume.Pod{Namespace: volumeContext[keyPodNamespace], Name: volumeContext[keyPodName], UID: volumeContext[keyPodUID]}
}

// parseNodeAccess checks the capability and chooses the filesystem: what
// CreateVolume or the static volume's attributes say, and the capability must
// agree; empty for a block volume.
func parseNodeAccess(c *csi.VolumeCapability, volumeContext map[string]string) (access, string, error) {
	a, err := parseCapability(c)
	if err != nil {
		return access{}, "", err
	}
	_, contextFS, err := parseVolumeContext(volumeContext)
	if err != nil || a.Block {
		return a, "", err
	}
	fsType, err := agreeFSType(contextFS, []access{a})
	return a, fsType, err
}

// parseNodeExpand checks a NodeExpandVolumeRequest. Its secrets are for another driver's volume;
// whether this is one, the node's journal says.
func parseNodeExpand(req *csi.NodeExpandVolumeRequest) (volume.ExpandRequest, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil {
		return volume.ExpandRequest{}, err
	}
	if err := required("volume_path", req.GetVolumePath()); err != nil {
		return volume.ExpandRequest{}, err
	}
	need, _, err := checkRange(req.GetCapacityRange())
	if err != nil {
		return volume.ExpandRequest{}, err
	}
	exp := volume.ExpandRequest{ID: id, Path: req.GetVolumePath(), Size: need}
	if secrets := req.GetSecrets(); len(secrets) > 0 {
		exp.Credentials = &volume.Credentials{Secrets: secrets}
	}
	// The capability is optional here; without it the volume has a filesystem.
	if c := req.GetVolumeCapability(); c != nil {
		a, err := parseCapability(c)
		if err != nil {
			return volume.ExpandRequest{}, err
		}
		exp.Block = a.Block
	}
	return exp, nil
}
