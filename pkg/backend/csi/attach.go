package csi

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// attach leads to an attached VolumeAttachment of an admission that the claim has.
func (b *Backend) attach(ctx context.Context, id volume.ID, a admission, pv, driver string) (*storagev1.VolumeAttachment, error) {
	var pace pacer
	var failed *metav1.Time // when the attachment had failed before, which is no answer to us
	for first := true; ; first = false {
		va, err := b.attachment(ctx, id)
		if err != nil {
			return nil, err
		}
		step, err := decideAttach(id, va, a, pv, driver)
		if err != nil {
			return nil, err
		}
		if first && va != nil && va.Status.AttachError != nil {
			failed = &va.Status.AttachError.Time
		}
		switch step {
		case attachDone:
			return va, b.confirm(ctx, id, a)
		case attachMake:
			err = b.makeAttachment(ctx, id, a, pv, driver)
		case attachStamp:
			err = b.stamp(ctx, va, a)
		case attachWait:
			if err := attachError(va, failed); err != nil {
				return nil, b.refusal(ctx, err, va)
			}
			if err := pace.next(ctx, fmt.Sprintf("%s has attached volume %s to node %s%s", driver, id, a.Node, lastError(va.Status.AttachError))); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil && (ctx.Err() != nil || !conflict(err)) {
			return nil, err
		}
		if err := b.confirm(ctx, id, a); err != nil {
			return nil, err
		}
	}
}

// confirm looks whether the claim still has the admission. If it has not, this controller has
// stalled, and others have gone on: what it has attached meanwhile to a node that is not
// admitted any more is taken away.
func (b *Backend) confirm(ctx context.Context, id volume.ID, a admission) error {
	for {
		f, err := b.look(ctx, id)
		if err != nil {
			return err
		}
		if f.admitted != nil && *f.admitted == a {
			return nil
		}
		va := f.attachment
		left := va != nil && admissionOf(va) == stamped(a) && va.DeletionTimestamp == nil &&
			(f.admitted == nil || f.admitted.Node != a.Node)
		if left {
			err = b.api.Delete(ctx, va, client.Preconditions{UID: &va.UID, ResourceVersion: &va.ResourceVersion})
			if err != nil && gone(err) {
				continue
			}
			if err != nil {
				return records.Error("take back VolumeAttachment "+va.Name, err)
			}
		}
		return fmt.Errorf("%w: the admission of node %s to volume %s was ended, or renewed, by another controller meanwhile", volume.ErrBusy, a.Node, id)
	}
}

// makeAttachment makes the VolumeAttachment of a volume. Errors: ErrExists if there is one.
func (b *Backend) makeAttachment(ctx context.Context, id volume.ID, a admission, pv, driver string) error {
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name:        b.attachmentName(id),
			Labels:      map[string]string{LabelVolume: string(id), LabelGeneration: strconv.FormatInt(a.Generation, 10)},
			Annotations: map[string]string{annotationAdmission: a.Name},
		},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: a.Node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
	return records.Error("create VolumeAttachment of volume "+string(id), b.api.Create(ctx, va))
}

// stamp gives a VolumeAttachment that is there to another admission of the same node: an order
// to end a former one then finds another version.
func (b *Backend) stamp(ctx context.Context, va *storagev1.VolumeAttachment, a admission) error {
	base := va.DeepCopy()
	metav1.SetMetaDataLabel(&va.ObjectMeta, LabelGeneration, strconv.FormatInt(a.Generation, 10))
	metav1.SetMetaDataAnnotation(&va.ObjectMeta, annotationAdmission, a.Name)
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	return records.Error("write VolumeAttachment "+va.Name, b.api.Patch(ctx, va, patch))
}

// attachError is the answer of the driver to an attachment, nil as long as there is none but
// the one that was there before.
func attachError(va *storagev1.VolumeAttachment, before *metav1.Time) error {
	e := va.Status.AttachError
	if e == nil || va.DeletionTimestamp != nil || before != nil && before.Equal(&e.Time) {
		return nil
	}
	kind := volume.ErrUnavailable
	switch {
	case saysCode(e, codeFailedPrecondition, "FailedPrecondition"): // attached elsewhere
		kind = volume.ErrInUse
	case saysCode(e, codeResourceExhausted, "ResourceExhausted"): // no room on the node
		kind = volume.ErrNoSpace
	}
	return fmt.Errorf("%w: %s cannot attach the origin to node %s: %s", kind, va.Spec.Attacher, va.Spec.NodeName, e.Message)
}

// The codes of gRPC that the CSI specification has for ControllerPublishVolume.
const (
	codeResourceExhausted  = 8
	codeFailedPrecondition = 9
)

// saysCode reports whether a failed attachment ended with a code of gRPC: in a field since
// Kubernetes 1.33, as a word of the message otherwise.
func saysCode(e *storagev1.VolumeError, code int32, word string) bool {
	if e.ErrorCode != nil {
		return *e.ErrorCode == code
	}
	return strings.Contains(e.Message, "code = "+word)
}

// lastError is for the end of a sentence.
func lastError(e *storagev1.VolumeError) string {
	if e == nil {
		return ""
	}
	return "; last failure: " + e.Message
}
