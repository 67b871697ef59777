package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// tick is the pause between two looks at streams under way, idlePause while there is
	// none, and between two looks at the journal for those that are not known.
	tick      = time.Second
	idlePause = 15 * time.Second
	// retryPause is the pause after a step that failed.
	retryPause = time.Second
	// patience is how long a look waits for the steps that it has begun.
	patience = 5 * time.Second
	// reportEvery is the least time between two reports of one stream.
	reportEvery = 5 * time.Second
	// patientFor are so many failures of steps: what fails that often is no accident.
	patientFor = 20
)

// Host is the node whose caches are being filled.
type Host interface {
	state.Journal
	// Lock returns a volume's entry under its lock, which is given back in every case. There
	// is none while a request works on the volume.
	Lock(ctx context.Context, id volume.ID) (e *state.Entry, unlock func(), err error)
	// ReadMap reads the map that a stream began with.
	ReadMap(id volume.ID) (*cachemap.Map, error)
	// ReadLevel reads the map of a level in use, which does not change.
	ReadLevel(ctx context.Context, id volume.ID, device string) (*cachemap.Map, error)
	// RestoreMap writes a map to metadata that no device uses.
	RestoreMap(ctx context.Context, id volume.ID, m cachemap.Map, device string) error
	// Drop ends what a stream has outside of the devices; the entry forgets it.
	Drop(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string)
	// Uncache has the volume go on without its cache, which is destroyed: nothing in it is
	// the only copy of anything.
	Uncache(ctx context.Context, e *state.Entry, why string) error
}

// Puller gets chunks from other nodes.
type Puller interface {
	// Map returns what the other node's cache holds, hottest first. Errors: as those of Chunks,
	// and whatever is wrong with the answer.
	Map(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID) (volume.ChunkList, error)
	// Chunks calls each with the wanted chunks of a cache, in the order of the list that the
	// other node has given, and the block of the origin that each is
	// a copy of. The data are aligned, and valid until
	// each returns. bandwidth is in bytes per second, 0 is no limit. Errors: ErrNotFound,
	// ErrFenced (the other node does not serve any more), ErrUnavailable.
	Chunks(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID, w volume.Wanted, bandwidth int64, chunkBytes int, each func(i int, block uint64, data []byte) error) error
}

// Config is what a Runner works with.
type Config struct {
	Host  Host
	Stack *stack.Stack
	SSD   *ssd.Group
	// Puller may be nil: then all chunks are read from the origin.
	Puller Puller
	// Moves are told of progress; nil if nobody is.
	Moves volume.Moves
	// NodeBandwidth limits all streams together, in bytes per second; 0 is no limit.
	NodeBandwidth func() int64
	// StartPause is how long a copy waits for the start of the pod, at most.
	StartPause time.Duration
	// PullPause is the pause before a source node that has failed is asked again.
	PullPause time.Duration
	// WriteBytes is how much is written to the SSD at once, 0 is 1 MiB.
	WriteBytes int
	Now        func() time.Time
}

// Runner runs the streams of a node.
type Runner struct {
	Config
	work passes.Workers
	wake chan struct{}

	mu      sync.Mutex
	known   map[volume.ID]*account
	foundAt time.Time
}

// account is what this process knows of one stream.
type account struct {
	// failures are the steps that have failed since one has not, failed says how, and failedIn
	// which it was.
	failures          int
	failed            error
	failedIn          step
	retryAt, reported time.Time
	// copy is what copies, nil if nothing does.
	copy *copying
}

// New returns a Runner that knows of no stream yet.
func New(c Config) *Runner {
	return &Runner{Config: c, wake: make(chan struct{}, 1), known: map[volume.ID]*account{}}
}

// Begin has Run look at a volume.
func (r *Runner) Begin(id volume.ID) {
	r.account(id)
	r.poke()
}

// account is that of a volume, which is known from then on.
func (r *Runner) account(id volume.ID) *account {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[id] == nil {
		r.known[id] = &account{}
	}
	return r.known[id]
}

func (r *Runner) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Stop ends the copy of a volume. On return nothing is written any more, and what was copied
// is forgotten: the devices that come next are others.
// Errors: ErrUnavailable if that does not end in time, and the next call goes on.
func (r *Runner) Stop(ctx context.Context, id volume.ID) error {
	r.mu.Lock()
	a := r.known[id]
	r.mu.Unlock()
	if a == nil {
		return nil
	}
	if c := r.copying(a); c != nil {
		if err := c.stop(ctx); err != nil {
			return fmt.Errorf("%w: the copy into the cache of volume %s does not end: %w", volume.ErrUnavailable, id, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		a.copy = nil
	}
	return nil
}

// copying is what copies, nil if nothing has yet.
func (r *Runner) copying(a *account) *copying {
	r.mu.Lock()
	defer r.mu.Unlock()
	return a.copy
}

// forget forgets a volume that is not streamed any more, and of which nothing is copied.
func (r *Runner) forget(id volume.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.known[id]; a != nil && a.copy == nil {
		delete(r.known, id)
	}
}

// Run leads streams to their end until ctx ends.
func (r *Runner) Run(ctx context.Context) {
	defer r.stopAll(context.WithoutCancel(ctx))
	for {
		pause := r.Turn(ctx)
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-time.After(pause):
		}
	}
}

func (r *Runner) stopAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, id := range r.ids() {
		_ = r.Stop(ctx, id) // the process ends
	}
}

// Turn is one turn of Run. It returns how long it may rest then.
func (r *Runner) Turn(ctx context.Context) (pause time.Duration) {
	r.find(ctx)
	ids := r.ids()
	if len(ids) == 0 {
		return idlePause
	}
	_ = r.work.Each(ctx, 0, patience, ids, func(ctx context.Context, id volume.ID) error {
		if err := r.step(ctx, id); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Stream does not go on, it will be tried again", "volume", id)
		}
		return nil
	})
	return tick
}

// find finds the streams that the journal knows, now and then.
func (r *Runner) find(ctx context.Context) {
	r.mu.Lock()
	due := r.foundAt.IsZero() || r.Now().Sub(r.foundAt) >= idlePause
	if due {
		r.foundAt = r.Now()
	}
	r.mu.Unlock()
	if !due {
		return
	}
	entries, err := r.Host.Entries()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Not every stream under way is known")
	}
	for i := range entries {
		if e := &entries[i]; e.Streams() && e.State == state.Staged {
			r.account(e.ID)
		}
	}
}

func (r *Runner) ids() []volume.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]volume.ID, 0, len(r.known))
	for id := range r.known {
		out = append(out, id)
	}
	return out
}

// Count is how many streams are under way.
func (r *Runner) Count() int { return len(r.ids()) }

// State is how far a stream is.
type State struct {
	ID volume.ID
	volume.MoveProgress
	// Copying is true while chunks come.
	Copying bool
}

// States are those of all streams whose copy this process has begun.
func (r *Runner) States() []State {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []State
	for id, a := range r.known {
		if c := a.copy; c != nil {
			out = append(out, State{ID: id, MoveProgress: c.progress(r.Now()), Copying: c.going()})
		}
	}
	return out
}

// step takes the steps of one stream that are due.
func (r *Runner) step(ctx context.Context, id volume.ID) error {
	a := r.account(id)
	if r.Now().Before(a.retryAt) {
		return nil
	}
	e, err := r.Host.Entry(id)
	if err != nil {
		return err
	}
	if !e.Streams() {
		if err := r.Stop(ctx, id); err != nil {
			return err
		}
		r.forget(id)
		return nil
	}
	if c := r.copying(a); c != nil && !c.milestone() {
		r.report(ctx, e, a) // nothing to decide: no look at the tables
		return nil
	}
	return r.lockedStep(ctx, id, a)
}

// lockedStep takes a step that no request may run beside.
func (r *Runner) lockedStep(ctx context.Context, id volume.ID, a *account) error {
	e, unlock, err := r.Host.Lock(ctx, id)
	defer unlock()
	if err != nil || !e.Streams() || e.State != state.Staged {
		return err
	}
	f, err := r.gather(ctx, e, a)
	if err != nil {
		return err
	}
	next := decide(f)
	if next == stepNothing {
		return nil
	}
	if err := r.take(ctx, e, a, f, next); err != nil {
		a.retryAt = r.Now().Add(retryPause)
		a.failures, a.failed = a.failures+1, err
		if next != stepEnd { // which is taken again as what it began as
			a.failedIn = next
		}
		if errors.Is(err, context.DeadlineExceeded) {
			a.failures += patientFor / 4 // requests have waited for all of that time
		}
		return fmt.Errorf("step %s: %w", next, err)
	}
	a.failures = 0
	if next != stepCopy {
		r.poke() // for the next one
	}
	return nil
}

func (r *Runner) gather(ctx context.Context, e *state.Entry, a *account) (facts, error) {
	f := facts{Entry: e, GivenUp: a.failures >= patientFor}
	c := r.copying(a)
	if c != nil && !c.of(e) {
		// Whoever took those devices away has stopped it; its counts say nothing of these.
		if err := r.Stop(ctx, e.ID); err != nil {
			return f, err
		}
		c = nil
	}
	if c != nil {
		f.HotCopied, f.Copied, f.Failed, f.Copying = c.state(e.Hydration.Stream)
	}
	f.HotCopied = f.HotCopied || e.Hydration.Stream.Prewarmed
	l, err := r.Stack.Levels(ctx, e)
	f.Levels = l
	return f, err
}

func (r *Runner) take(ctx context.Context, e *state.Entry, a *account, f facts, next step) error {
	switch next {
	case stepCopy:
		return r.begin(ctx, e, a, f.Levels.HotServes)
	case stepServeHot:
		return r.serve(ctx, e, layout.Hot, f)
	case stepServeRest:
		return r.serve(ctx, e, layout.Top, f)
	case stepMerge:
		return r.merge(ctx, e, f.Levels)
	case stepSweep:
		return r.sweep(ctx, e, volume.MoveCompleted, r.copiedIn(a))
	case stepEnd:
		// What could not be merged again and again is not tried once more.
		return r.end(ctx, e, f.Levels, r.why(a, f), !f.GivenUp || a.failedIn != stepMerge)
	case stepNothing:
	}
	return nil
}

// copiedIn is the message of a stream that is complete; how long its copy took may not be known.
func (r *Runner) copiedIn(a *account) string {
	if c := r.copying(a); c != nil && c.took() > 0 {
		return "everything was copied, " + c.took().String()
	}
	return "everything was copied"
}

// why says why a stream is ended before it is complete.
func (r *Runner) why(a *account, f facts) string {
	c := r.copying(a)
	switch {
	case f.Levels.HotFailed:
		return "the first level could not be brought into use"
	case f.GivenUp:
		return a.failed.Error()
	case c != nil:
		return c.why()
	}
	return "the copy has ended"
}

// serve has a level serve whose chunks are on the SSD.
func (r *Runner) serve(ctx context.Context, e *state.Entry, p layout.Part, f facts) error {
	t := f.Levels.Hot
	if p == layout.Top {
		t = f.Levels.Top
	}
	r.Stack.FinalCount(ctx, e.ID)
	if err := r.Stack.Serve(ctx, e, p, t); err != nil {
		return err
	}
	faultStreamServes.Hit()
	r.Stack.BeginCounting(ctx, e)
	return r.Host.Save(ctx, e, e.State)
}

// Settle ends the stream of a volume now, under its lock. What serves by then is kept as one
// cache; without any the volume goes on without a cache.
func (r *Runner) Settle(ctx context.Context, e *state.Entry, why string) error {
	if err := r.Stop(ctx, e.ID); err != nil {
		return err
	}
	l, err := r.Stack.Levels(ctx, e)
	if err != nil {
		return err
	}
	if l.Merged {
		return r.sweep(ctx, e, volume.MoveCompleted, "everything was copied")
	}
	return r.end(ctx, e, l, why, true)
}

// end is Settle for tables that are known. A merge has half of the time, so that the volume can
// go on without its cache in the other.
func (r *Runner) end(ctx context.Context, e *state.Entry, l stack.Levels, why string, keep bool) error {
	if err := r.Stop(ctx, e.ID); err != nil {
		return err
	}
	if keep && l.Split && l.HotServes {
		half, cancel := halfOf(ctx)
		err := r.merge(half, e, l)
		cancel()
		if err == nil {
			return r.sweep(ctx, e, volume.MoveEnded, why)
		}
		klog.FromContext(ctx).Error(err, "What was streamed cannot be kept, the volume goes on without its cache", "volume", e.ID)
	}
	return r.Host.Uncache(ctx, e, why)
}

// halfOf is ctx for half of the time that it has left.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/2)
}

// report writes progress that is news. Nobody's data wait for it.
func (r *Runner) report(ctx context.Context, e *state.Entry, a *account) {
	c := r.copying(a)
	if r.Moves == nil || e.Hydration.Move.Name == "" || c == nil || r.Now().Sub(a.reported) < reportEvery {
		return
	}
	a.reported = r.Now()
	p := c.progress(r.Now())
	if err := r.Moves.Progress(ctx, e.Hydration.Move, p); err != nil && !errors.Is(err, volume.ErrNotFound) {
		klog.FromContext(ctx).Error(err, "Progress of a move could not be reported", "volume", e.ID)
	}
}
