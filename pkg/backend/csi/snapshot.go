package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// SnapshotFinalizer keeps a VolumeSnapshot until DeleteCut. LabelVolume has the volume that it
// was made of.
const SnapshotFinalizer = "nearflash.io/snapshot"

// Annotations of a VolumeSnapshot.
const (
	annotationHold       = "nearflash.io/hold"
	annotationFilesystem = "nearflash.io/filesystem"
	annotationAccepted   = "nearflash.io/accepted"
	// annotationSize has the bytes of the volume when the cut was asked for, and
	// annotationDriver its CSI driver.
	annotationSize   = "nearflash.io/size-bytes"
	annotationDriver = "nearflash.io/driver"
)

// snapshotError is records.Error for objects that a cluster need not know.
func snapshotError(doing string, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%s: %w: the VolumeSnapshot API is not installed (snapshot.storage.k8s.io/v1): install the CRDs and the controller of external-snapshotter: %w", doing, volume.ErrInvalid, err)
	}
	return records.Error(doing, err)
}

// ours reports whether a VolumeSnapshot is a cut of ours.
func ours(s *snapshotv1.VolumeSnapshot) bool { return s.Labels[LabelVolume] != "" }

// readSnapshot returns the VolumeSnapshot of a cut, nil if there is none.
func (b *Backend) readSnapshot(ctx context.Context, id volume.SnapshotID) (*snapshotv1.VolumeSnapshot, error) {
	s := &snapshotv1.VolumeSnapshot{}
	err := snapshotError("read VolumeSnapshot "+string(id), b.api.Get(ctx, client.ObjectKey{Namespace: b.namespace, Name: string(id)}, s))
	if errors.Is(err, volume.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// existing is readSnapshot for a cut that is to be there. What is being deleted is none: the
// other driver may have begun.
func (b *Backend) existing(ctx context.Context, id volume.SnapshotID) (*snapshotv1.VolumeSnapshot, error) {
	s, err := b.readSnapshot(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case s == nil || !ours(s):
		return nil, fmt.Errorf("%w: no VolumeSnapshot %s/%s of nearflash", volume.ErrNotFound, b.namespace, id)
	case s.DeletionTimestamp != nil:
		return nil, fmt.Errorf("%w: VolumeSnapshot %s/%s is being deleted", volume.ErrNotFound, b.namespace, id)
	}
	return s, nil
}

// cutOf reads a VolumeSnapshot of ours. Errors: ErrBackend if somebody has edited it: nothing
// is guessed.
func cutOf(s *snapshotv1.VolumeSnapshot) (backend.Cut, error) {
	size, err := strconv.ParseInt(s.Annotations[annotationSize], 10, 64)
	if err != nil || size < 1 {
		return backend.Cut{}, fmt.Errorf("%w: annotation %s of VolumeSnapshot %s/%s is %q: accepted is the size of the volume in bytes",
			volume.ErrBackend, annotationSize, s.Namespace, s.Name, s.Annotations[annotationSize])
	}
	status := ptr.Deref(s.Status, snapshotv1.VolumeSnapshotStatus{})
	if status.RestoreSize != nil {
		size = max(size, status.RestoreSize.Value())
	}
	c := backend.Cut{
		ID: volume.SnapshotID(s.Name), Volume: volume.ID(s.Labels[LabelVolume]), SizeBytes: size,
		Created: ptr.Deref(status.CreationTime, s.CreationTimestamp).Time,
		Hold:    s.Annotations[annotationHold], Filesystem: volume.Formatted(s.Annotations[annotationFilesystem]),
		// The sidecar writes the time when CreateSnapshot has succeeded: then it is cut.
		Done:     status.CreationTime != nil && ptr.Deref(status.BoundVolumeSnapshotContentName, "") != "",
		Accepted: s.Annotations[annotationAccepted] == "true",
	}
	c.Ready = c.Done && ptr.Deref(status.ReadyToUse, false)
	return c, nil
}

// failureOf is why the other driver could not cut, nil if it has not failed.
func failureOf(s *snapshotv1.VolumeSnapshot) error {
	if s.Status == nil || s.Status.Error == nil {
		return nil
	}
	text := ptr.Deref(s.Status.Error.Message, "no reason is given")
	kind := volume.ErrUnavailable
	if isExhausted(text) {
		kind = volume.ErrNoSpace
	}
	return fmt.Errorf("%w: the origin of volume %s could not be cut: %s", kind, s.Labels[LabelVolume], text)
}

// cutStep is the next step of Cut.
type cutStep int

const (
	cutMake cutStep = iota
	// cutDone answers with what is there.
	cutDone
	// cutEnd ends a deletion that was begun; the cut is made anew.
	cutEnd
	// cutWait waits for the other driver.
	cutWait
)

// decideCut returns the next step. have is the VolumeSnapshot of the name, nil if there is none.
func decideCut(have *snapshotv1.VolumeSnapshot, of volume.ID) (cutStep, error) {
	if have == nil {
		return cutMake, nil
	}
	if !ours(have) {
		return cutDone, fmt.Errorf("%w: VolumeSnapshot %s/%s is not ours: it has no label %s", volume.ErrExists, have.Namespace, have.Name, LabelVolume)
	}
	if have.DeletionTimestamp != nil {
		return cutEnd, nil
	}
	c, err := cutOf(have)
	switch {
	case c.Volume != "" && c.Volume != of:
		return cutDone, fmt.Errorf("%w: VolumeSnapshot %s/%s is of volume %s", volume.ErrExists, have.Namespace, have.Name, c.Volume)
	case err != nil || c.Done:
		return cutDone, err
	}
	return cutWait, failureOf(have)
}

// deleteCutStep is the next step of a deletion.
type deleteCutStep int

const (
	deleteCutDone deleteCutStep = iota
	deleteCutObject
	deleteCutFinalizer
	deleteCutWait
)

// decideDeleteCut returns the next step. Our finalizer goes last: with the others the snapshot
// controller says that it has done its part.
func decideDeleteCut(have *snapshotv1.VolumeSnapshot) deleteCutStep {
	switch {
	case have == nil || !ours(have):
		return deleteCutDone
	case have.DeletionTimestamp == nil:
		return deleteCutObject
	case slices.Equal(have.Finalizers, []string{SnapshotFinalizer}):
		return deleteCutFinalizer
	}
	return deleteCutWait
}

// newSnapshot is a VolumeSnapshot with all that a cut needs from its first moment on.
func (b *Backend) newSnapshot(id volume.SnapshotID, of volume.ID, pv *corev1.PersistentVolume, driver string, req backend.CutRequest) *snapshotv1.VolumeSnapshot {
	s := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.namespace, Name: string(id), Finalizers: []string{SnapshotFinalizer},
			Labels: map[string]string{LabelVolume: string(of)},
			Annotations: map[string]string{
				annotationHold: req.Hold, annotationFilesystem: string(req.Filesystem),
				annotationSize: strconv.FormatInt(sizeOf(pv), 10), annotationDriver: driver,
			},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To(string(of))}},
	}
	if req.Class != "" {
		s.Spec.VolumeSnapshotClassName = &req.Class
	}
	return s
}

// checkSnapshotClass reports why a class cannot cut a volume of a driver. Without one, it is
// the snapshot controller that finds the driver's default.
func (b *Backend) checkSnapshotClass(ctx context.Context, name, driver string) error {
	if name == "" {
		return nil
	}
	class := &snapshotv1.VolumeSnapshotClass{}
	err := snapshotError("read VolumeSnapshotClass "+name, b.api.Get(ctx, client.ObjectKey{Name: name}, class))
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return fmt.Errorf("%w: no VolumeSnapshotClass %q: accepted is a class of driver %s, which has the origin", volume.ErrInvalid, name, driver)
	case err != nil:
		return err
	case class.Driver != driver:
		return fmt.Errorf("%w: VolumeSnapshotClass %s is of driver %s: accepted is a class of %s, which has the origin", volume.ErrInvalid, name, class.Driver, driver)
	}
	return nil
}

// checkFrom reports why a volume cannot begin as its request says.
func (b *Backend) checkFrom(ctx context.Context, id volume.ID, req backend.Request) error {
	if req.Origin.PV != "" {
		return fmt.Errorf("%w: volume %s: PersistentVolume %s has its content: accepted for a volume that begins as snapshot %s is a StorageClass", volume.ErrInvalid, id, req.Origin.PV, req.From)
	}
	s, err := b.existing(ctx, req.From)
	if err != nil {
		return err
	}
	c, err := cutOf(s)
	switch {
	case err != nil:
		return err
	case !c.Accepted:
		return fmt.Errorf("%w: snapshot %s was not accepted", volume.ErrNotFound, req.From)
	case req.SizeBytes < c.SizeBytes:
		return fmt.Errorf("%w: size %d of volume %s: accepted are %d bytes, the size of snapshot %s, and more", volume.ErrInvalid, req.SizeBytes, id, c.SizeBytes, c.ID)
	case !c.Ready:
		return fmt.Errorf("%w: snapshot %s is not ready yet: the other driver is at it", volume.ErrBusy, req.From)
	}
	return b.checkClassOf(ctx, req.Origin.StorageClass, s.Annotations[annotationDriver], "snapshot "+string(req.From))
}

// checkClassOf reports why a class cannot make a volume that begins as what a driver has.
func (b *Backend) checkClassOf(ctx context.Context, name, driver, what string) error {
	class, err := b.class(ctx, name)
	if err != nil {
		return err
	}
	of := class.Provisioner
	if moved, err := csitranslation.New().GetCSINameFromInTreeName(of); err == nil {
		of = moved
	}
	if of != driver {
		return fmt.Errorf("%w: StorageClass %s is of driver %s: accepted for a volume that begins as %s is a class of %s", volume.ErrInvalid, class.Name, of, what, driver)
	}
	return nil
}

// dataSource is what a claim begins as, nil for nothing.
func dataSource(from volume.SnapshotID) *corev1.TypedLocalObjectReference {
	if from == "" {
		return nil
	}
	return &corev1.TypedLocalObjectReference{APIGroup: ptr.To(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: string(from)}
}

// defaultSnapshotClass is the annotation of a driver's default.
const defaultSnapshotClass = "snapshot.storage.kubernetes.io/is-default-class"

// checkDefaultClass reports why the snapshot controller will find no class for a driver, or more
// than one. A driver that makes no snapshots has none.
func (b *Backend) checkDefaultClass(ctx context.Context, driver string) error {
	list := &snapshotv1.VolumeSnapshotClassList{}
	if err := b.api.List(ctx, list); err != nil {
		return snapshotError("list VolumeSnapshotClasses", err)
	}
	var names []string
	for i := range list.Items {
		if c := &list.Items[i]; c.Driver == driver && c.Annotations[defaultSnapshotClass] == "true" {
			names = append(names, c.Name)
		}
	}
	if len(names) != 1 {
		return fmt.Errorf("%w: driver %s, which has the origin, has %d default VolumeSnapshotClasses %v: name one in the parameter originSnapshotClass, or make one the default (annotation %s)",
			volume.ErrInvalid, driver, len(names), names, defaultSnapshotClass)
	}
	return nil
}
