package csi

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/pvsource"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// createFacts are what a step of Create is decided by.
type createFacts struct {
	facts
	// origin is the PersistentVolume of a static origin, nil if there is none.
	origin *corev1.PersistentVolume
	// failure is the last event of the claim that its provisioning has failed, "" if there is
	// none.
	failure string
	// exhausted says that one of them was for want of space.
	exhausted bool
}

// createStep is the next step of Create.
type createStep int

const (
	createDone createStep = iota
	// createClaim makes the claim.
	createClaim
	// createBind binds a static origin to the claim, and keeps it.
	createBind
	// createKeep keeps the PersistentVolume that was made.
	createKeep
	// createTake gives a static origin's claim to a record that was made anew.
	createTake
	// createWait waits for the other driver.
	createWait
	// createEnd ends a deletion that was interrupted; the volume is made anew.
	createEnd
	// createDiscard gives up what can never become the volume; nobody was ever admitted.
	createDiscard
)

// decideCreate returns the next step. With createDiscard, the error is what Create answers
// once nothing is left.
func decideCreate(id volume.ID, f createFacts, req backend.Request) (createStep, error) {
	static := req.Origin.PV != ""
	if f.claim == nil {
		if static {
			if err := checkOrigin(id, f.origin, nil); err != nil {
				return createWait, err
			}
			return createClaim, checkModes(f.origin)
		}
		return createClaim, nil
	}
	if _, deleted := f.claim.Annotations[annotationDeleted]; deleted {
		return createEnd, nil
	}
	if f.claim.DeletionTimestamp != nil {
		return createWait, fmt.Errorf("%w: claim %s/%s was deleted by somebody; its data are kept (finalizer %s)", volume.ErrBusy, f.claim.Namespace, id, Finalizer)
	}
	if taken(f, req) {
		return createTake, nil
	}
	if field := difference(f, req); field != "" {
		return createWait, fmt.Errorf("%w: claim %s/%s was made with another %s", volume.ErrExists, f.claim.Namespace, id, field)
	}
	if f.claim.Spec.VolumeName == "" || f.claim.Status.Phase != corev1.ClaimBound || f.pv == nil {
		return decideUnbound(id, f, req)
	}
	if f.pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		return createKeep, nil // first, since what is discarded then may have been there before
	}
	if f.generation == 0 && !static && found(f.pv) {
		return createDiscard, fmt.Errorf("%w: Kubernetes has bound claim %s/%s to PersistentVolume %s, which was there before and may have somebody's data: it is left, on Retain, and another one is asked for",
			volume.ErrUnavailable, f.claim.Namespace, id, f.pv.Name)
	}
	if mode := ptr.Deref(f.pv.Spec.VolumeMode, ""); f.generation == 0 && !static && (mode != corev1.PersistentVolumeBlock || !pvsource.Has(f.pv)) {
		return createDiscard, fmt.Errorf("%w: the origin's StorageClass %s makes PersistentVolumes such as %s of kind %s: accepted are classes of CSI drivers",
			volume.ErrInvalid, req.Origin.StorageClass, f.pv.Name, pvsource.Kind(f.pv))
	}
	return createDone, nil
}

// decideUnbound is decideCreate for a claim that has no PersistentVolume yet.
func decideUnbound(id volume.ID, f createFacts, req backend.Request) (createStep, error) {
	switch {
	case f.claim.Status.Phase == corev1.ClaimLost:
		return createWait, fmt.Errorf("%w: claim %s/%s has lost its PersistentVolume %s", volume.ErrBackend, f.claim.Namespace, id, f.claim.Spec.VolumeName)
	case req.Origin.PV != "":
		if err := checkOrigin(id, f.origin, f.claim); err != nil {
			return createWait, err
		}
		if ref := f.origin.Spec.ClaimRef; ref == nil || ref.UID != f.claim.UID {
			return createBind, nil
		}
		return createWait, nil
	case f.claim.Spec.VolumeName != "":
		return createWait, nil
	case req.Node != "" && f.claim.Annotations[annotationSelectedNode] == "":
		// The provisioner takes the node away when that one will not do: nothing was made, and
		// the scheduler is to choose anew.
		return createDiscard, fmt.Errorf("%w: the driver of StorageClass %s could not make the origin for node %s: %s", volume.ErrNoSpace, req.Origin.StorageClass, req.Node, f.failure)
	case f.exhausted:
		return createDiscard, fmt.Errorf("%w: the driver of StorageClass %s could not make the origin: %s", volume.ErrNoSpace, req.Origin.StorageClass, f.failure)
	}
	return createWait, nil
}

// checkOrigin reports why a PersistentVolume that is there cannot be the origin of a volume.
// claim is the volume's, nil if it is not made yet.
func checkOrigin(id volume.ID, pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	if pv == nil {
		return fmt.Errorf("%w: the PersistentVolume that volume %s shall have as its origin does not exist", volume.ErrInvalid, id)
	}
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.Name == string(id) && (claim == nil || ref.Namespace == claim.Namespace) {
		return nil
	}
	return fmt.Errorf("%w: PersistentVolume %s, the origin of volume %s, is claimed by %s/%s: accepted is one that nobody has claimed",
		volume.ErrInUse, pv.Name, id, ref.Namespace, ref.Name)
}

// taken reports whether the claim of a static origin is of a record before this one, of the same
// name: that one is gone, or this one could not be (states.md, Over another CSI driver). What was
// made for a request is never taken: it belongs to whoever asked for it.
func taken(f createFacts, req backend.Request) bool {
	return req.UID != "" && req.Origin.PV != "" && f.claim.Annotations[annotationStatic] == req.Origin.PV && f.claim.Labels[LabelOwner] != req.UID
}

// difference names the field by which a claim differs from a request, "" if it does not. A
// volume that was expanded, or made larger than was asked, may be asked for as it is now.
func difference(f createFacts, req backend.Request) string {
	have := f.claim.Annotations[annotationStatic]
	size := f.claim.Spec.Resources.Requests.Storage().Value()
	switch {
	case req.UID != "" && f.claim.Labels[LabelOwner] != req.UID:
		return "owner"
	case have != req.Origin.PV:
		return "PersistentVolume"
	case have != "":
		return ""
	case ptr.Deref(f.claim.Spec.StorageClassName, "") != req.Origin.StorageClass:
		return "StorageClass"
	case !equality.Semantic.DeepEqual(f.claim.Spec.DataSource, dataSource(req.From)):
		return "dataSource"
	case size != req.SizeBytes && sizeOf(f.pv) != req.SizeBytes:
		return "size"
	}
	return ""
}

// Create implements backend.Backend: on return the claim is bound, and its PersistentVolume
// is kept whatever becomes of the claim. ErrBusy says that the other driver is at it.
func (b *Backend) Create(ctx context.Context, id volume.ID, req backend.Request) error {
	if (req.Origin.StorageClass == "") == (req.Origin.PV == "") {
		return fmt.Errorf("%w: volume %s: the origin is to be of a StorageClass, or a PersistentVolume that is there; accepted is one of them", volume.ErrInvalid, id)
	}
	ctx, cancel := b.wait(ctx)
	defer cancel()
	var pace pacer
	for {
		f, err := b.lookCreate(ctx, id, req)
		if err != nil {
			return err
		}
		step, why := decideCreate(id, f, req)
		if why != nil && step != createDiscard {
			return why
		}
		switch step {
		case createDone:
			why := usable(ctx, f.pv, req.Origin.PV != "", f.generation > 0)
			if why == nil || f.generation > 0 || req.Origin.PV != "" {
				return why
			}
			if err = b.discard(ctx, id, f.claim); err == nil {
				return why // and nothing is left
			}
		case createClaim:
			err = b.makeClaim(ctx, id, f.origin, req)
		case createBind:
			err = b.keep(ctx, f.origin, f.claim)
		case createKeep:
			err = b.keep(ctx, f.pv, f.claim)
		case createEnd:
			err = b.finishDelete(ctx, id)
		case createDiscard:
			if err = b.discard(ctx, id, f.claim); err == nil {
				return why
			}
		case createTake:
			err = b.writeClaim(ctx, f.claim, func(c *corev1.PersistentVolumeClaim) {
				metav1.SetMetaDataLabel(&c.ObjectMeta, LabelOwner, req.UID)
			})
		case createWait:
			err = pace.next(ctx, waitingForBound(id, f))
		}
		// Whoever wrote meanwhile has changed the facts.
		if err != nil && (ctx.Err() != nil || !conflict(err)) {
			return err
		}
	}
}

// usable reports why a PersistentVolume cannot be the origin of a volume, nil if it can. Where a static
// one can be reached from, its own PersistentVolume says. One that was used under a version that
// did not look at its secrets goes on: a node may have writes of it to flush.
func usable(ctx context.Context, pv *corev1.PersistentVolume, static, used bool) error {
	src, err := source(pv)
	if err == nil && !used {
		err = checkSecrets(pv.Name, secretNames(src))
	}
	if err == nil && !static {
		_, err = topologies(pv)
	}
	return err
}

func waitingForBound(id volume.ID, f createFacts) string {
	text := fmt.Sprintf("claim %s of volume %s is bound", f.claim.Name, id)
	if f.failure != "" {
		text += "; last failure: " + f.failure
	}
	return text
}

// lookCreate gathers the facts of a step.
func (b *Backend) lookCreate(ctx context.Context, id volume.ID, req backend.Request) (createFacts, error) {
	var f createFacts
	var err error
	if f.facts, err = b.look(ctx, id); err != nil {
		return f, err
	}
	if f.claim == nil && req.From != "" {
		if err := b.checkFrom(ctx, id, req); err != nil {
			return f, err
		}
	}
	if req.Origin.PV != "" {
		if f.origin, err = b.origin(ctx, req.Origin.PV); err != nil {
			return f, err
		}
		src, err := source(f.origin)
		if err == nil && f.claim == nil {
			err = b.onlyOne(ctx, f.origin.Name, src)
		}
		return f, err
	}
	if f.claim != nil && f.claim.Spec.VolumeName == "" {
		var exhausted int32
		f.failure, exhausted, err = b.failure(ctx, f.claim, reasonProvisioningFailed, nil)
		f.exhausted = exhausted > 0
	}
	return f, err
}

// makeClaim makes a claim, with all that it needs from its first moment on.
func (b *Backend) makeClaim(ctx context.Context, id volume.ID, origin *corev1.PersistentVolume, req backend.Request) error {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.namespace, Name: string(id), Finalizers: []string{Finalizer},
			Labels: map[string]string{LabelVolume: string(id)}, Annotations: map[string]string{},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeMode:       ptr.To(corev1.PersistentVolumeBlock),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: &req.Origin.StorageClass,
			Resources:        requestOf(req.SizeBytes),
			DataSource:       dataSource(req.From),
		},
	}
	if req.UID != "" {
		claim.Labels[LabelOwner] = req.UID
	}
	if req.Node != "" {
		claim.Annotations[annotationSelectedNode] = req.Node
	}
	if origin == nil {
		if err := b.checkClass(ctx, req); err != nil {
			return err
		}
	} else {
		claim.Annotations[annotationStatic] = origin.Name
		claim.Spec.VolumeName, claim.Spec.StorageClassName = origin.Name, &origin.Spec.StorageClassName
		claim.Spec.Resources = requestOf(sizeOf(origin))
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{modeOf(origin)}
	}
	err := b.api.Create(ctx, claim)
	if errors.Is(records.Error("", err), volume.ErrNotFound) {
		return fmt.Errorf("%w: namespace %s, in which origins are claimed, does not exist: %w", volume.ErrUnavailable, b.namespace, err)
	}
	return records.Error("create claim "+string(id), err)
}

func requestOf(size int64) corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}}
}

// checkClass reports why a class cannot make an origin.
func (b *Backend) checkClass(ctx context.Context, req backend.Request) error {
	class, err := b.class(ctx, req.Origin.StorageClass)
	switch {
	case err != nil:
		return err
	case class.Provisioner == b.driver:
		return fmt.Errorf("%w: StorageClass %s is of this driver: accepted for origins is a class of another CSI driver", volume.ErrInvalid, class.Name)
	case req.Node == "" && ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer:
		return fmt.Errorf("%w: StorageClass %s waits for a pod's node (WaitForFirstConsumer), and none was chosen: accepted for origins is volumeBindingMode Immediate", volume.ErrInvalid, class.Name)
	}
	return nil
}

// keep sets a PersistentVolume on Retain, and binds it to the claim if it is a static origin
// that is not bound yet, in one write on the version that was read.
func (b *Backend) keep(ctx context.Context, pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	base := pv.DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		pv.Spec.ClaimRef = &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
		}
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := records.Error("keep PersistentVolume "+pv.Name, b.api.Patch(ctx, pv, patch)); err != nil {
		return err
	}
	if got := pv.Spec.PersistentVolumeReclaimPolicy; got != corev1.PersistentVolumeReclaimRetain {
		return fmt.Errorf("%w: PersistentVolume %s is still on %s: is there an admission policy that changes it? accepted is Retain", volume.ErrBackend, pv.Name, got)
	}
	return nil
}
