package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// decideExport reports why a node must not be admitted, by what is known of the volume.
func decideExport(id volume.ID, f facts, g backend.Grant) error {
	switch {
	case g.Node == "":
		return fmt.Errorf("%w: admission to volume %s without a node", volume.ErrInvalid, id)
	case g.Generation < 1:
		return fmt.Errorf("%w: admission to volume %s under generation %d: accepted are positive ones", volume.ErrInvalid, id, g.Generation)
	case g.ReadOnly:
		return fmt.Errorf("%w: access mode MULTI_NODE_READER_ONLY (ReadOnlyMany) of volume %s: accepted are volumes of nearflash-target; a volume over another CSI driver's is attached to one node", volume.ErrInvalid, id)
	case f.claim == nil:
		return fmt.Errorf("%w: the claim of volume %s does not exist", volume.ErrNotFound, id)
	case g.Generation < f.generation:
		return &backend.StaleGenerationError{ID: id, Stored: f.generation, Requested: g.Generation}
	}
	if _, asked := f.claim.Annotations[annotationDeleted]; asked {
		return fmt.Errorf("%w: volume %s is being deleted", volume.ErrBusy, id)
	}
	for _, e := range f.exports() {
		if e.Initiator != g.Node {
			return fmt.Errorf("%w: node %s is admitted to volume %s, or its attachment is not gone yet", volume.ErrInUse, e.Initiator, id)
		}
	}
	if f.pv == nil || f.claim.Status.Phase != corev1.ClaimBound {
		return fmt.Errorf("%w: claim %s/%s of volume %s is not bound", volume.ErrBusy, f.claim.Namespace, f.claim.Name, id)
	}
	if policy := f.pv.Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimRetain {
		return fmt.Errorf("%w: PersistentVolume %s, the origin of volume %s, is on %s: accepted is Retain, so that only the deletion of the volume ends its data", volume.ErrBackend, f.pv.Name, id, policy)
	}
	return nil
}

// Export implements backend.Backend. Errors besides: ErrNodeNotFound if the kubelet of the
// node does not know the origin's driver; ErrBusy while the driver attaches, or if another
// controller has admitted somebody meanwhile.
func (b *Backend) Export(ctx context.Context, id volume.ID, g backend.Grant) (volume.Source, error) {
	ctx, cancel := b.wait(ctx)
	defer cancel()
	f, err := b.look(ctx, id)
	if err != nil {
		return volume.Source{}, err
	}
	if err := decideExport(id, f, g); err != nil {
		return volume.Source{}, err
	}
	src, err := source(f.pv)
	if err != nil {
		return volume.Source{}, err
	}
	attach, err := b.attaches(ctx, src.Driver)
	if err != nil {
		return volume.Source{}, err
	}
	if err := errors.Join(b.registered(ctx, g.Node, src.Driver), b.unused(ctx, id, f.pv.Name)); err != nil {
		return volume.Source{}, err
	}
	a := admission{Node: g.Node, Generation: g.Generation, Name: newName(), NoAttach: !attach}
	if err := b.writeAdmission(ctx, f.claim, &a); err != nil {
		return volume.Source{}, fmt.Errorf("admit node %s: %w", g.Node, err)
	}
	out := &volume.CSISource{
		Driver: src.Driver, Handle: src.VolumeHandle, PV: f.pv.Name, Attributes: maps.Clone(src.VolumeAttributes), CapacityBytes: sizeOf(f.pv),
		AccessMode: accessMode(f.pv), Secrets: secretNames(src),
		Admission: fmt.Sprintf("generation-%d", g.Generation), NoFence: !attach || volume.EmptyDetach(src.Driver),
	}
	if attach {
		va, err := b.attach(ctx, id, a, f.pv.Name, src.Driver)
		if err != nil {
			return volume.Source{}, err
		}
		// It stays the same when the node is admitted again, and nothing is detached in between.
		out.Admission, out.Attachment = string(va.UID), maps.Clone(va.Status.AttachmentMetadata)
	}
	return volume.Source{CSI: out}, nil
}

// modeOf is the mode by which a claim and the driver are asked for an origin that was there. The
// kubelet asks by the first one that a PersistentVolume has (csi_block.go); this is always one for
// one node: by one for several a driver may leave out its own check for a second writer.
func modeOf(pv *corev1.PersistentVolume) corev1.PersistentVolumeAccessMode {
	modes := pv.Spec.AccessModes
	if slices.Contains(modes, corev1.ReadWriteOncePod) && !slices.Contains(modes, corev1.ReadWriteOnce) {
		return corev1.ReadWriteOncePod
	}
	return corev1.ReadWriteOnce
}

// accessMode is modeOf for a source, "" for ReadWriteOnce.
func accessMode(pv *corev1.PersistentVolume) string {
	if mode := modeOf(pv); mode != corev1.ReadWriteOnce {
		return string(mode)
	}
	return ""
}

// checkModes reports why a PersistentVolume is not one that a single node alone writes to. The node
// asks as modeOf says, but external-attacher asks by all modes: ReadWriteMany among them is
// MULTI_NODE_MULTI_WRITER, by which a driver may leave out its check for a second node, and
// ReadOnlyMany beside ReadWriteOnce is an error (csi-lib-utils, accessmodes.ToCSIAccessMode).
func checkModes(pv *corev1.PersistentVolume) error {
	several := func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod
	}
	if modes := pv.Spec.AccessModes; len(modes) == 0 || slices.ContainsFunc(modes, several) {
		return fmt.Errorf("%w: PersistentVolume %s has access modes %v: accepted as an origin is one with ReadWriteOnce or ReadWriteOncePod, and no other", volume.ErrInvalid, pv.Name, modes)
	}
	return nil
}

// secretNames are the secrets that a PersistentVolume names for calls on the node, nil if it names none.
func secretNames(src *corev1.CSIPersistentVolumeSource) *volume.SecretNames {
	name := func(ref *corev1.SecretReference) string {
		if ref == nil {
			return ""
		}
		return ref.Namespace + "/" + ref.Name
	}
	out := volume.SecretNames{Stage: name(src.NodeStageSecretRef), Publish: name(src.NodePublishSecretRef), Expand: name(src.NodeExpandSecretRef)}
	if out == (volume.SecretNames{}) {
		return nil
	}
	return &out
}

// checkSecrets reports why the secrets of an origin cannot be had: the stage of our volume, which has
// the other driver stage and publish, is given one.
func checkSecrets(pv string, names *volume.SecretNames) error {
	if names == nil || names.Stage == "" || names.Publish == "" || names.Stage == names.Publish {
		return nil
	}
	return fmt.Errorf("%w: PersistentVolume %s names secret %s for NodePublishVolume (nodePublishSecretRef) and %s for NodeStageVolume: accepted as an origin is one with the same for both, or with one of them",
		volume.ErrInvalid, pv, names.Publish, names.Stage)
}

// attachStep is the next step of an attachment.
type attachStep int

const (
	attachDone attachStep = iota
	attachMake
	attachStamp
	attachWait
)

// decideAttach returns the next step that leads to the attachment of an admission.
func decideAttach(id volume.ID, va *storagev1.VolumeAttachment, a admission, pv, driver string) (attachStep, error) {
	switch {
	case va == nil:
		return attachMake, nil
	case va.Spec.NodeName != a.Node, va.Spec.Source.PersistentVolumeName == nil, *va.Spec.Source.PersistentVolumeName != pv, va.Spec.Attacher != driver:
		return attachWait, fmt.Errorf("%w: VolumeAttachment %s of volume %s is to node %s", volume.ErrInUse, va.Name, id, va.Spec.NodeName)
	case va.DeletionTimestamp != nil:
		return attachWait, nil
	case admissionOf(va) != stamped(a):
		return attachStamp, nil
	case va.Status.Attached:
		return attachDone, nil
	}
	return attachWait, nil
}

// stamped is the part of an admission that a VolumeAttachment carries.
func stamped(a admission) admission {
	a.NoAttach = false
	return a
}
