package adopt

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/pkg/pvsource"
)

// planned is a step of a plan, in words.
type planned struct {
	kind kind
	text string
}

func adoptSteps(j *journal) []planned {
	return []planned{
		{save, fmt.Sprintf("save the manifests of claim %s and PersistentVolume %s in a ConfigMap", j.Claim.Name, j.Volume.Name)},
		{keep, fmt.Sprintf("set PersistentVolume %s on Retain", j.Volume.Name)},
		{makeFront, fmt.Sprintf("make PersistentVolume %s of nearflash, reserved for claim %s", j.front(), j.Claim.Name)},
		{deleteClaim, fmt.Sprintf("delete claim %s; PersistentVolume %s keeps its volume", j.Claim.Name, j.Volume.Name)},
		{deleteOld, fmt.Sprintf("delete PersistentVolume %s, once it is Released and detached; the volume stays with the other driver", j.Volume.Name)},
		{makeBlock, fmt.Sprintf("make PersistentVolume %s of the same volume, with volumeMode Block", j.origin())},
		{makeClaim, fmt.Sprintf("make claim %s again, for PersistentVolume %s", j.Claim.Name, j.front())},
	}
}

func releaseSteps(j *journal) []planned {
	return []planned{
		{turn, "note that the release was begun"},
		{deleteFront, fmt.Sprintf("delete PersistentVolume %s of nearflash", j.front())},
		{deleteClaim, fmt.Sprintf("delete claim %s", j.Claim.Name)},
		{deleteBlock, fmt.Sprintf("delete PersistentVolume %s, once the controller has ended CachedVolume %s; the volume stays with the other driver", j.origin(), j.front())},
		{makeOriginal, fmt.Sprintf("make PersistentVolume %s again, on Retain", j.Volume.Name)},
		{makeClaim, fmt.Sprintf("make claim %s again, for PersistentVolume %s", j.Claim.Name, j.Volume.Name)},
		{restore, fmt.Sprintf("set PersistentVolume %s on %s, as it was", j.Volume.Name, j.ReclaimPolicy)},
		{forget, "delete the saved manifests"},
	}
}

// planOf names the step of a plan that another step is a part of.
var planOf = map[kind]kind{orderClaim: deleteClaim, orderVolume: deleteOld, orderBlock: deleteBlock, touchClaim: turn, reserve: makeClaim, end: restore}

// stepsLeft are the steps of a plan from the next one on. What is waited for may be anywhere: all
// of the plan is shown then.
func stepsLeft(all []planned, next kind) []string {
	if next == done {
		return nil
	}
	if part, ok := planOf[next]; ok {
		next = part
	}
	from := max(0, slices.IndexFunc(all, func(p planned) bool { return p.kind == next }))
	var out []string
	for _, p := range all[from:] {
		out = append(out, p.text)
	}
	return out
}

// sentence says what a step does, while it is taken.
func sentence(f *facts, s step) string {
	switch s.kind {
	case keep:
		return fmt.Sprintf("set PersistentVolume %s on Retain", s.volume.Name)
	case reserve:
		return fmt.Sprintf("reserve PersistentVolume %s for claim %s", s.volume.Name, f.key.Name)
	case makeClaim:
		return fmt.Sprintf("make claim %s again, for PersistentVolume %s", f.key.Name, s.volume.Name)
	case save:
		return fmt.Sprintf("save the manifests of claim %s and PersistentVolume %s", f.key.Name, f.volume.Name)
	case orderClaim, orderVolume, orderBlock:
		return "note what is about to be deleted"
	case touchClaim:
		return fmt.Sprintf("see to it that nobody deletes claim %s by an order of before", f.key.Name)
	case end:
		return "note that the claim is given back"
	}
	for _, p := range slices.Concat(adoptSteps(f.journal), releaseSteps(f.journal)) {
		if p.kind == s.kind {
			return p.text
		}
	}
	return string(s.kind)
}

// warnings are what to know before an adoption.
func warnings(f *facts, j *journal) []string {
	var out []string
	if j.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		out = append(out, fmt.Sprintf("PersistentVolume %s is on Delete. While the claim is adopted, deleting the claim deletes no data: the volume stays with the other driver. Release the claim, then delete it, to have the volume deleted", j.Volume.Name))
	}
	if j.Volume.Spec.CSI == nil {
		out = append(out, fmt.Sprintf("PersistentVolume %s is of the in-tree kind %s: it is volume %s of driver %s, and stays of its kind", j.Volume.Name, pvsource.Kind(j.Volume), source(j.Volume).VolumeHandle, source(j.Volume).Driver))
	}
	if j.FSType != "" && source(j.Volume).FSType == "" {
		out = append(out, fmt.Sprintf("PersistentVolume %s names no filesystem: %s is taken for it. A volume with another one is not mounted, and left as it is; release it then, and adopt it with --fs-type", j.Volume.Name, j.FSType))
	}
	if f.driver != nil && !ptr.Deref(f.driver.Spec.AttachRequired, true) {
		out = append(out, fmt.Sprintf("driver %s attaches nothing, so that nobody can see whether a node has the volume mounted still: make sure that none has", f.driver.Name))
	}
	if f.claim != nil && f.journal == nil {
		for _, o := range f.claim.OwnerReferences {
			out = append(out, fmt.Sprintf("the claim belongs to %s %s: whatever makes it must be stopped, or it makes the claim again while it is away", o.Kind, o.Name))
		}
	}
	return out
}
