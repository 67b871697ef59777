package adopt

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// decideRelease is the second table, in its order. It takes back an adoption that was begun and
// not ended, too.
func decideRelease(f *facts) (step, error) {
	j := f.journal
	switch {
	case j == nil && f.claim == nil:
		return step{}, fmt.Errorf("there is no claim %s in namespace %s, and none of the name was adopted", f.key.Name, f.key.Namespace)
	case j == nil:
		return step{kind: done}, nil
	case j.Direction == givenBack:
		return decideEnded(f)
	}
	if err := checkMade(f); err != nil {
		return step{}, err
	}
	if j.Direction == toCache {
		return decideTurn(f)
	}
	if c := f.claim; c != nil && c.UID == j.Claim.UID && j.ordered(c.UID) && c.ResourceVersion == j.Claim.ResourceVersion {
		return step{kind: touchClaim}, nil
	}
	if f.front != nil || onFront(f) || f.record != nil || f.inner != nil {
		return decideTakeAway(f)
	}
	if f.block != nil {
		return decideUncover(f)
	}
	return decideGiveBack(f)
}

// decideTurn begins the release.
func decideTurn(f *facts) (step, error) {
	if err := refuseRecord(f.record); err != nil {
		return step{}, err
	}
	// A claim that leads elsewhere, and the pods with it, are no business of the volume's.
	if f.leads() {
		if err := refuseUse(f); err != nil {
			return step{}, err
		}
	}
	if err := refuseLost(f); err != nil {
		return step{}, err
	}
	if onFront(f) && pending(f.claim) {
		return step{}, fmt.Errorf("claim %s is being expanded: wait until that has ended, for which a pod may have to start once", f.claim.Name)
	}
	return step{kind: turn}, nil
}

// onFront reports whether the claim is for the volume in front.
func onFront(f *facts) bool {
	return f.claim != nil && f.claim.Spec.VolumeName == f.journal.front()
}

// decideTakeAway removes the volume in front. Its PersistentVolume is deleted before its claim:
// Kubernetes keeps it until the claim has gone, and binds no other claim to it meanwhile, which
// somebody may make at once.
func decideTakeAway(f *facts) (step, error) {
	pv := f.front
	if err := refuseLost(f); err != nil {
		return step{}, err
	}
	switch {
	case pv != nil && !kept(pv):
		return step{kind: keep, volume: pv}, nil
	case pv != nil && pv.DeletionTimestamp == nil:
		return step{kind: deleteFront}, nil
	case onFront(f) && f.claim.DeletionTimestamp == nil && len(f.pods) > 0:
		return waitUntil("claim %s is unused%s", f.claim.Name, heldBy(f)) // a pod that came since
	case onFront(f) && f.claim.DeletionTimestamp == nil:
		return step{kind: deleteClaim}, nil
	case onFront(f):
		return waitUntil("claim %s is gone%s", f.claim.Name, heldBy(f))
	case pv != nil:
		return waitUntil("PersistentVolume %s is gone; its finalizers are %s", pv.Name, strings.Join(pv.Finalizers, ", "))
	}
	return waitUntil("the controller has ended CachedVolume %s%s", f.record.Name, inUse(f.record))
}

// refuseLost refuses to go on with a volume whose record was lost: the controller deletes the origin's
// claim before the record, so that one without the other says that nobody knows who had the volume.
func refuseLost(f *facts) error {
	if f.record != nil || f.inner == nil {
		return nil
	}
	remedy := "restore the CachedVolume from a backup (docs/how-to/recover-a-lost-cluster.md, Volumes over other drivers)"
	if onFront(f) && f.front != nil {
		remedy = "run a pod with the claim once, for which the controller makes it anew, or " + remedy
	}
	return fmt.Errorf("there is no CachedVolume %s, though claim %s/%s of its origin is there, so that nobody knows which node may hold unflushed writes: %s",
		f.journal.front(), f.inner.Namespace, f.inner.Name, remedy)
}

// inUse says why a record stays, for the end of a sentence.
func inUse(r *v1alpha1.CachedVolume) string {
	if err := refuseRecord(r); err != nil {
		return ": " + err.Error()
	}
	return ""
}

// decideUncover removes the raw block PersistentVolume. Nobody has its claim any more.
func decideUncover(f *facts) (step, error) {
	j, pv := f.journal, f.block
	switch {
	case !kept(pv):
		return step{kind: keep, volume: pv}, nil
	case pv.DeletionTimestamp != nil:
		return waitUntil("PersistentVolume %s is gone; its finalizers are %s", pv.Name, strings.Join(pv.Finalizers, ", "))
	}
	for _, va := range f.attachments {
		if ptr.Deref(va.Spec.Source.PersistentVolumeName, "") == pv.Name {
			return waitUntil("PersistentVolume %s is detached from node %s (VolumeAttachment %s)", pv.Name, va.Spec.NodeName, va.Name)
		}
	}
	switch pv.Status.Phase {
	case corev1.VolumeFailed:
		return step{}, failedError(pv)
	case corev1.VolumeBound:
		return waitUntil("PersistentVolume %s is not Bound any more", pv.Name)
	}
	if !j.ordered(pv.UID) {
		return step{kind: orderBlock}, nil
	}
	return step{kind: deleteBlock}, nil
}

// decideGiveBack makes the originals again, or finds them as they were.
func decideGiveBack(f *facts) (step, error) {
	j, pv := f.journal, f.volume
	switch {
	case pv == nil && len(f.twins) > 0:
		return step{}, twinError(f)
	case pv == nil && !j.ordered(j.Volume.UID) && !f.exists:
		return step{}, fmt.Errorf("PersistentVolume %s is not there any more, and was not deleted by this command: look with the tools of %s whether volume %s is there; if it is, add --volume-exists",
			j.Volume.Name, source(j.Volume).Driver, source(j.Volume).VolumeHandle)
	case pv == nil:
		return step{kind: makeOriginal}, nil
	case !sameSource(pv, j.Volume):
		return step{}, fmt.Errorf("PersistentVolume %s is of another volume than the one that is released: delete it, or rename it, so that the name is free", pv.Name)
	case pv.DeletionTimestamp != nil:
		return waitUntil("PersistentVolume %s is gone, and is made again", pv.Name)
	case pv.Status.Phase == corev1.VolumeFailed, pv.Status.Phase == corev1.VolumeReleased && !kept(pv):
		return step{}, fmt.Errorf("PersistentVolume %s is %s, with the policy %s (%s): its volume may be deleted at this moment; set it on Retain, and look with the tools of %s whether volume %s is there",
			pv.Name, pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Message, source(pv).Driver, source(pv).VolumeHandle)
	}
	next, err := decideClaim(f, pv)
	switch {
	case err != nil || next.kind != done && kept(pv):
		return next, err
	case next.kind != done:
		return step{kind: keep, volume: pv}, nil // not before it is bound
	}
	return step{kind: end}, nil
}

// decideEnded restores the reclaim policy, and ends the journal. Whatever has become of claim
// and PersistentVolume since was done by their owner, who has them again.
func decideEnded(f *facts) (step, error) {
	j, pv, c := f.journal, f.volume, f.claim
	bound := pv != nil && c != nil && sameSource(pv, j.Volume) && pv.DeletionTimestamp == nil && c.DeletionTimestamp == nil &&
		c.Spec.VolumeName == pv.Name && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID
	if bound && pv.Spec.PersistentVolumeReclaimPolicy != j.ReclaimPolicy {
		return step{kind: restore, volume: pv}, nil
	}
	return step{kind: forget}, nil
}
