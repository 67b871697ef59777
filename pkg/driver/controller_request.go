package driver

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

// createRequest is a checked CreateVolumeRequest.
type createRequest struct {
	ID     volume.ID
	Spec   volume.Spec
	FSType string
	Range  *csi.CapacityRange
}

func parseCreate(req *csi.CreateVolumeRequest) (createRequest, error) {
	id, err := volumeIDFor(req.GetName())
	if err != nil {
		return createRequest{}, err
	}
	as, err := parseCapabilities(req.GetVolumeCapabilities())
	if err != nil {
		return createRequest{}, err
	}
	parent, err := parseParent(req.GetVolumeContentSource())
	if err != nil {
		return createRequest{}, err
	}
	cl, err := parseClass(req.GetParameters())
	if err != nil {
		return createRequest{}, err
	}
	fsType, err := agreeFSType(cl.FSType, as)
	if err != nil {
		return createRequest{}, err
	}
	cl.Spec.CapacityBytes, err = parseCapacity(req.GetCapacityRange(), fsType)
	if err != nil {
		return createRequest{}, err
	}
	// "Plugins MUST treat these as if they take precedence over the parameters
	// field" (csi.proto, CreateVolumeRequest).
	asked, err := parseChange(req.GetMutableParameters())
	if err != nil {
		return createRequest{}, err
	}
	spec, err := asked.apply(cl.Spec)
	if err != nil {
		return createRequest{}, err
	}
	if as[0].Many {
		if err := readByMany(spec, parent); err != nil {
			return createRequest{}, err
		}
	}
	spec.Parent = parent
	spec.LimitBytes = req.GetCapacityRange().GetLimitBytes()
	spec.Node = chosenNode(req.GetAccessibilityRequirements())
	return createRequest{ID: id, Spec: spec, FSType: fsType, Range: req.GetCapacityRange()}, checkGeometry(spec)
}

// readByMany refuses to make a volume that many nodes could not read.
func readByMany(spec volume.Spec, parent *volume.Parent) error {
	switch {
	case spec.Origin != nil:
		return fmt.Errorf("%w: access mode MULTI_NODE_READER_ONLY (ReadOnlyMany) with parameter %s: %q: a volume over another CSI driver's is attached to one node; accepted is %s %s", volume.ErrInvalid, keyBackend, backendCSI, keyBackend, backendISCSI)
	case parent == nil:
		return fmt.Errorf("%w: access mode MULTI_NODE_READER_ONLY (ReadOnlyMany) without volume_content_source: a new volume is empty, and nobody could write to it; accepted is a claim with a dataSource, a VolumeSnapshot or a PersistentVolumeClaim", volume.ErrInvalid)
	}
	return nil
}

// TopologyNode is the key of topologies that has a node's name. Kubernetes makes it a label of
// the node, whose value has 63 characters at most.
const TopologyNode = "topology.nearflash.io/node"

// chosenNode is the node that the scheduler has chosen for the first pod, "" if it has not, or
// if no topology of this driver is announced: external-provisioner puts it first.
func chosenNode(t *csi.TopologyRequirement) string {
	if len(t.GetPreferred()) == 0 {
		return ""
	}
	return t.GetPreferred()[0].GetSegments()[TopologyNode]
}

// publishRequest is a checked ControllerPublishVolumeRequest.
type publishRequest struct {
	ID   volume.ID
	Node string
	// Spec is what a record may be made of, if there is none.
	Spec        *volume.Spec
	Credentials *volume.Credentials
	// Many makes the node one of many that read the volume.
	Many bool
}

func parseControllerPublish(req *csi.ControllerPublishVolumeRequest) (publishRequest, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil {
		return publishRequest{}, err
	}
	if err := required("node_id", req.GetNodeId()); err != nil {
		return publishRequest{}, err
	}
	a, err := parseCapability(req.GetVolumeCapability())
	if err != nil {
		return publishRequest{}, err
	}
	if req.GetReadonly() {
		return publishRequest{}, fmt.Errorf("%w: readonly: the controller offers no PUBLISH_READONLY; accepted is readonly at NodePublishVolume", volume.ErrInvalid)
	}
	spec, _, err := parseVolumeContext(req.GetVolumeContext())
	if err != nil {
		return publishRequest{}, err
	}
	cred, err := parseCredentials(req.GetSecrets())
	if err != nil {
		return publishRequest{}, err
	}
	return publishRequest{ID: id, Node: req.GetNodeId(), Spec: spec, Credentials: cred, Many: a.Many}, nil
}

func parseExpand(req *csi.ControllerExpandVolumeRequest) (volume.ID, int64, error) {
	id, err := parseVolumeID(req.GetVolumeId())
	if err != nil {
		return "", 0, err
	}
	if c := req.GetVolumeCapability(); c != nil {
		if _, err := parseCapability(c); err != nil {
			return "", 0, err
		}
	}
	size, err := parseExpansion(req.GetCapacityRange())
	return id, size, err
}

// unsupported says why a volume cannot be used as asked; empty if it can.
func unsupported(req *csi.ValidateVolumeCapabilitiesRequest) string {
	as, capErr := parseCapabilities(req.GetVolumeCapabilities())
	static, contextFS, contextErr := parseVolumeContext(req.GetVolumeContext())
	_, classErr := parseClass(req.GetParameters())
	_, changeErr := parseChange(req.GetMutableParameters())
	if err := errors.Join(capErr, contextErr, classErr, changeErr); err != nil {
		return err.Error()
	}
	if as[0].Many && static != nil && static.IsStatic() {
		return "access mode MULTI_NODE_READER_ONLY (ReadOnlyMany): accepted are volumes of nearflash-target; a static LUN, or a volume over another CSI driver's, is attached to one node"
	}
	if contextFS == "" || as[0].Block {
		return ""
	}
	if _, err := agreeFSType(contextFS, as); err != nil {
		return err.Error()
	}
	return ""
}

// requiredList reports a missing repeated field.
func requiredList(field string, n int) error {
	if n == 0 {
		return fmt.Errorf("%w: %s are missing", volume.ErrInvalid, field)
	}
	return nil
}
