package csi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Labels and finalizer of the objects that this package makes.
const (
	// LabelVolume has the volume's ID, on claims and VolumeAttachments.
	LabelVolume = "nearflash.io/volume"
	// LabelOwner has the UID of the record that a claim was made for.
	LabelOwner = "nearflash.io/owner-uid"
	// LabelGeneration has the generation of a VolumeAttachment.
	LabelGeneration = "nearflash.io/generation"
	// Finalizer keeps a claim until DeleteVolume: it has no pod, so that pvc-protection does
	// not.
	Finalizer = "nearflash.io/origin"
)

// Annotations.
const (
	// annotationGeneration has the highest generation that a claim was ever admitted under.
	annotationGeneration = "nearflash.io/generation"
	// annotationAdmitted has, as JSON, the admission that there is (admission).
	annotationAdmitted = "nearflash.io/admitted"
	// annotationDeleted says that the volume's data are not wanted any more.
	annotationDeleted = "nearflash.io/deletion-requested"
	// annotationStatic names the PersistentVolume that was there before the claim.
	annotationStatic = "nearflash.io/persistent-volume"
	// annotationAdmission is on a VolumeAttachment, and names the admission it was made for.
	annotationAdmission = "nearflash.io/admission"

	// annotationSelectedNode is the scheduler's (kubernetes, pkg/controller/volume/persistentvolume).
	annotationSelectedNode = "volume.kubernetes.io/selected-node"
	// annotationProvisionedBy is on a PersistentVolume that a provisioner has made.
	annotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// annotationFound is on a PersistentVolume that Kubernetes has bound to a claim by itself
	// (k8s.io/component-helpers, volume.AnnBoundByController), and on none that a provisioner has
	// made for it.
	annotationFound = "pv.kubernetes.io/bound-by-controller"
)

// admission is whom a claim admits.
type admission struct {
	Node       string `json:"node"`
	Generation int64  `json:"generation"`
	// Name tells it from others of the node.
	Name string `json:"name"`
	// NoAttach says that the other driver attaches nothing: there is no VolumeAttachment, and
	// nobody can tell whether the volume is used.
	NoAttach bool `json:"noAttach,omitempty"`
}

// facts are what the API server says of a volume.
type facts struct {
	claim *corev1.PersistentVolumeClaim
	// pv is nil as long as the claim has none.
	pv *corev1.PersistentVolume
	// attachment is ours, nil if there is none.
	attachment *storagev1.VolumeAttachment
	// generation and admitted are those of the claim; admitted may be nil.
	generation int64
	admitted   *admission
}

// attachmentName is the one name that a VolumeAttachment of ours for a volume may have.
func (b *Backend) attachmentName(id volume.ID) string {
	sum := sha256.Sum256([]byte(b.namespace + "/" + string(id)))
	return "nearflash-" + hex.EncodeToString(sum[:])
}

// claimKey is the name of a volume's claim.
func (b *Backend) claimKey(id volume.ID) client.ObjectKey {
	return client.ObjectKey{Namespace: b.namespace, Name: string(id)}
}

// look asks for everything. A claim that is missing is nil, without an error; so is its
// PersistentVolume.
func (b *Backend) look(ctx context.Context, id volume.ID) (facts, error) {
	var f facts
	claim := &corev1.PersistentVolumeClaim{}
	switch err := records.Error("read claim "+string(id), b.api.Get(ctx, b.claimKey(id), claim)); {
	case err == nil:
		f.claim = claim
	case !errors.Is(err, volume.ErrNotFound):
		return facts{}, err
	}
	if f.claim != nil {
		if owner := claim.Labels[LabelVolume]; owner != string(id) {
			return facts{}, fmt.Errorf("%w: claim %s/%s is not ours: it has no label %s=%s", volume.ErrExists, b.namespace, id, LabelVolume, id)
		}
		if claim.DeletionTimestamp == nil && !slices.Contains(claim.Finalizers, Finalizer) {
			return facts{}, fmt.Errorf("%w: claim %s/%s is not ours: it has no finalizer %s", volume.ErrExists, b.namespace, id, Finalizer)
		}
		var err error
		if f.generation, f.admitted, err = readState(claim); err != nil {
			return facts{}, err
		}
		if f.pv, err = b.persistentVolume(ctx, claim.Spec.VolumeName); err != nil {
			return facts{}, err
		}
	}
	var err error
	f.attachment, err = b.attachment(ctx, id)
	return f, err
}

// attachment returns our VolumeAttachment, nil if there is none.
func (b *Backend) attachment(ctx context.Context, id volume.ID) (*storagev1.VolumeAttachment, error) {
	va := &storagev1.VolumeAttachment{}
	err := records.Error("read VolumeAttachment of volume "+string(id), b.api.Get(ctx, client.ObjectKey{Name: b.attachmentName(id)}, va))
	if errors.Is(err, volume.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return va, nil
}

// persistentVolume returns the one of a name, nil if there is none.
func (b *Backend) persistentVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	if name == "" {
		return nil, nil
	}
	pv := &corev1.PersistentVolume{}
	err := records.Error("read PersistentVolume "+name, b.api.Get(ctx, client.ObjectKey{Name: name}, pv))
	if errors.Is(err, volume.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return pv, nil
}

// readState reads what a claim says of admissions. Errors: ErrBackend if somebody has edited
// it: nothing is guessed.
func readState(claim *corev1.PersistentVolumeClaim) (generation int64, admitted *admission, err error) {
	if text, ok := claim.Annotations[annotationGeneration]; ok {
		if generation, err = strconv.ParseInt(text, 10, 64); err != nil || generation < 1 {
			return 0, nil, fmt.Errorf("%w: annotation %s of claim %s/%s is %q: accepted is the highest generation that the volume was admitted under",
				volume.ErrBackend, annotationGeneration, claim.Namespace, claim.Name, text)
		}
	}
	if text, ok := claim.Annotations[annotationAdmitted]; ok {
		admitted = &admission{}
		if err := json.Unmarshal([]byte(text), admitted); err != nil || admitted.Node == "" || admitted.Name == "" {
			return 0, nil, fmt.Errorf("%w: annotation %s of claim %s/%s cannot be read: %q",
				volume.ErrBackend, annotationAdmitted, claim.Namespace, claim.Name, text)
		}
	}
	return generation, admitted, nil
}

// writeClaim changes a claim as it was read. Errors: ErrBusy if it was changed since.
func (b *Backend) writeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) error {
	base := claim.DeepCopy()
	change(claim)
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	return records.Error("write claim "+claim.Name, b.api.Patch(ctx, claim, patch))
}

// writeAdmission makes an admission the only one of a claim, nil for none.
func (b *Backend) writeAdmission(ctx context.Context, claim *corev1.PersistentVolumeClaim, a *admission) error {
	return b.writeClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) {
		if a == nil {
			delete(c.Annotations, annotationAdmitted)
			return
		}
		text, _ := json.Marshal(a) // strings and numbers never fail
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationAdmitted, string(text))
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationGeneration, strconv.FormatInt(a.Generation, 10))
	})
}

// newName returns a name that no admission has had.
func newName() string { return rand.Text() }

// of returns the admission that a VolumeAttachment was made for.
func admissionOf(va *storagev1.VolumeAttachment) admission {
	generation, _ := strconv.ParseInt(va.Labels[LabelGeneration], 10, 64) // 0 if somebody has edited it
	return admission{Node: va.Spec.NodeName, Generation: generation, Name: va.Annotations[annotationAdmission]}
}

// exports are the admissions that there are. The claim's own is the truth; a VolumeAttachment
// to the same node belongs to it, whichever it was made for. One to another node is what a
// controller that stalled has left.
func (f facts) exports() []backend.Export {
	var out []backend.Export
	va := f.attachment
	if a := f.admitted; a != nil {
		mine := va != nil && va.Spec.NodeName == a.Node
		out = append(out, a.export(a.NoAttach || mine && va.Status.Attached))
		if mine {
			return out
		}
	}
	if va != nil {
		out = append(out, admissionOf(va).export(va.Status.Attached))
	}
	return out
}

func (a admission) export(attached bool) backend.Export {
	return backend.Export{Initiator: a.Node, Generation: a.Generation, Admission: a.Name, LoggedIn: attached}
}

// gone makes of "not found" and "not this version" an answer: the object that was meant is
// not there any more, or was changed, and is to be looked at again.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }
