package scrub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// listEvery is how often the volumes that are due are looked up, and waitAfter the pause after
	// one that may not be compared now.
	listEvery, waitAfter = 2 * time.Second, 10 * time.Second
	// readPatience is how long one slice is waited for, and judgePatience a guard.
	readPatience, judgePatience = 5 * time.Second, 20 * time.Second
)

var (
	errSSD    = errors.New("the SSD cannot be read")
	errOrigin = errors.New("the origin cannot be read")
	errSlow   = errors.New("SSD or origin does not answer")
)

// Volume is a volume that is to be scrubbed.
type Volume struct {
	ID    volume.ID
	Fence volume.Fence
	// Request is what was asked for; "" on a schedule.
	Request string
}

// Verdict is what may be done with a volume now.
type Verdict string

const (
	// Compare: its cache may be compared.
	Compare Verdict = "Compare"
	// Wait: not now.
	Wait Verdict = "Wait"
	// NoCache: there is nothing to compare.
	NoCache Verdict = "NoCache"
	// Gone: the volume is not this node's any more.
	Gone Verdict = "Gone"
)

// Cache is the live cache of a volume.
type Cache struct {
	Verdict Verdict
	// Why says in words why it may not be compared.
	Why string
	// ID is another one for each cache that is made.
	ID string
	// Top is the name of the device, Meta, Data and Origin the paths of what is below it.
	Top, Meta, Data, Origin                  string
	ChunkSectors, DataSectors, OriginSectors uint64
	// Writethrough caches, which were in that mode since they were made, have nothing that the origin does
	// not have for good: what differs may be replaced.
	Writethrough bool
	// Discards is true if parts of the volume were discarded since it was attached, Raw of a volume that
	// refuses to discard anything.
	Discards, Raw bool
	// Dirty is true if the kernel calls blocks dirty.
	Dirty bool
}

// identity is what a cache has for as long as it is the same one, and used in the same way.
func (c Cache) identity() Cache {
	c.Verdict, c.Why, c.Discards, c.Dirty = "", "", false, false
	return c
}

// Host is the node whose volumes are scrubbed.
type Host interface {
	// Due returns the volumes that are to be scrubbed, the first ones first.
	Due(ctx context.Context) ([]Volume, error)
	// Look returns the volume's cache under its lock, which is given back in every case.
	Look(ctx context.Context, v Volume) (c Cache, unlock func(), err error)
	// Map reads what is in a cache that is in use. Errors: also of metadata that changed meanwhile.
	Map(ctx context.Context, v Volume, c Cache) (cachemap.Map, error)
	// FailOver has a volume go on without a cache in writethrough mode. The caller has its lock.
	FailOver(ctx context.Context, id volume.ID, cause string) error
	// Report tells of findings, and of the end.
	Report(ctx context.Context, v Volume, r volume.ScrubReport) error
}

// Use is what scrubs of a volume have done since the plugin started.
type Use struct {
	ID volume.ID
	// CheckedBytes were compared.
	CheckedBytes int64
	// Corrupted counts blocks of caches, Discarded and Unjudged pieces of them.
	Corrupted, Discarded, Unjudged int64
	// Suspensions is how often the volume was suspended, Suspended for how long in all, and
	// Longest the longest of them.
	Suspensions        int64
	Suspended, Longest time.Duration
}

// Keeper scrubs the volumes of a node, one after the other.
type Keeper struct {
	Host  Host
	Judge Judge
	Open  func(path string, flags int) (blockdev.File, error)
	// Rate bounds what is compared, in bytes per second; 0 is no limit.
	Rate int64
	// SuspendEvery is the least time between two suspensions of a volume; 0 is five seconds.
	SuspendEvery time.Duration
	Now          func() time.Time

	mu   sync.Mutex
	uses map[volume.ID]*Use
	runs map[volume.ID]*run
	// waits are when volumes are looked at again.
	waits map[Volume]time.Time
	due   []Volume
	// listed is when due was looked up.
	listed time.Time
}

// Run scrubs until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	passes.Paced(ctx, k.Step, func(err error) {
		klog.FromContext(ctx).Error(err, "Scrub of a cache is interrupted, it is tried again")
	})
}

// Uses returns what was done so far.
func (k *Keeper) Uses() []Use {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]Use, 0, len(k.uses))
	for _, u := range k.uses {
		out = append(out, *u)
	}
	return out
}

// count adds to what was done.
func (k *Keeper) count(id volume.ID, add func(*Use)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.uses == nil {
		k.uses = map[volume.ID]*Use{}
	}
	if k.uses[id] == nil {
		k.uses[id] = &Use{ID: id}
	}
	add(k.uses[id])
}

// Step takes one step of the scrub that is due, and returns the pause before the next. It is not for
// concurrent use.
func (k *Keeper) Step(ctx context.Context) (pause time.Duration, err error) {
	if now := k.Now(); now.Sub(k.listed) >= listEvery {
		due, err := k.Host.Due(ctx)
		if err != nil {
			return listEvery, err
		}
		k.due, k.listed = due, now
		k.forget()
	}
	for _, v := range k.due {
		if k.Now().Before(k.waits[v]) {
			continue
		}
		r := k.runs[v.ID]
		if r == nil || r.v != v {
			r = newRun(v, k.Now(), k.suspendEvery())
			k.runs[v.ID] = r
		}
		pause, err := k.step(ctx, r)
		if err != nil {
			k.waits[v] = k.Now().Add(waitAfter)
			return 0, fmt.Errorf("volume %s: %w", v.ID, err)
		}
		return pause, nil
	}
	return listEvery, nil
}

func (k *Keeper) suspendEvery() time.Duration {
	if k.SuspendEvery > 0 {
		return k.SuspendEvery
	}
	return suspendEvery
}

// forget lets go of what is not due any more.
func (k *Keeper) forget() {
	runs, waits := map[volume.ID]*run{}, map[Volume]time.Time{}
	for _, v := range k.due {
		if r := k.runs[v.ID]; r != nil {
			runs[v.ID] = r
		}
		if at, found := k.waits[v]; found {
			waits[v] = at
		}
	}
	k.runs, k.waits = runs, waits
}

// step takes one step of one volume, under its lock.
func (k *Keeper) step(ctx context.Context, r *run) (pause time.Duration, err error) {
	if r.reading != nil {
		select {
		case <-r.reading:
			r.reading = nil
		default:
			return 0, errSlow
		}
	}
	c, unlock, err := k.Host.Look(ctx, r.v)
	defer unlock()
	if err != nil {
		return 0, err
	}
	switch c.Verdict {
	case Compare:
	case Gone:
		k.waits[r.v] = k.Now().Add(waitAfter)
		delete(k.runs, r.v.ID)
		return 0, nil
	case NoCache:
		return 0, k.end(ctx, r)
	case Wait:
		klog.FromContext(ctx).V(2).Info("Scrub waits", "volume", r.v.ID, "reason", c.Why)
		k.waits[r.v] = k.Now().Add(waitAfter)
		return 0, nil
	}
	if id := c.identity(); r.cache == (Cache{}) {
		r.cache = id
	} else if r.cache != id {
		// Its blocks and places are those of another cache.
		klog.FromContext(ctx).Info("Scrub begins anew: the volume has another cache", "volume", r.v.ID)
		delete(k.runs, r.v.ID)
		k.waits[r.v] = k.Now().Add(k.suspendEvery())
		return 0, nil
	}
	switch decideStage(r, c.Dirty, k.Now()) {
	case stageWriteDown:
		r.written = true
		_, err := k.suspend(ctx, r, c, nil, false)
		return 0, err
	case stageMap:
		return 0, k.readMap(ctx, r, c)
	case stageCompare:
		return k.compare(ctx, r, c)
	case stageJudge:
		return 0, k.judge(ctx, r, c)
	case stageRenew:
		return 0, k.renew(ctx, r, c)
	case stageRest:
		return again, nil
	case stageDone:
	}
	return 0, k.end(ctx, r)
}

func (k *Keeper) readMap(ctx context.Context, r *run, c Cache) error {
	m, err := k.Host.Map(ctx, r.v, c)
	if err == nil {
		err = useful(m, c)
	}
	if err != nil {
		return fmt.Errorf("map of the cache: %w", err)
	}
	r.take(m)
	return nil
}

// compare compares a slice, and waits for it no longer than SSD and origin usually take.
func (k *Keeper) compare(ctx context.Context, r *run, c Cache) (time.Duration, error) {
	type outcome struct {
		n   int64
		err error
	}
	ended, reading := make(chan outcome, 1), make(chan struct{})
	before := r.found.CheckedBytes
	go func() {
		n, err := r.compare(ctx, k.Open, c, k.Now())
		ended <- outcome{n, err}
		close(reading)
	}()
	select {
	case o := <-ended:
		checked := r.found.CheckedBytes - before
		k.count(r.v.ID, func(u *Use) { u.CheckedBytes += checked })
		if o.err != nil || k.Rate == 0 {
			return 0, o.err
		}
		return time.Duration(float64(o.n) / float64(k.Rate) * float64(time.Second)), nil
	case <-time.After(readPatience):
		r.reading = reading
		return 0, errSlow
	}
}

// suspend has pieces judged.
func (k *Keeper) suspend(ctx context.Context, r *run, c Cache, batch []suspect, renew bool) (Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), judgePatience)
	defer cancel()
	r.suspendedAt = k.Now()
	r.suspensions++
	res, err := k.Judge.Judge(ctx, Order{
		ID: r.v.ID, Device: c.Top, Meta: c.Meta, Data: c.Data, Origin: c.Origin,
		BlockBytes: int64(c.ChunkSectors) * 512, Pieces: pieces(batch), Renew: renew, Discards: c.Discards, Raw: c.Raw,
	})
	if err != nil {
		return res, fmt.Errorf("suspension of the device: %w", err)
	}
	k.count(r.v.ID, func(u *Use) {
		u.Suspensions++
		u.Suspended += res.Suspended
		u.Longest = max(u.Longest, res.Suspended)
	})
	klog.FromContext(ctx).V(2).Info("Device was suspended for a moment", "volume", r.v.ID, "suspended", res.Suspended, "judgements", res.Judgements)
	faultJudged.Hit()
	return res, nil
}

// judge has suspects judged, and tells of what is confirmed.
func (k *Keeper) judge(ctx context.Context, r *run, c Cache) error {
	batch := r.suspects[:min(MostPieces, len(r.suspects))]
	res, err := k.suspend(ctx, r, c, batch, false)
	if err != nil {
		return err
	}
	r.suspects = append([]suspect{}, r.suspects[len(batch):]...)
	before, exhausted := r.found.Corrupted, r.next >= len(r.m.Entries)
	discarded := r.found.Discarded
	corrupted, dirty := r.judged(batch, res.Judgements, c)
	discarded = r.found.Discarded - discarded
	k.count(r.v.ID, func(u *Use) { u.Discarded += discarded })
	if len(corrupted) > 0 {
		r.suspensions = 0
		klog.FromContext(ctx).Error(nil, "SSD has lost what a cache wrote to it", "volume", r.v.ID, "offsets", where(corrupted))
		told := r.found
		told.Message = finding(c.Writethrough, where(corrupted))
		if err := k.Host.Report(ctx, r.v, told); err != nil {
			// Nothing is replaced that was not told of: it is found again.
			delete(k.runs, r.v.ID)
			return err
		}
		more := r.found.Corrupted - before
		k.count(r.v.ID, func(u *Use) { u.Corrupted += more })
		faultReported.Hit()
	}
	if dirty && !exhausted {
		return k.readMap(ctx, r, c)
	}
	return nil
}

// renew has what was told of replaced, in a cache in writethrough mode.
func (k *Keeper) renew(ctx context.Context, r *run, c Cache) error {
	batch := r.renew[:min(MostPieces, len(r.renew))]
	res, err := k.suspend(ctx, r, c, batch, true)
	if err != nil {
		return err
	}
	r.renew = append([]suspect{}, r.renew[len(batch):]...)
	discarded := r.found.Discarded
	kept := r.renewed(batch, res.Judgements)
	discarded = r.found.Discarded - discarded
	k.count(r.v.ID, func(u *Use) { u.Discarded += discarded })
	faultRenewed.Hit()
	if kept {
		return nil
	}
	// The end says so, too.
	const cause = "the SSD does not keep what is written to it"
	r.found.NotKept, r.found.Message = true, cause+": the volume goes on without its cache"
	err = errors.Join(k.Host.Report(ctx, r.v, r.found), k.Host.FailOver(ctx, r.v.ID, cause))
	if err != nil {
		delete(k.runs, r.v.ID) // it is found again
	}
	return err
}

// end reports the end of a scrub.
func (k *Keeper) end(ctx context.Context, r *run) error {
	told := r.found
	told.Done, told.Unjudged = true, told.Unjudged+int64(len(r.suspects))
	if err := k.Host.Report(ctx, r.v, told); err != nil {
		return err
	}
	k.count(r.v.ID, func(u *Use) { u.Unjudged += told.Unjudged })
	klog.FromContext(ctx).Info("Cache was scrubbed", "volume", r.v.ID, "checked", told.CheckedBytes, "corrupted", told.Corrupted, "discarded", told.Discarded,
		"unjudged", told.Unjudged, "suspensions", r.suspensions, "duration", k.Now().Sub(r.began))
	delete(k.runs, r.v.ID)
	k.waits[r.v] = k.Now().Add(waitAfter) // until the record shows it
	return nil
}
