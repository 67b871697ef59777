package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// pulls is how often the source node is asked in vain before the origin takes its place: with a
// pause of a second between, long enough for a plugin that is replaced. Where packets are dropped each
// time takes as long as a connection may (pkg/cachestream), so that a cut of two minutes costs nothing.
const pulls = 30

// fastest is what no copy exceeds, in bytes per second.
const fastest = 1 << 30

// copying is a copy under way. It writes below the cache's levels, where nothing else does
// while they serve nothing, and never after it was stopped.
type copying struct {
	r      *Runner
	entry  state.Entry
	m      *cachemap.Map
	cancel context.CancelFunc
	done   chan struct{}
	// limit is its share of the node's bandwidth, as of the last look at it.
	limit *rate.Limiter
	// unpaced is what has come since it last looked at the clock, and unit when it does again, both
	// in bytes.
	unpaced, unit int
	// gives is how it gives way to the pod.
	gives giving

	mu sync.Mutex
	// next is the chunk that comes: those before it are written, or about to be. synced is how
	// many of the first ones the SSD has for sure, seen what of it a step was decided by.
	next, synced, seen int
	from               volume.ServedFrom
	// began is when it did, zero before; ended when everything had been copied.
	began, ended time.Time
	first        int
	err          error
	// numbers are those of the chunks in the source node's list behind the first level, if that
	// was there from the beginning; nil before the list was asked for.
	numbers []int
	skip    volume.Bits
}

// begin begins to copy; the first level only if it does not serve yet.
func (r *Runner) begin(ctx context.Context, e *state.Entry, a *account, hotServes bool) error {
	m, err := r.Host.ReadMap(e.ID)
	if err != nil {
		return err
	}
	ordered := m.Ordered()
	c := &copying{r: r, entry: *e, m: &ordered, done: make(chan struct{}), from: volume.FromOrigin}
	c.limit = rate.NewLimiter(rate.Inf, int(m.ChunkSectors*devmapper.SectorSize))
	if e.Hydration.Stream.Source != nil && r.Puller != nil {
		// Not the origin before it is: the source node would end the lease.
		c.from = volume.FromPeer
	}
	if hotServes {
		c.first = int(e.Hydration.Stream.Hot)
	}
	c.next, c.synced, c.seen = c.first, c.first, c.first
	parts, err := r.Stack.Parts(ctx, e.ID)
	if err != nil {
		return err
	}
	data, origin, top := parts[layout.Data], parts[layout.Origin], parts[layout.Top]
	if !data.HasLive || !origin.HasLive {
		return fmt.Errorf("%w: volume %s has no devices to copy to and from", volume.ErrUnavailable, e.ID)
	}
	c.gives.reads = func() (blockdev.Reads, error) { return blockdev.ReadFrom(r.Stack.Sysfs, top.DevNo()) }
	c.gives.least = c.least
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	r.mu.Lock()
	a.copy = c
	r.mu.Unlock()
	go func() {
		defer close(c.done)
		defer cancel()
		c.run(run, data.DevPath(), origin.DevPath())
		r.poke()
	}()
	return nil
}

// stop ends the copy, and waits for it.
func (c *copying) stop(ctx context.Context) error {
	c.cancel()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// of reports whether it fills the cache that an entry speaks of.
func (c *copying) of(e *state.Entry) bool {
	return c.entry.Fence == e.Fence && c.entry.ActivationID == e.ActivationID && c.entry.Hydration.Move == e.Hydration.Move
}

// state is what a step is decided by.
func (c *copying) state(s *state.Stream) (hot, all, failed, going bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = c.synced
	all, going = c.synced == len(c.m.Entries), c.going()
	return c.synced >= int(s.Hot), all, !going && !all, going
}

// milestone reports whether something was copied, or has ended, that no step was decided by.
func (c *copying) milestone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced != c.seen || !c.going()
}

// going reports whether it goes on.
func (c *copying) going() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// why says why the copy ended before it was complete.
func (c *copying) why() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return "the copy was stopped"
	}
	return c.err.Error()
}

// took is how long it took to copy everything, rounded; 0 while it is not known.
func (c *copying) took() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.IsZero() {
		return 0
	}
	return c.ended.Sub(c.began).Round(time.Millisecond)
}

func (c *copying) progress(now time.Time) volume.MoveProgress {
	c.mu.Lock()
	defer c.mu.Unlock()
	chunk := int64(c.m.ChunkSectors) * devmapper.SectorSize
	p := volume.MoveProgress{TotalBytes: int64(len(c.m.Entries)) * chunk, HydratedBytes: int64(c.next) * chunk, From: c.from}
	if !c.ended.IsZero() {
		now = c.ended
	}
	if took := now.Sub(c.began).Seconds(); took > 0 && !c.began.IsZero() {
		p.Rate = int64(float64(int64(c.next-c.first)*chunk) / took)
	}
	p.Estimate()
	return p
}

// run copies until everything is there, or ctx ends.
func (c *copying) run(ctx context.Context, data, origin string) {
	err := c.copyTo(ctx, data, origin)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = err; err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Copy into a cache has ended", "volume", c.entry.ID, "chunks", c.next, "of", len(c.m.Entries))
	}
}

func (c *copying) copyTo(ctx context.Context, data, origin string) (err error) {
	dst, err := c.r.Stack.Blocks.Open(data, unix.O_RDWR|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	w := newWriter(dst, int(c.m.ChunkSectors*devmapper.SectorSize), c.r.WriteBytes)
	// Once it has ended nothing is written any more.
	defer func() { err = errors.Join(err, w.wait()) }()
	if err := c.gives.settle(ctx, c.r.StartPause); err != nil {
		return err
	}
	c.mu.Lock()
	c.began = c.r.Now()
	c.mu.Unlock()
	if err := c.pull(ctx, w); err != nil {
		return err
	}
	return c.fromOrigin(ctx, w, origin)
}

// errWrite is a failure of the SSD here: no other source is of any help.
var errWrite = errors.New("the SSD takes no writes")

// errRest: there is no room for what comes.
var errRest = errors.New("the cache here is smaller")

// pull copies from the source node, for as long as that serves. What it leaves is for the
// origin.
func (c *copying) pull(ctx context.Context, w *writer) error {
	src := c.entry.Hydration.Stream.Source
	if src == nil || c.r.Puller == nil {
		return nil
	}
	log := klog.FromContext(ctx).WithValues("volume", c.entry.ID)
	for vain := 0; vain < pulls; vain++ {
		from := c.next
		if from == len(c.m.Entries) {
			return nil
		}
		pctx, cancel := c.untilDeadline(ctx)
		err := c.chunks(pctx, *src, from, func(i int, block uint64, b []byte) error {
			if i >= len(c.m.Entries) {
				return errRest
			}
			if want := c.m.Entries[i].Origin; block != want {
				return fmt.Errorf("%w: chunk %d is block %d, the map said %d", volume.ErrUnavailable, i, block, want)
			}
			return c.put(ctx, w, i, b)
		})
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errWrite):
			return err
		case c.next == len(c.m.Entries):
			return nil
		case err == nil:
			err = errors.New("it sends less than it has said")
		}
		if c.next > from {
			vain = 0
		}
		if vain == 0 {
			log.Info("Chunks do not come from the other node", "reason", err.Error())
		}
		if !errors.Is(err, volume.ErrUnavailable) || c.expired() {
			// It serves no more, or is not to be believed.
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.r.PullPause):
		}
	}
	log.Info("The origin takes the place of the other node")
	c.mu.Lock()
	c.from = volume.FromOrigin
	c.mu.Unlock()
	return nil
}

func (c *copying) untilDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if d := c.entry.Hydration.Deadline; !d.IsZero() {
		return context.WithTimeout(ctx, d.Sub(c.r.Now()))
	}
	return context.WithCancel(ctx)
}

func (c *copying) expired() bool {
	d := c.entry.Hydration.Deadline
	return !d.IsZero() && c.r.Now().After(d)
}

// bandwidth is this copy's limit now, in bytes per second, 0 without one. Copies share what the
// node has.
func (c *copying) bandwidth() int64 {
	limit := c.entry.Hydration.Bandwidth
	if c.r.NodeBandwidth == nil {
		return limit
	}
	node := c.r.NodeBandwidth()
	if node <= 0 {
		return limit
	}
	share := max(node/int64(max(c.r.Count(), 1)), 1) // 0 would be no limit
	if limit == 0 {
		return share
	}
	return min(limit, share)
}

// looksPerSecond is how often a copy that keeps to a rate looks at the clock, at least: not for each
// chunk, because a guest may pay dearly for the time.
const looksPerSecond = 64

// pace waits until the next chunk may be written. Other streams may have begun, or ended, since
// this one did.
func (c *copying) pace(ctx context.Context, chunk int) error {
	if c.unpaced += chunk; c.unpaced < c.unit {
		return nil
	}
	come := c.unpaced
	c.unpaced = 0
	b := c.bandwidth()
	own, err := c.gives.way(ctx, c.r.Now, come)
	if err != nil {
		return err
	}
	if own > 0 && (b <= 0 || own < b) {
		b = own
	}
	if c.unit = runBytes; b <= 0 {
		return nil
	}
	c.unit = int(min(runBytes, b/looksPerSecond))
	l := rate.Limit(b)
	if c.limit.Limit() != l {
		c.limit.SetLimit(l)
	}
	if c.limit.Burst() < come {
		c.limit.SetBurst(come)
	}
	return c.limit.WaitN(ctx, come)
}

// least is the rate below which it does not give way, in bytes per second. If the source node can
// still send everything before it ends the lease, it is to: what comes later comes from the origin,
// which the pod reads too.
func (c *copying) least() int64 {
	b := int64(least)
	if c.next < int(c.entry.Hydration.Stream.Hot) {
		b = leastHot
	}
	c.mu.Lock()
	from := c.from
	c.mu.Unlock()
	left := c.entry.Hydration.Deadline.Sub(c.r.Now()) * 9 / 10
	if c.entry.Hydration.Deadline.IsZero() || from != volume.FromPeer || left <= 0 {
		return b
	}
	rest := float64(len(c.m.Entries)-c.next) * float64(c.m.ChunkSectors) * devmapper.SectorSize
	in, most := rest/left.Seconds(), c.bandwidth()
	if in > float64(cmp.Or(most, fastest)) {
		return b // in vain
	}
	return max(b, int64(in))
}

// fromOrigin copies from the origin what has not been copied. A chunk that is written to
// while it is read may be torn: the kernel has taken it out of its level's map before.
func (c *copying) fromOrigin(ctx context.Context, w *writer, origin string) (err error) {
	if c.next == len(c.m.Entries) {
		return nil
	}
	src, err := c.r.Stack.Blocks.Open(origin, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	chunk := int64(c.m.ChunkSectors) * devmapper.SectorSize
	buf := blockdev.AlignedBuffer(int(chunk))
	for c.next < len(c.m.Entries) {
		if _, err := src.ReadAt(buf, int64(c.m.Entries[c.next].Origin)*chunk); err != nil {
			return err
		}
		if err := c.put(ctx, w, c.next, buf); err != nil {
			return err
		}
	}
	return nil
}

// put has the chunk that comes next written.
func (c *copying) put(ctx context.Context, w *writer, i int, b []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if i != c.next || i >= len(c.m.Entries) {
		return fmt.Errorf("chunk %d came, %d was expected", i, c.next)
	}
	if err := c.pace(ctx, len(b)); err != nil {
		return err
	}
	if err := w.add(ctx, int64(c.m.Entries[i].Cache)*int64(len(b)), b); err != nil {
		return err
	}
	hot := int(c.entry.Hydration.Stream.Hot)
	if end := i + 1; end == hot || end == len(c.m.Entries) {
		// Before anything says that it may serve.
		if err := w.flush(ctx); err != nil {
			return err
		}
		faultStreamSynced.Hit()
		c.mu.Lock()
		if c.synced = end; end == len(c.m.Entries) {
			c.ended = c.r.Now()
		}
		c.mu.Unlock()
		defer c.r.poke()
	}
	c.mu.Lock()
	c.next = i + 1
	c.mu.Unlock()
	return nil
}
