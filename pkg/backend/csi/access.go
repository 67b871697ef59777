package csi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/pkg/backend"
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

// sizeOf is the size of a PersistentVolume; 0 without one.
func sizeOf(pv *corev1.PersistentVolume) int64 {
	if pv == nil {
		return 0
	}
	return pv.Spec.Capacity.Storage().Value()
}
