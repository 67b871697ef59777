package provision

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Modify implements volume.Provisioner: the record says what is asked for, and the
// node that has the volume attached follows it and reports.
func (s *Service) Modify(ctx context.Context, id volume.ID, decide func(volume.Spec) (volume.Spec, error)) error {
	var written *v1alpha1.CachedVolume
	err := records.UpdateObject(ctx, s.client, id, func(obj *v1alpha1.CachedVolume) error {
		if obj.DeletionTimestamp != nil {
			return fmt.Errorf("%w: volume %s is being deleted", volume.ErrBusy, id)
		}
		have, err := records.Spec(obj)
		if err != nil {
			return err
		}
		want, err := decide(have)
		if err != nil {
			return err
		}
		// A volume of before may be in the mode without a fence; its node makes writes go through.
		if want.Mode != have.Mode {
			if err := s.checkFence(ctx, id, want); err != nil {
				return err
			}
		}
		setMutable(&obj.Spec, have, want)
		written = obj
		return nil
	})
	if err != nil {
		return err
	}
	return inEffect(written)
}

// setMutable writes what differs, so that a size keeps the form that a user gave it.
func setMutable(spec *v1alpha1.CachedVolumeSpec, have, want volume.Spec) {
	if want.ModeName() != have.ModeName() {
		spec.CacheMode = v1alpha1.CacheMode(want.ModeName())
	}
	if want.Cache != have.Cache {
		spec.CacheSize = want.Cache.String()
	}
	if b := want.DirtyLimit; b != have.DirtyLimit {
		text := spec.MaxDirtyBytes
		if records.SetDirtyLimit(spec, b); b.Max == have.DirtyLimit.Max {
			spec.MaxDirtyBytes = text
		}
	}
	if want.WarmStart != have.WarmStart {
		spec.WarmStart = records.ObjectWarmStart(want.WarmStart)
	}
	if want.Mirror != have.Mirror {
		spec.Redundancy = records.Redundancy(want)
	}
	if want.AcceptNodeLoss != have.AcceptNodeLoss || want.Unsafe != have.Unsafe {
		spec.AcceptDirtyLoss = cmp.Or(records.Consent(want), v1alpha1.DirtyLossNone)
	}
}

// inEffect reports whether a volume is as its record asks: nil if it is, or if no node
// has it attached and could follow. ErrBusy says that the node will follow.
//
// ErrInvalid is for everything that the node cannot do now, be it for want of space
// in its pool: the volume runs without a cache then, and external-resizer goes on
// asking, but lets the user choose another class meanwhile. Of ResourceExhausted
// it thinks that the change may still be under way, and holds on to it.
func inEffect(obj *v1alpha1.CachedVolume) error {
	if !attached(obj) {
		return nil
	}
	node := obj.Status.OwnerNode
	c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionApplied)
	switch {
	case c == nil || c.ObservedGeneration < obj.Generation:
		return fmt.Errorf("%w: node %s has not taken up the change yet", volume.ErrBusy, node)
	case c.Status == metav1.ConditionTrue:
		return nil
	}
	switch c.Reason {
	case v1alpha1.ReasonRejected, v1alpha1.ReasonPoolFull, v1alpha1.ReasonNamespaceShareFull, v1alpha1.ReasonPoolMissing, v1alpha1.ReasonKernelTargetMissing, v1alpha1.ReasonBlockSizeTooLarge, v1alpha1.ReasonNotMirrored:
		return fmt.Errorf("%w: node %s cannot do what is asked for: %s: %s", volume.ErrInvalid, node, c.Reason, c.Message)
	}
	return fmt.Errorf("%w: node %s is at it: %s: %s", volume.ErrBusy, node, c.Reason, c.Message)
}

// attached reports whether a node has said that it has the volume, and has not said
// since that it has not.
func attached(obj *v1alpha1.CachedVolume) bool {
	if obj.Status.Publication != v1alpha1.PublicationPublished || obj.Status.OwnerNode == volume.Readers {
		return false // of many that read it none says how far it is
	}
	c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionApplied)
	if c == nil {
		return obj.Status.Cache.Mode != ""
	}
	return c.Status != metav1.ConditionUnknown
}
