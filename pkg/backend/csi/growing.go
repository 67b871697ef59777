package csi

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// lookPause is the pause between two looks through all claims: who leads may not be who expands.
	lookPause = 5 * time.Minute
	// growTime is how long a volume is looked at whose claim does not say that the node has a part yet.
	growTime = 10 * time.Minute
)

// growing are the volumes of which it is not known that the node's part of an expansion is over:
// those that this process has expanded, and those that it found.
type growing struct {
	mu sync.Mutex
	// looked is when all claims were looked at last.
	looked time.Time
	// since is when an expansion was asked for, or found.
	since map[volume.ID]time.Time
}

func (g *growing) add(id volume.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.since == nil {
		g.since = map[volume.ID]time.Time{}
	}
	g.since[id] = time.Now()
}

// drop forgets a volume unless it was expanded again.
func (g *growing) drop(id volume.ID, since time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.since[id].Equal(since) {
		delete(g.since, id)
	}
}

// known returns the volumes, and whether it is time to look through all claims.
func (g *growing) known() (since map[volume.ID]time.Time, look bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.since), time.Since(g.looked) > lookPause
}

// Growing returns the volumes on whose claims the node's part of an expansion is pending, with the
// size in bytes that they grow to. Errors: ErrUnavailable.
func (b *Backend) Growing(ctx context.Context) (map[volume.ID]int64, error) {
	if _, look := b.growing.known(); look {
		if err := b.findGrowing(ctx); err != nil {
			return nil, err
		}
	}
	known, _ := b.growing.known()
	out := map[volume.ID]int64{}
	var errs []error
	for id, since := range known {
		f, err := b.lookBound(ctx, id)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			b.growing.drop(id, since)
		case err != nil:
			errs = append(errs, err)
		case pendingOnNode(&f.claim.Status):
			out[id] = sizeOf(f.pv)
		case grown(f.claim, f.pv), time.Since(since) > growTime:
			b.growing.drop(id, since)
		}
	}
	return out, errors.Join(errs...)
}

// grown reports whether nothing of an expansion is left to do: the claim has the size of its
// PersistentVolume, and what it asks for. Until then the other driver's resizer may yet say that the
// node has a part.
func grown(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	return claim.Status.Capacity.Storage().Value() >= max(sizeOf(pv), claim.Spec.Resources.Requests.Storage().Value())
}

// findGrowing looks through all claims for what processes before this one have expanded.
func (b *Backend) findGrowing(ctx context.Context) error {
	list := &corev1.PersistentVolumeClaimList{}
	for {
		err := b.api.List(ctx, list, client.InNamespace(b.namespace), client.HasLabels{LabelVolume}, client.Limit(listPage), client.Continue(list.Continue))
		if err != nil {
			return records.Error("list claims in namespace "+b.namespace, err)
		}
		for i := range list.Items {
			c := &list.Items[i]
			if pendingOnNode(&c.Status) {
				b.growing.add(volume.ID(c.Name))
			}
		}
		if list.Continue == "" {
			break
		}
	}
	b.growing.mu.Lock()
	defer b.growing.mu.Unlock()
	b.growing.looked = time.Now()
	return nil
}
