package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Access implements backend.Backend.
func (b *Backend) Access(ctx context.Context, id volume.ID) (backend.Access, error) {
	f, err := b.look(ctx, id)
	if err != nil {
		return backend.Access{}, err
	}
	if f.claim == nil && f.attachment == nil {
		return backend.Access{}, fmt.Errorf("%w: no claim %s/%s", volume.ErrNotFound, b.namespace, id)
	}
	out := backend.Access{Generation: f.generation, SizeBytes: sizeOf(f.pv), Exports: f.exports()}
	if f.pv != nil {
		out.Topologies, _ = topologies(f.pv) // Create has refused what cannot be said
	}
	return out, nil
}

// AdmittedHosts implements backend.Backend: a host is a node. What cannot be read is an error, and
// not nobody.
func (b *Backend) AdmittedHosts(ctx context.Context) (map[string]volume.ID, error) {
	out, ours := map[string]volume.ID{}, client.HasLabels{LabelVolume}
	claims, attachments := &corev1.PersistentVolumeClaimList{}, &storagev1.VolumeAttachmentList{}
	var unread error
	err := records.Pages(ctx, b.api, claims, "claims", func() bool {
		for i := range claims.Items {
			claim := &claims.Items[i]
			_, admitted, err := readState(claim)
			unread = errors.Join(unread, err)
			if admitted != nil {
				out[strings.ToLower(admitted.Node)] = volume.ID(claim.Labels[LabelVolume])
			}
		}
		return true
	}, ours, client.InNamespace(b.namespace))
	if err = errors.Join(err, unread); err != nil {
		return nil, err
	}
	err = records.Pages(ctx, b.api, attachments, "VolumeAttachments", func() bool {
		for i := range attachments.Items {
			va := &attachments.Items[i]
			out[strings.ToLower(va.Spec.NodeName)] = volume.ID(va.Labels[LabelVolume])
		}
		return true
	}, ours)
	return out, err
}

// sizeOf is the size of a PersistentVolume; 0 without one.
func sizeOf(pv *corev1.PersistentVolume) int64 {
	if pv == nil {
		return 0
	}
	return pv.Spec.Capacity.Storage().Value()
}
