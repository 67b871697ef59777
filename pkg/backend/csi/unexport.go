package csi

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// endStep is the next step to the end of an admission.
type endStep int

const (
	endDone endStep = iota
	// endDetach deletes the VolumeAttachment.
	endDetach
	// endWait waits until the driver has detached.
	endWait
	// endForget takes the admission off the claim.
	endForget
	// endFinish says that no node has its part of an expansion to do any more: the next one
	// that has the volume attached sees its new size from the start.
	endFinish
)

// decideEnd returns the next step. The attachment goes first, so that whoever may be attached
// is on the claim.
func decideEnd(f facts, e backend.Export) endStep {
	matches := func(a admission) bool {
		return a.Node == e.Initiator && (e.Admission == "" || a.Name == e.Admission)
	}
	current := f.admitted != nil && matches(*f.admitted)
	if va := f.attachment; va != nil && va.Spec.NodeName == e.Initiator {
		// What the claim admits the node under is what its attachment belongs to.
		covered := f.admitted != nil && f.admitted.Node == e.Initiator
		switch {
		case covered && !current, !covered && !matches(admissionOf(va)):
			return endDone
		case va.DeletionTimestamp == nil:
			return endDetach
		}
		return endWait
	}
	switch {
	case current:
		return endForget
	case f.admitted == nil && f.attachment == nil && f.claim != nil && f.pv != nil && finishExpand(f.claim.Status.DeepCopy(), f.pv):
		return endFinish
	}
	return endDone
}

// Unexport implements backend.Backend: it succeeds once the other driver has detached the
// volume from the node. Errors: ErrBusy while it has not.
func (b *Backend) Unexport(ctx context.Context, id volume.ID, e backend.Export) error {
	if e.Initiator == "" {
		return fmt.Errorf("%w: which admission to volume %s is to end, has no node", volume.ErrInvalid, id)
	}
	ctx, cancel := b.wait(ctx)
	defer cancel()
	var pace pacer
	for {
		f, err := b.look(ctx, id)
		if err != nil {
			return err
		}
		va := f.attachment
		switch decideEnd(f, e) {
		case endDone:
			return nil
		case endDetach:
			err = records.Error("delete VolumeAttachment "+va.Name,
				b.api.Delete(ctx, va, client.Preconditions{UID: &va.UID, ResourceVersion: &va.ResourceVersion}))
		case endWait:
			err = pace.next(ctx, fmt.Sprintf("%s has detached volume %s from node %s%s", va.Spec.Attacher, id, e.Initiator, lastError(va.Status.DetachError)))
		case endForget:
			err = b.writeAdmission(ctx, f.claim, nil)
		case endFinish:
			err = b.FinishExpand(ctx, id)
		}
		if err != nil && (ctx.Err() != nil || !conflict(err)) {
			return err
		}
	}
}
