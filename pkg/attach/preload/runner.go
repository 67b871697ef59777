package preload

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// reportEvery is the least time between two reports of progress.
	reportEvery = 5 * time.Second
	// Patience is after how long a preload is given up of which nothing more is promoted: smq keeps what
	// was read in the last minute.
	Patience = 3 * time.Minute
)

// Host is the node whose caches are filled.
type Host interface {
	// Entry is a volume's entry, nil if there is none.
	Entry(id volume.ID) (*state.Entry, error)
	// Lock returns a volume's entry under its lock, which is given back in every case. There is
	// none while a request works on the volume.
	Lock(ctx context.Context, id volume.ID) (e *state.Entry, unlock func(), err error)
	// Live is the status of a volume's cache, cached false if its top device is none, and broken how
	// the cache fails.
	Live(ctx context.Context, id volume.ID) (st devmapper.CacheStatus, cached bool, broken string, err error)
	// Mounted is where a volume's filesystem is mounted.
	Mounted(ctx context.Context, id volume.ID) (path string, found bool, err error)
	// ReadPreloadMap reads the map of a cache in use. What changes meanwhile may be torn.
	ReadPreloadMap(ctx context.Context, id volume.ID) (cachemap.Map, error)
	// OpenTop opens a volume's top device past the page cache.
	OpenTop(ctx context.Context, id volume.ID) (Source, error)
	// Bandwidth bounds a preload of a volume, in bytes per second; 0 is no limit.
	Bandwidth(rec volume.Volume) int64
	ReportPreload(ctx context.Context, id volume.ID, f volume.Fence, r volume.PreloadReport) error
}

// Source is an open device.
type Source = source

// Runner runs the preloads of a node.
type Runner struct {
	Host Host
	Now  func() time.Time
	// Patience is as the constant; zero is that.
	Patience time.Duration

	mu   sync.Mutex
	jobs map[volume.ID]*job
}

// job is a preload that this process has begun.
type job struct {
	request string
	fence   volume.Fence
	fill    *filling
	cancel  context.CancelFunc
	// stopped is true once it was told to end.
	stopped bool
	done    chan struct{}
	// told is what was reported last, and at when; cached is how much was cached when it was looked at
	// last, and since from when on it is so much. Look alone has them.
	told   volume.PreloadReport
	at     time.Time
	cached int64
	since  time.Time
}

// holdsUp is for how long a preload that caches nothing more holds up those of other volumes: its origin may
// not answer.
const holdsUp = 3 * time.Minute

// Stop ends a preload. On return nothing of the volume is open any more. The request stays, so that the
// next look may begin anew.
// Errors: ErrUnavailable if it does not end in time.
func (r *Runner) Stop(ctx context.Context, id volume.ID) error {
	j := r.job(id)
	if j == nil {
		return nil
	}
	r.mu.Lock()
	j.stop()
	r.mu.Unlock()
	select {
	case <-j.done:
	case <-ctx.Done():
		return fmt.Errorf("%w: the preload of volume %s does not end: %w", volume.ErrUnavailable, id, ctx.Err())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs[id] == j {
		delete(r.jobs, id)
	}
	return nil
}

// Close ends all, when the process ends.
func (r *Runner) Close(ctx context.Context) {
	r.mu.Lock()
	var ids []volume.ID
	for id, j := range r.jobs {
		j.stop()
		ids = append(ids, id)
	}
	r.mu.Unlock()
	for _, id := range ids {
		_ = r.Stop(ctx, id) // the process ends
	}
}

// stop has reading end. The caller has the lock of the jobs.
func (j *job) stop() {
	j.stopped = true
	j.cancel()
}

// other is another volume that is read, "" if there is none. One that was told to end, and cannot because
// its device does not answer, holds up nobody, nor does one that caches nothing more for a while.
func (r *Runner) other(id volume.ID) (other volume.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for have, j := range r.jobs {
		select {
		case <-j.done:
			continue
		default:
		}
		if cached := j.fill.state().CachedBytes; cached != j.cached {
			j.cached, j.since = cached, r.Now()
		}
		if have != id && !j.stopped && r.Now().Sub(j.since) < holdsUp && (other == "" || have < other) {
			other = have
		}
	}
	return other
}

func (r *Runner) job(id volume.ID) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.jobs[id]
}

// Look takes what is due of the records of all volumes of the node, and reports whether anything goes
// on. It is not for concurrent use.
func (r *Runner) Look(ctx context.Context, recs []volume.Volume) (busy bool) {
	known := map[volume.ID]bool{}
	for _, rec := range recs {
		known[rec.ID] = true
		if idle(rec) && r.job(rec.ID) == nil {
			continue
		}
		on, err := r.look(ctx, rec)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Preload does not go on, it will be tried again", "volume", rec.ID)
		}
		busy = busy || on || err != nil
	}
	for _, id := range r.gone(known) {
		r.stop(id)
		busy = true
	}
	return busy
}

// idle reports whether a record asks for nothing, and waits for no answer.
func idle(rec volume.Volume) bool {
	said := rec.Preloaded
	if rec.Preload == nil {
		return said.State == "" || said.Over()
	}
	return said.Request == rec.Preload.Request && said.Over()
}

// gone are the volumes that are read of which this node has no record any more.
func (r *Runner) gone(known map[volume.ID]bool) (ids []volume.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.jobs {
		if !known[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// stop ends a preload, for which it does not wait: a device that does not answer holds up no other volume.
func (r *Runner) stop(id volume.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.jobs[id]
	if j == nil {
		return
	}
	j.stop()
	select {
	case <-j.done:
		delete(r.jobs, id)
	default:
	}
}

// look takes the step of one volume.
func (r *Runner) look(ctx context.Context, rec volume.Volume) (busy bool, err error) {
	f := facts{Record: rec}
	if f.Entry, err = r.Host.Entry(rec.ID); err != nil {
		return false, err
	}
	j := r.job(rec.ID)
	if j != nil {
		f.Running = j.request
	}
	s, why := decide(f)
	switch s {
	case stepNothing:
		if j != nil {
			r.stop(rec.ID) // its end is told
		}
		return false, nil
	case stepStop:
		r.stop(rec.ID)
		return true, nil
	case stepCancel:
		end := rec.Preloaded
		end.State, end.Message = volume.PreloadCancelled, why
		return true, r.Host.ReportPreload(ctx, rec.ID, rec.Fence, end)
	case stepRunning:
		return true, r.progress(ctx, rec, j)
	case stepFail, stepWait, stepBegin:
	}
	return r.begin(ctx, rec)
}

// progress reports how far a preload is.
func (r *Runner) progress(ctx context.Context, rec volume.Volume, j *job) error {
	now := j.fill.state()
	if now == j.told || !now.Over() && now.TotalBytes == j.told.TotalBytes && r.Now().Sub(j.at) < reportEvery {
		return nil
	}
	if err := r.Host.ReportPreload(ctx, rec.ID, j.fence, now); err != nil {
		return err
	}
	if now.Over() {
		klog.FromContext(ctx).Info("Preload ended", "volume", rec.ID, "state", now.State, "cachedBytes", now.CachedBytes, "totalBytes", now.TotalBytes, "message", now.Message)
	}
	j.told, j.at = now, r.Now()
	return nil
}

// begin decides again under the volume's lock, with what the devices say, and begins.
func (r *Runner) begin(ctx context.Context, rec volume.Volume) (busy bool, err error) {
	e, unlock, err := r.Host.Lock(ctx, rec.ID)
	defer unlock()
	if err != nil || e == nil {
		return true, err
	}
	f, root, err := r.gather(ctx, rec, e)
	if err != nil {
		return true, err
	}
	said := volume.PreloadReport{Request: rec.Preload.Request}
	var why string
	switch s, w := decide(f); s {
	case stepBegin:
		r.start(ctx, rec, e, root)
		return true, nil
	case stepFail:
		said.State, why = volume.PreloadFailed, w
	case stepWait:
		said.State, why = volume.PreloadPending, w
	case stepNothing, stepStop, stepCancel, stepRunning:
		return false, nil
	}
	if said.Message = why; rec.Preloaded == said {
		return true, nil
	}
	return true, r.Host.ReportPreload(ctx, rec.ID, rec.Fence, said)
}

func (r *Runner) gather(ctx context.Context, rec volume.Volume, e *state.Entry) (f facts, root string, err error) {
	f = facts{Record: rec, Entry: e, Other: r.other(rec.ID)}
	if f.Live, f.Cached, f.Broken, err = r.Host.Live(ctx, rec.ID); err != nil {
		return f, "", err
	}
	if !e.Raw {
		root, f.Mounted, err = r.Host.Mounted(ctx, rec.ID)
	}
	return f, root, err
}

// start begins to read. It goes on when the context of the look has ended.
func (r *Runner) start(ctx context.Context, rec volume.Volume, e *state.Entry, root string) {
	id := rec.ID
	fill := &filling{
		raw: e.Raw, root: root, path: rec.Preload.Path, bandwidth: r.Host.Bandwidth(rec), patience: Patience, now: r.Now, pause: passes.Pause,
		open: func(ctx context.Context) (source, error) { return r.Host.OpenTop(ctx, id) },
		read: func(ctx context.Context) (cachemap.Map, error) { return r.Host.ReadPreloadMap(ctx, id) },
		status: func(ctx context.Context) (devmapper.CacheStatus, error) {
			st, cached, _, err := r.Host.Live(ctx, id)
			if err == nil && !cached {
				err = fmt.Errorf("%w: device %s is no cache any more", volume.ErrUnavailable, layout.Device(id, layout.Top))
			}
			return st, err
		},
		report: volume.PreloadReport{Request: rec.Preload.Request, State: volume.PreloadRunning, Started: r.Now()},
	}
	if r.Patience > 0 {
		fill.patience = r.Patience
	}
	jctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	j := &job{request: rec.Preload.Request, fence: rec.Fence, fill: fill, cancel: cancel, done: make(chan struct{}), since: r.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs == nil {
		r.jobs = map[volume.ID]*job{}
	}
	r.jobs[id] = j
	klog.FromContext(ctx).Info("Preload begins", "volume", id, "path", rec.Preload.Path, "bandwidth", fill.bandwidth)
	go func() {
		defer close(j.done)
		defer cancel()
		fill.run(jctx)
	}()
}
