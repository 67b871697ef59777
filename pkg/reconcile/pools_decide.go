package reconcile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// poolFacts are what is known of a pool whose node may have left the cluster.
type poolFacts struct {
	Pool *v1alpha1.CachePool
	// Present is true while the cluster has a Node of the name.
	Present bool
	// Owned are the volumes whose record has the node as the owner.
	Owned []v1alpha1.CachedVolume
	// Admitted is a volume that a storage admits the node to, "" if there is none; Unknown is
	// why that is not known.
	Admitted volume.ID
	Unknown  error
	// Waited is true if this process has seen the node gone for long enough, and the pool has
	// said so when it was read.
	Waited bool
}

// poolVerdict is a line of the table "When a pool may go" in states.md.
type poolVerdict struct {
	// Present and Delete are decisions; otherwise the pool is kept for Reason.
	Present, Delete bool
	Reason, Message string
}

// decidePool is that table, in its order.
func decidePool(f poolFacts) poolVerdict {
	keep := func(reason, format string, args ...any) poolVerdict {
		return poolVerdict{Reason: reason, Message: "The cluster has no Node " + f.Pool.Name + ". " + fmt.Sprintf(format, args...)}
	}
	if f.Present {
		return poolVerdict{Present: true}
	}
	if !f.Pool.FromFlags() {
		return keep(v1alpha1.ReasonMadeByAdministrator, "The pool was not made by the node plugin from its flags; delete it if it is not needed any more.")
	}
	if kept := keptWrites(&f.Pool.Status); len(kept) > 0 {
		return keep(v1alpha1.ReasonWritesKept, "Its SSDs have unflushed writes of %s, of which nobody knows whether they are wanted: kubectl nearflash doctor.", some(kept))
	}
	if dirty := names(f.Owned, unflushed); len(dirty) > 0 {
		return keep(v1alpha1.ReasonUnflushedWrites, "It may have unflushed writes of %s: bring it back, rescue its SSDs, or abandon the writes.", some(dirty))
	}
	if owned := names(f.Owned, needsOwner); len(owned) > 0 {
		return keep(v1alpha1.ReasonOwnsVolumes, "It was the last to have %s, which may be written back: the pool goes when another node has had them, or they are deleted.", some(owned))
	}
	switch {
	case f.Admitted != "":
		return keep(v1alpha1.ReasonStorageAdmits, "The storage still admits it to volume %s.", f.Admitted)
	case f.Unknown != nil:
		return keep(v1alpha1.ReasonStorageUnknown, "Nobody knows whether a storage admits it to a volume: %v.", f.Unknown)
	case !f.Waited:
		return keep(v1alpha1.ReasonNodeMayReturn, "Nothing needs the pool; it is deleted if the node stays away.")
	}
	return poolVerdict{Delete: true}
}

// keptWrites are the volumes of kept caches that no administrator's word covers. A list that is
// full may have left some out.
func keptWrites(st *v1alpha1.CachePoolStatus) []string {
	var out []string
	for _, k := range st.Kept {
		covers := func(d v1alpha1.DeletedVolume) bool {
			return d.VolumeName == k.VolumeName && d.VolumeUID == k.VolumeUID && d.Generation != nil && k.Generation != nil && *d.Generation >= *k.Generation
		}
		if len(st.Kept) >= v1alpha1.MaxKeptCaches || !slices.ContainsFunc(st.Deleted, covers) {
			out = append(out, k.VolumeName)
		}
	}
	return out
}

// unflushed reports whether the owner may have writes that nobody else has.
func unflushed(v *v1alpha1.CachedVolume) bool {
	return v.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty
}

// needsOwner reports whether who the owner is may still be asked.
func needsOwner(v *v1alpha1.CachedVolume) bool {
	return v.Status.Publication != v1alpha1.PublicationReleased || v.Spec.Hold != nil ||
		v.Spec.CacheMode.TakesWrites() || v.Spec.AcceptDirtyLoss == v1alpha1.DirtyLossNodeLoss || v.Spec.AcceptDirtyLoss == v1alpha1.DirtyLossPowerLoss
}

func names(volumes []v1alpha1.CachedVolume, which func(*v1alpha1.CachedVolume) bool) []string {
	var out []string
	for i := range volumes {
		if which(&volumes[i]) {
			out = append(out, volumes[i].Name)
		}
	}
	slices.Sort(out)
	return out
}

// some are the first few of the names of volumes.
func some(names []string) string {
	const few = 5
	text := "volume " + names[0]
	if len(names) > 1 {
		text = "volumes " + strings.Join(names[:min(few, len(names))], ", ")
	}
	if more := len(names) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
