package reconcile

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// listPage is the number of objects asked for at once.
	listPage = 500
	// gather is how long a question waits for others that the same list answers,
	// lasting how long a list is kept for those that come to it late, and forgotten
	// when a question is a new one because nobody came back with it.
	gather, lasting, forgotten = time.Second, 10 * time.Second, time.Minute
)

// volumeLookup knows the volumes that PersistentVolumes name, by a list of all of them. A
// list answers what was asked before it began: whoever asks alone waits a second for
// it, and a thousand who ask in that second have one list together. It is safe for
// concurrent use.
type volumeLookup struct {
	mu sync.Mutex
	// asked is when a volume was first asked about, if that has not been answered.
	asked map[string]time.Time
	// began is when the last list was begun, and handles what it had.
	began   time.Time
	handles map[string]bool
}

// uses reports whether a PersistentVolume has the handle. If again is not 0, that is
// to be asked again after it.
func (c *volumeLookup) uses(ctx context.Context, now time.Time, handle string, list func(context.Context) (map[string]bool, error)) (used bool, again time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.began) > lasting {
		c.handles = nil
	}
	since, known := c.asked[handle]
	if !known || now.Sub(since) > forgotten {
		if c.asked == nil {
			c.asked = map[string]time.Time{}
		}
		c.asked[handle] = now
		return false, gather, nil
	}
	if c.handles == nil || c.began.Before(since) {
		if wait := gather - now.Sub(since); wait > 0 {
			return false, wait, nil
		}
		handles, err := list(ctx)
		if err != nil {
			return false, 0, err
		}
		c.began, c.handles = now, handles
		maps.DeleteFunc(c.asked, func(_ string, since time.Time) bool { return now.Sub(since) > forgotten })
	}
	delete(c.asked, handle)
	return c.handles[handle], 0, nil
}

// handles lists the volumes that PersistentVolumes name, by the API server itself.
func (r *Reconciler) handles(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	page := &corev1.PersistentVolumeList{}
	for {
		if err := r.Client.List(ctx, page, client.Limit(listPage), client.Continue(page.Continue)); err != nil {
			return nil, fmt.Errorf("list PersistentVolumes: %w", err)
		}
		for i := range page.Items {
			if handle := r.handle(&page.Items[i]); handle != "" {
				out[handle] = true
			}
		}
		if page.Continue == "" {
			return out, nil
		}
	}
}
