package adopt

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// act takes a step. Every write of what was there before is on the version that was judged.
func (a *Adopter) act(ctx context.Context, f *facts, s step, w Want) error {
	j := f.journal
	switch s.kind {
	case save:
		return a.create(ctx, newJournal(f, w))
	case keep:
		return a.keep(ctx, j, s.volume)
	case makeFront:
		return a.makeVolume(ctx, j, j.frontVolume())
	case orderClaim:
		return a.note(ctx, j, func(j *journal) {
			j.Claim = f.claim
			j.order(f.claim.UID)
		})
	case deleteClaim:
		return a.remove(ctx, "claim", f.claim)
	case orderVolume:
		return a.note(ctx, j, func(j *journal) {
			j.Volume = f.volume
			j.order(f.volume.UID)
		})
	case deleteOld:
		return a.remove(ctx, "PersistentVolume", f.volume)
	case makeBlock:
		return a.makeVolume(ctx, j, j.blockVolume(a.origins))
	case reserve:
		return a.reserve(ctx, s.volume, f)
	case makeClaim:
		return a.makeClaim(ctx, j, s.volume.Name)
	}
	return a.actRelease(ctx, f, s)
}

// actRelease takes a step that only a release has.
func (a *Adopter) actRelease(ctx context.Context, f *facts, s step) error {
	j := f.journal
	switch s.kind {
	case turn:
		return a.note(ctx, j, func(j *journal) {
			j.Direction = toOriginal
			if onFront(f) {
				j.Labels, j.Annotations, j.Owners = f.claim.Labels, f.claim.Annotations, f.claim.OwnerReferences
				request := requested(f.claim)
				j.Request = &request
			}
		})
	case touchClaim:
		return a.touchClaim(ctx, f)
	case deleteFront:
		return a.remove(ctx, "PersistentVolume", f.front)
	case orderBlock:
		return a.note(ctx, j, func(j *journal) {
			size := f.block.Spec.Capacity.Storage().DeepCopy()
			j.Capacity = &size
			j.order(f.block.UID)
		})
	case deleteBlock:
		return a.remove(ctx, "PersistentVolume", f.block)
	case makeOriginal:
		pv := j.originalVolume()
		pv.Spec.ClaimRef.UID = j.Claim.UID // nobody is bound to it before it is reserved
		return a.makeVolume(ctx, j, pv)
	case end:
		return a.note(ctx, j, func(j *journal) { j.Direction = givenBack })
	case restore:
		return a.setPolicy(ctx, s.volume, j.ReclaimPolicy)
	case forget:
		return a.forget(ctx, j)
	}
	return fmt.Errorf("step %s is not known", s.kind)
}

func (a *Adopter) make(ctx context.Context, kind string, obj client.Object) error {
	if err := a.api.Create(ctx, obj); err != nil {
		return fmt.Errorf("make %s %s: %w", kind, obj.GetName(), err)
	}
	return nil
}

// makeVolume makes a PersistentVolume, for which nothing could be judged: the name was free. Who
// stalls before that may find that the adoption was ended meanwhile, and begun anew, and that the
// volume has another PersistentVolume by now. Then it is taken back.
func (a *Adopter) makeVolume(ctx context.Context, j *journal, pv *corev1.PersistentVolume) error {
	if err := a.make(ctx, "PersistentVolume", pv); err != nil {
		return err
	}
	if goesOn, err := a.goesOn(ctx, j); err != nil || goesOn {
		return err
	}
	return a.takeBack(ctx, pv)
}

// takeBack deletes a PersistentVolume that is not to be. Kubernetes writes to a new one at once,
// and each deletion is of what was judged: so it may take several.
func (a *Adopter) takeBack(ctx context.Context, pv *corev1.PersistentVolume) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := get[corev1.PersistentVolume](ctx, a, "PersistentVolume", named(pv.Name))
		if err != nil || now == nil || now.UID != pv.UID {
			return err
		}
		if !kept(now) {
			return fmt.Errorf("it is on %s since", now.Spec.PersistentVolumeReclaimPolicy)
		}
		return a.remove(ctx, "PersistentVolume", now)
	})
	if err != nil { // not wrapped: another look would not find it
		return fmt.Errorf("PersistentVolume %s was made although the command was overtaken by another: set it on Retain, and delete it (%v)", pv.Name, err)
	}
	return nil
}

// keep sets a PersistentVolume on Retain. Its policy is not set back by who was overtaken: whoever
// goes on may rely on Retain by now.
func (a *Adopter) keep(ctx context.Context, j *journal, pv *corev1.PersistentVolume) error {
	if err := a.setPolicy(ctx, pv, corev1.PersistentVolumeReclaimRetain); err != nil {
		return err
	}
	goesOn, err := a.goesOn(ctx, j)
	if err == nil && !goesOn && pv.Name == j.Volume.Name {
		err = fmt.Errorf("PersistentVolume %s is on Retain now, although the command was overtaken by another: it was on %s", pv.Name, j.ReclaimPolicy)
	}
	return err
}

// goesOn reports whether the journal still leads where it did when it was read.
func (a *Adopter) goesOn(ctx context.Context, j *journal) (bool, error) {
	now, err := a.load(ctx, client.ObjectKeyFromObject(j.Claim))
	if err != nil {
		return false, err
	}
	return now != nil && now.object.UID == j.object.UID && now.Direction == j.Direction, nil
}

// remove deletes an object as it was judged.
func (a *Adopter) remove(ctx context.Context, kind string, obj client.Object) error {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	if err := a.api.Delete(ctx, obj, client.Preconditions{UID: &uid, ResourceVersion: &version}); err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, obj.GetName(), err)
	}
	return nil
}

// setPolicy sets the reclaim policy of a PersistentVolume, and sees to it that it is so.
func (a *Adopter) setPolicy(ctx context.Context, pv *corev1.PersistentVolume, to corev1.PersistentVolumeReclaimPolicy) error {
	base := pv.DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = to
	if err := a.api.Patch(ctx, pv, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("set PersistentVolume %s on %s: %w", pv.Name, to, err)
	}
	if got := pv.Spec.PersistentVolumeReclaimPolicy; got != to {
		return fmt.Errorf("PersistentVolume %s is still on %s: is there an admission policy that changes it? accepted is %s", pv.Name, got, to)
	}
	return nil
}

// reserve makes a PersistentVolume one for whatever claim has the name.
func (a *Adopter) reserve(ctx context.Context, pv *corev1.PersistentVolume, f *facts) error {
	// The claim was looked for before the PersistentVolume was read: one that was bound in
	// between would be Lost without its UID here.
	now, err := get[corev1.PersistentVolumeClaim](ctx, a, "claim", f.key)
	if err != nil || now != nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == now.UID {
		return err
	}
	base := pv.DeepCopy()
	pv.Spec.ClaimRef = reserved(f.key.Namespace, f.key.Name)
	if err := a.api.Patch(ctx, pv, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("reserve PersistentVolume %s for claim %s: %w", pv.Name, f.key.Name, err)
	}
	return nil
}

// touchClaim makes the original claim another version than the one whose deletion was ordered. Who
// stalls before that deletion would delete it after its PersistentVolume has its reclaim policy
// again, and the data with it.
func (a *Adopter) touchClaim(ctx context.Context, f *facts) error {
	base := f.claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&f.claim.ObjectMeta, annotationTouched, string(f.journal.object.UID))
	if err := a.api.Patch(ctx, f.claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write claim %s: %w", f.claim.Name, err)
	}
	if f.claim.ResourceVersion == base.ResourceVersion {
		return fmt.Errorf("claim %s was not changed by an annotation %s: is there an admission policy that takes it away? it is left on Retain", f.claim.Name, annotationTouched)
	}
	return nil
}

// makeClaim makes the claim again. Of its owners it keeps those that are there: with one that is
// gone, the garbage collector would delete it at once, and its volume with it.
func (a *Adopter) makeClaim(ctx context.Context, j *journal, pv string) error {
	claim := j.claimFor(pv)
	var living []metav1.OwnerReference
	for _, ref := range claim.OwnerReferences {
		lives, err := a.lives(ctx, claim.Namespace, ref)
		if err != nil {
			return err
		}
		if lives {
			living = append(living, ref)
		}
	}
	claim.OwnerReferences = living
	return a.make(ctx, "claim", claim)
}

// lives reports whether an owner is the one that is meant, and stays.
func (a *Adopter) lives(ctx context.Context, namespace string, ref metav1.OwnerReference) (bool, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return false, fmt.Errorf("owner %s %s of the claim: %w", ref.Kind, ref.Name, err)
	}
	obj := &metav1.PartialObjectMetadata{}
	obj.SetGroupVersionKind(gv.WithKind(ref.Kind))
	err = a.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, obj)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s %s, an owner of the claim: %w", ref.Kind, ref.Name, err)
	}
	return obj.UID == ref.UID && obj.DeletionTimestamp == nil, nil
}
