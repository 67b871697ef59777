package adopt

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// kind is a step of the tables "Adoption" in states.md.
type kind string

const (
	done kind = "Done"
	wait kind = "Wait"

	save        kind = "Save"
	keep        kind = "Keep"
	makeFront   kind = "MakeFront"
	orderClaim  kind = "OrderClaim"
	deleteClaim kind = "DeleteClaim"
	orderVolume kind = "OrderVolume"
	deleteOld   kind = "DeleteVolume"
	makeBlock   kind = "MakeBlock"
	reserve     kind = "Reserve"
	makeClaim   kind = "MakeClaim"

	turn         kind = "Turn"
	touchClaim   kind = "TouchClaim"
	deleteFront  kind = "DeleteFront"
	orderBlock   kind = "OrderBlock"
	deleteBlock  kind = "DeleteBlock"
	makeOriginal kind = "MakeVolume"
	restore      kind = "Restore"
	end          kind = "End"
	forget       kind = "Forget"
)

// step is what is to be done next.
type step struct {
	kind kind
	// volume is what the step is about, if that is a PersistentVolume.
	volume *corev1.PersistentVolume
	// until is what is waited for.
	until string
}

func waitUntil(format string, args ...any) (step, error) {
	return step{kind: wait, until: fmt.Sprintf(format, args...)}, nil
}

// decideAdopt is the first table, in its order. An error says what a person has to do; nothing
// was changed by it.
func decideAdopt(f *facts, w Want) (step, error) {
	j := f.journal
	if j == nil {
		if err := refuseClaim(f, w); err != nil {
			return step{}, err
		}
		return step{kind: save}, refuseUse(f)
	}
	if j.Direction != toCache {
		return step{}, fmt.Errorf("its release was begun: end it with `kubectl nearflash release -n %s %s`", f.key.Namespace, f.key.Name)
	}
	if j.object.DeletionTimestamp != nil {
		return step{}, fmt.Errorf("ConfigMap %s/%s, which alone knows what the claim was, was deleted by somebody, and is there for its finalizer alone: give the claim back with `kubectl nearflash release -n %s %s` while it is, and adopt it anew if that is wanted",
			j.object.Namespace, j.object.Name, f.key.Namespace, f.key.Name)
	}
	if f.claim != nil && f.claim.UID == j.Claim.UID {
		return decideDetach(f)
	}
	if f.volume != nil && f.volume.UID == j.Volume.UID {
		return decideReplace(f)
	}
	if err := missingOriginal(f); err != nil {
		return step{}, err
	}
	switch {
	case f.front == nil:
		return step{kind: makeFront}, nil
	case f.block == nil:
		return step{kind: makeBlock}, nil
	}
	if err := checkTaken(f); err != nil {
		return step{}, err
	}
	if !kept(f.block) {
		return step{kind: keep, volume: f.block}, nil
	}
	return decideClaim(f, f.front)
}

// decideDetach is for a claim that is the original still.
func decideDetach(f *facts) (step, error) {
	j, pv := f.journal, f.volume
	if pv == nil || pv.UID != j.Volume.UID {
		return step{}, fmt.Errorf("PersistentVolume %s is not there any more, and was not deleted by this command: look with the tools of %s whether volume %s is there, before anything is done",
			j.Volume.Name, source(j.Volume).Driver, source(j.Volume).VolumeHandle)
	}
	if !kept(pv) {
		return step{kind: keep, volume: pv}, nil
	}
	if f.claim.DeletionTimestamp != nil {
		return waitUntil("claim %s is gone%s", f.claim.Name, heldBy(f))
	}
	if err := refuseUse(f); err != nil {
		return step{}, err
	}
	if f.front == nil {
		return step{kind: makeFront}, nil
	}
	if err := checkTaken(f); err != nil {
		return step{}, err
	}
	if !j.ordered(f.claim.UID) || j.Claim.ResourceVersion != f.claim.ResourceVersion {
		return step{kind: orderClaim}, nil
	}
	return step{kind: deleteClaim}, nil
}

// decideReplace is for a claim that is gone, with its PersistentVolume still there.
func decideReplace(f *facts) (step, error) {
	j, pv := f.journal, f.volume
	switch {
	case !kept(pv):
		return step{kind: keep, volume: pv}, nil
	case f.front == nil:
		return step{kind: makeFront}, nil
	case pv.DeletionTimestamp != nil:
		return waitUntil("PersistentVolume %s is gone; its finalizers are %s", pv.Name, strings.Join(pv.Finalizers, ", "))
	case pv.Status.Phase == corev1.VolumeFailed:
		return step{}, failedError(pv)
	case pv.Status.Phase != corev1.VolumeReleased:
		return waitUntil("PersistentVolume %s is Released; it is %s", pv.Name, pv.Status.Phase)
	}
	if err := checkTaken(f); err != nil {
		return step{}, err
	}
	for _, va := range f.attachments {
		if name := va.Spec.Source.PersistentVolumeName; name != nil && *name == pv.Name {
			return waitUntil("PersistentVolume %s is detached from node %s (VolumeAttachment %s)", pv.Name, va.Spec.NodeName, va.Name)
		}
	}
	if !j.ordered(pv.UID) || j.Volume.ResourceVersion != pv.ResourceVersion {
		return step{kind: orderVolume}, nil
	}
	return step{kind: deleteOld}, nil
}

// missingOriginal reports why the original PersistentVolume may not be missing, or what has
// taken its place.
func missingOriginal(f *facts) error {
	j := f.journal
	src := source(j.Volume)
	switch {
	case f.volume != nil && sameSource(f.volume, j.Volume):
		return fmt.Errorf("PersistentVolume %s of volume %s was made again by somebody: delete it, if it is on Retain and no claim has it", f.volume.Name, src.VolumeHandle)
	case len(f.twins) > 0:
		return twinError(f)
	case !j.ordered(j.Volume.UID):
		return fmt.Errorf("PersistentVolume %s is not there any more, and was not deleted by this command: look with the tools of %s whether volume %s is there; if it is, `kubectl nearflash release -n %s %s --volume-exists` makes PersistentVolume and claim again",
			j.Volume.Name, src.Driver, src.VolumeHandle, f.key.Namespace, f.key.Name)
	}
	return nil
}

// twinError is for another PersistentVolume of the same volume.
func twinError(f *facts) error {
	return fmt.Errorf("PersistentVolume %s is of the same volume %s: delete it, if it is on Retain and no claim has it", strings.Join(f.twins, ", "), source(f.journal.Volume).VolumeHandle)
}

// failedError is for a PersistentVolume whose volume Kubernetes could not reclaim.
func failedError(pv *corev1.PersistentVolume) error {
	return fmt.Errorf("PersistentVolume %s is %s (%s): look with the tools of %s whether volume %s is there", pv.Name, pv.Status.Phase, pv.Status.Message, source(pv).Driver, source(pv).VolumeHandle)
}

// checkMade reports whether what has the names of what an adoption makes is that.
func checkMade(f *facts) error {
	j := f.journal
	if pv := f.front; pv != nil && !sameSource(pv, j.frontVolume()) {
		return fmt.Errorf("PersistentVolume %s was not made by this command: delete it", pv.Name)
	}
	if pv := f.block; pv != nil && !sameSource(pv, j.Volume) {
		return fmt.Errorf("PersistentVolume %s was not made by this command: delete it", pv.Name)
	}
	return nil
}

// checkTaken is checkMade for an adoption, which takes a front that is there. A command that was
// overtaken, and killed, may have left that of an adoption before, of the same claim.
func checkTaken(f *facts) error {
	if err := checkMade(f); err != nil || f.front == nil || onFront(f) {
		return err
	}
	has, want := f.front.Spec.CSI, f.journal.frontVolume().Spec.CSI
	if !maps.Equal(has.VolumeAttributes, want.VolumeAttributes) || has.FSType != want.FSType {
		return fmt.Errorf("PersistentVolume %s is left of an adoption before, with other attributes (%v, filesystem %q; asked for is %v, %q): delete it (`kubectl delete pv %s`), and run the command again",
			f.front.Name, has.VolumeAttributes, has.FSType, want.VolumeAttributes, want.FSType, f.front.Name)
	}
	return nil
}

// decideClaim leads to a claim of the name that is bound to a PersistentVolume, which is
// reserved for it. Somebody else may have made the claim meanwhile: it is good if Kubernetes
// binds it to this very PersistentVolume.
func decideClaim(f *facts, target *corev1.PersistentVolume) (step, error) {
	c, ref := f.claim, target.Spec.ClaimRef
	switch {
	case target.DeletionTimestamp != nil:
		return waitUntil("PersistentVolume %s, which somebody has deleted, is gone, and is made again", target.Name)
	case ref == nil:
		return step{kind: reserve, volume: target}, nil
	case ref.Namespace != f.key.Namespace || ref.Name != f.key.Name:
		return step{}, fmt.Errorf("PersistentVolume %s is for claim %s/%s now: somebody has changed its claimRef, take that away", target.Name, ref.Namespace, ref.Name)
	case c != nil && c.DeletionTimestamp != nil:
		return waitUntil("claim %s is gone%s", c.Name, heldBy(f))
	case ref.UID != "" && (c == nil || ref.UID != c.UID):
		return step{kind: reserve, volume: target}, nil // it was bound to a claim that is gone
	case c == nil:
		return step{kind: makeClaim, volume: target}, nil
	case c.Spec.VolumeName == target.Name && c.Status.Phase == corev1.ClaimBound && ref.UID == c.UID:
		return step{kind: done}, nil
	case c.Spec.VolumeName == target.Name, c.Spec.VolumeName == "" && fits(c, target):
		return waitUntil("claim %s is bound to PersistentVolume %s", c.Name, target.Name)
	}
	return step{}, stranger(f, target)
}

// stranger is for a claim of the name that leads elsewhere. It is left alone: whoever has made
// it may have put data there.
func stranger(f *facts, target *corev1.PersistentVolume) error {
	c := f.claim
	who := "somebody"
	for _, o := range c.OwnerReferences {
		who = o.Kind + " " + o.Name
	}
	has := "is for PersistentVolume " + c.Spec.VolumeName
	if c.Spec.VolumeName == "" {
		has = fmt.Sprintf("asks for what PersistentVolume %s does not have", target.Name)
	}
	return fmt.Errorf("claim %s was made again by %s, and %s: the data are in PersistentVolume %s. Stop what makes the claim, delete it (`kubectl delete pvc -n %s %s`), and run the command again",
		c.Name, who, has, target.Name, f.key.Namespace, f.key.Name)
}

// heldBy names the pods that keep a claim from going, for the end of a sentence.
func heldBy(f *facts) string {
	var names []string
	for i := range f.pods {
		names = append(names, f.pods[i].Name)
	}
	if len(names) == 0 {
		return ""
	}
	return "; it is used by pod " + strings.Join(names, ", ") + ", which has to stop"
}
