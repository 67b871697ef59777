package attach

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/cachefault"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/preload"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// preloadBusy is the pause between two looks at preloads on demand while one goes on, and preloadClose how
// long the end of the process waits for their reads.
const preloadBusy, preloadClose = time.Second, 2 * time.Second

// RunPreloads fills caches when that is asked for, until ctx ends.
func (a *Attacher) RunPreloads(ctx context.Context, every time.Duration) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), preloadClose)
		defer cancel()
		a.preloads.Close(ctx)
	}()
	changed := a.Owned.Changed()
	for {
		pause := every
		busy, err := a.Preloads(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Requests to fill caches could not be looked for")
		}
		if busy {
			pause = preloadBusy
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(pause):
		}
	}
}

// Preloads takes the steps of preloads on demand that are due, and reports whether any goes on. It is not for
// concurrent use.
func (a *Attacher) Preloads(ctx context.Context) (busy bool, err error) {
	records, err := a.Owned.List(ctx)
	if err != nil {
		return false, err
	}
	return a.preloads.Look(ctx, records), nil
}

// StopPreload ends the reads of a preload on demand, which the next look begins anew; errors are those of
// preload.Runner.
func (a *Attacher) StopPreload(ctx context.Context, id volume.ID) error {
	return a.preloads.Stop(ctx, id)
}

// preloadHost is the Attacher as what fills caches on demand sees it.
type preloadHost struct{ warmHost }

var _ preload.Host = preloadHost{}

// Live implements preload.Host.
func (h preloadHost) Live(ctx context.Context, id volume.ID) (st devmapper.CacheStatus, cached bool, broken string, err error) {
	st, cached, err = h.DM.Status(ctx, layout.Device(id, layout.Top))
	if err != nil || !cached {
		return st, false, "", err
	}
	return st, true, cmp.Or(cachefault.Broken(st), h.cacheFaults.Why(id)), nil
}

// Mounted implements preload.Host.
func (h preloadHost) Mounted(ctx context.Context, id volume.ID) (path string, found bool, err error) {
	top, found, err := h.stack.Top(ctx, id)
	if err != nil || !found || h.Freezer == nil {
		return "", false, err
	}
	return h.Freezer.Mounted(ctx, top.DevNo())
}

// ReadPreloadMap implements preload.Host.
func (h preloadHost) ReadPreloadMap(ctx context.Context, id volume.ID) (cachemap.Map, error) {
	// The kernel writes the map when somebody flushes, and else never.
	if err := h.DM.Commit(ctx, layout.Device(id, layout.Top)); err != nil {
		return cachemap.Map{}, err
	}
	c, err := h.ssd.Inspect(ctx, h.Pool.View().VG, id)
	if err != nil {
		return cachemap.Map{}, err
	}
	return h.readInUse(ctx, c.Meta.DevPath(), filepath.Join(h.Warm.Dir, string(id)+".preload"))
}

// OpenTop implements preload.Host.
func (h preloadHost) OpenTop(ctx context.Context, id volume.ID) (preload.Source, error) {
	top, found, err := h.stack.Top(ctx, id)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("%w: volume %s has no device", volume.ErrUnavailable, id)
	}
	return h.Blocks.Open(top.DevPath(), unix.O_RDONLY|unix.O_DIRECT)
}

// Bandwidth implements preload.Host.
func (h preloadHost) Bandwidth(rec volume.Volume) int64 {
	limit, _ := h.warmLimits(rec.Spec.WarmStart)
	return cmp.Or(rec.Preload.Bandwidth, limit)
}

// ReportPreload implements preload.Host.
func (h preloadHost) ReportPreload(ctx context.Context, id volume.ID, f volume.Fence, r volume.PreloadReport) error {
	return h.Records.ReportPreload(ctx, id, f, r)
}
