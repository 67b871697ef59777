package dirtylimit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// listEvery is how often the volumes with a limit are looked up, and pollAbove how
	// often one is looked at that is not at [Writeback].
	listEvery, pollAbove = time.Second, 250 * time.Millisecond
	// retryAfter is the pause after a swap that failed. Until then the limit does not
	// hold, so that it is short.
	retryAfter = time.Second
	// swapTimeout bounds one swap, pollTimeout one look.
	swapTimeout, pollTimeout = 15 * time.Second, 5 * time.Second

	sectorSize = devmapper.SectorSize
)

// Volume is an attached volume with a limit.
type Volume struct {
	ID    volume.ID
	Fence volume.Fence
	// Bytes and Age are the limit; 0 is none.
	Bytes int64
	Age   time.Duration
	// Flushing tells that a flush which was asked for cleans the cache: it is left alone.
	Flushing bool
	// Recovered tells a cache of which each further table calls every block dirty.
	Recovered bool
}

// Host is the node whose volumes are kept within their limits.
type Host interface {
	// Limited returns the attached volumes in writeback mode with a limit.
	Limited(ctx context.Context) ([]Volume, error)
	// DirtySince is when a volume's cache was last seen without a dirty block; zero if
	// that is not known.
	DirtySince(ctx context.Context, id volume.ID) time.Time
	// SwapTo loads the table of a level. It does nothing, and says so, while a request
	// works on the volume, and if the volume is not attached in writeback mode under this
	// fence any more.
	SwapTo(ctx context.Context, v volume.ID, f volume.Fence, to Level) (done bool, err error)
}

// Devices are the caches of this node, as a part of [devmapper.Client].
type Devices interface {
	Info(ctx context.Context, prefix string) (map[string]devmapper.Info, error)
	StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error)
}

// Use is what the limit of a volume has done since the plugin started.
type Use struct {
	ID volume.ID
	// Bytes and Age are the limit; 0 is none.
	Bytes int64
	Age   time.Duration
	// Writethrough and Draining are the times at these levels, and Activations how often
	// that began.
	Writethrough, Draining time.Duration
	Activations            uint64
}

// Keeper keeps the volumes of a node within their limits.
type Keeper struct {
	Host    Host
	Devices Devices
	// Sysfs is where sysfs is mounted.
	Sysfs string
	Now   func() time.Time

	mu     sync.Mutex
	limits map[volume.ID]*limit
	listed time.Time
	// swaps are under way.
	swaps sync.WaitGroup
}

// limit is that of one volume. All of it is guarded by Keeper.mu, which is not held while a
// command runs.
type limit struct {
	fence volume.Fence
	seen  Use
	// devno is the top device's; empty while that is not known.
	devno string
	// level is what is live, since when it is.
	level Level
	since time.Time
	// counted is until when the time at the level has been counted.
	counted time.Time
	// dirty and written are of the last status, at looked; growth is from the one
	// before, if the same table was live. chunkSectors is 0 before the first.
	dirty, growth int64
	chunkSectors  uint64
	written       blockdev.Written
	looked        time.Time
	// clean is when nothing was dirty.
	clean time.Time
	// before is what had been written before the status that is being read.
	before blockdev.Written
	// next is when to look again. While swapping, this package swaps the table; flushing
	// is of [Volume].
	next               time.Time
	swapping, flushing bool
	// recovered is of [Volume].
	recovered bool
}

// idle reports whether nobody else is at the table.
func (l *limit) idle() bool { return !l.swapping && !l.flushing }

// Run keeps volumes within their limits (states.md, I7) until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	defer k.swaps.Wait()
	passes.Paced(ctx, k.pass, func(err error) { klog.FromContext(ctx).Error(err, "Dirty limits could not be watched") })
}

// Uses returns what the limits of the attached volumes have done.
func (k *Keeper) Uses() []Use {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []Use
	for _, l := range k.limits {
		out = append(out, l.seen)
	}
	return out
}

// pass looks at the volumes that are due, begins the swaps that are, and returns when the
// next look is due. One command serves all volumes, and none is run while the counts of
// their devices show that none can be near its limit.
func (k *Keeper) pass(ctx context.Context) (pause time.Duration, err error) {
	if k.Now().Sub(k.listed) >= listEvery {
		if err := k.list(ctx); err != nil {
			return listEvery, err
		}
		k.listed = k.Now()
	}
	if k.due() {
		lctx, cancel := context.WithTimeout(ctx, pollTimeout)
		defer cancel()
		status, err := k.Devices.StatusAll(lctx)
		if err != nil {
			return retryAfter, err
		}
		k.judge(ctx, status)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	pause = listEvery
	for _, l := range k.limits {
		pause = min(pause, l.next.Sub(k.Now()))
	}
	return max(pause, 10*time.Millisecond), nil
}

// list finds the volumes that have a limit.
func (k *Keeper) list(ctx context.Context) error {
	volumes, err := k.Host.Limited(ctx)
	if err != nil {
		return err
	}
	limits := map[volume.ID]*limit{}
	unknown := false
	for _, v := range volumes {
		l := k.known(ctx, v)
		if l.devno == "" || !k.isTop(l.devno, v.ID) {
			l.devno, unknown = "", true
		}
		limits[v.ID] = l
	}
	if unknown {
		infos, err := k.Devices.Info(ctx, layout.DevicePrefix)
		if err != nil {
			return err
		}
		for id, l := range limits {
			if info, found := infos[layout.Device(id, layout.Top)]; found {
				l.devno = info.DevNo()
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range volumes {
		l := limits[v.ID]
		l.seen.Bytes, l.seen.Age, l.flushing, l.recovered = v.Bytes, v.Age, v.Flushing, v.Recovered
	}
	k.limits = limits
	return nil
}

// known returns what is known of a volume, or the beginning of it.
func (k *Keeper) known(ctx context.Context, v Volume) *limit {
	k.mu.Lock()
	l := k.limits[v.ID]
	k.mu.Unlock()
	if l != nil && l.fence == v.Fence {
		return l
	}
	now := k.Now()
	l = &limit{fence: v.Fence, seen: Use{ID: v.ID}, clean: now, since: now, level: Writeback}
	// A plugin that starts does not know how long something has been dirty.
	if t := k.Host.DirtySince(ctx, v.ID); !t.IsZero() && t.Before(now) {
		l.clean = t
	}
	return l
}

// isTop reports whether a device number is still that of the volume's top device.
func (k *Keeper) isTop(devno string, id volume.ID) bool {
	name, err := os.ReadFile(filepath.Join(k.Sysfs, "dev/block", devno, "dm/name"))
	return err == nil && strings.TrimSpace(string(name)) == layout.Device(id, layout.Top)
}

// due reports whether the status of a volume is needed, and puts the others off.
func (k *Keeper) due() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, due := k.Now(), false
	for _, l := range k.limits {
		if !l.idle() {
			l.next, l.looked = now.Add(pollLeast), time.Time{}
			if l.flushing {
				l.counted = time.Time{}
			}
			continue
		}
		// Also of those that are not due: one status serves all, and what is written
		// after this is not in it.
		w, err := blockdev.WrittenTo(k.Sysfs, l.devno)
		l.before = w
		if now.Before(l.next) {
			continue
		}
		if l.devno == "" || err != nil || l.chunkSectors == 0 || l.level != Writeback {
			due = true
			continue
		}
		most := min(w.Chunks(l.written, l.chunkSectors), 1<<40)
		quiet := most == 0 && l.dirty == 0
		dirty := l.dirty + int64(min(most*l.chunkSectors*sectorSize, 1<<60))
		switch {
		case quiet:
			l.clean = now
		case l.seen.Bytes > 0 && dirty >= highMark(l.seen.Bytes), l.seen.Age > 0 && now.Sub(l.looked) >= pollMost:
			due = true
			continue
		}
		l.next = now.Add(pollAfter(l.seen.Bytes, dirty))
	}
	return due
}

// judge takes in what the kernel says of all caches, and begins the swaps that follow from
// it.
func (k *Keeper) judge(ctx context.Context, status map[string]devmapper.CacheStatus) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, l := range k.limits {
		if !l.idle() {
			continue
		}
		st, live := status[layout.Device(id, layout.Top)]
		if !live || st.Silent || st.Fail || st.Unparsed != "" {
			l.next = k.Now().Add(pollMost)
			continue
		}
		if st.CacheUsed == 0 && l.dirty > 0 {
			// Somebody swaps the table, and the kernel has not read the map again yet:
			// until then it says that nothing is dirty.
			l.next = k.Now().Add(pollLeast)
			continue
		}
		l.take(k.Now(), st)
		f := l.facts(k.Now())
		want := decide(f)
		if want == l.level {
			continue
		}
		l.swapping = true
		log := klog.FromContext(ctx).WithValues("volume", id, "level", want, "dirty", f.Dirty, "dirtyFor", f.DirtyFor, "growth", f.Growth, "limit", f.Bytes)
		ctx := klog.NewContext(ctx, log)
		k.swaps.Go(func() { k.swap(ctx, id, l, want) })
	}
}

// take takes in the status of the volume's cache.
func (l *limit) take(now time.Time, st devmapper.CacheStatus) {
	level := levelOf(st)
	l.count(now, level)
	dirty := int64(st.DirtyBytes())
	l.growth = 0
	if age := now.Sub(l.looked); !l.looked.IsZero() && age > 0 {
		l.growth = int64(float64(dirty-l.dirty) / age.Seconds())
	}
	if dirty == 0 {
		l.clean = now
	}
	l.dirty, l.looked, l.chunkSectors, l.written = dirty, now, st.ChunkSectors, l.before
	l.next = now.Add(pollAfter(l.seen.Bytes, dirty))
	if level != Writeback {
		l.next = now.Add(pollAbove)
	}
}

// count adds the time since the last look to what the level has taken.
func (l *limit) count(now time.Time, level Level) {
	if !l.counted.IsZero() {
		switch age := now.Sub(l.counted); l.level {
		case Writethrough:
			l.seen.Writethrough += age
		case Draining:
			l.seen.Draining += age
		case Writeback:
		}
	}
	l.counted = now
	if level == l.level {
		return
	}
	if l.level == Writeback {
		l.seen.Activations++
	}
	l.level, l.since = level, now
}

// levelOf reads the level off a cache that is to be in writeback mode.
func levelOf(st devmapper.CacheStatus) Level {
	switch {
	case st.Policy == devmapper.PolicyCleaner:
		return Draining
	case st.Mode() == devmapper.Writethrough:
		return Writethrough
	}
	return Writeback
}

func (l *limit) facts(now time.Time) facts {
	return facts{
		Bytes: l.seen.Bytes, Age: l.seen.Age, Level: l.level, Since: now.Sub(l.since),
		Dirty: l.dirty, Growth: l.growth, DirtyFor: now.Sub(l.clean), Recovered: l.recovered,
	}
}

// swap swaps the table of one volume, beside the looks at others.
func (k *Keeper) swap(ctx context.Context, id volume.ID, l *limit, want Level) {
	log := klog.FromContext(ctx)
	// A swap that was begun is ended, also by a plugin that ends.
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), swapTimeout)
	defer cancel()
	began := k.Now()
	done, err := k.Host.SwapTo(sctx, id, l.fence, want)
	now := k.Now()
	next := now.Add(pollLeast)
	switch {
	case err != nil:
		log.Error(err, "Dirty limit could not be kept, it is tried again")
		next = now.Add(retryAfter)
	case done:
		log.V(2).Info("Dirty limit", "duration", now.Sub(began))
	case want == Writeback:
		next = now.Add(listEvery) // a change flushes the cache; no limit waits for this
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if done && err == nil {
		l.count(now, want)
		l.looked = time.Time{}
	}
	l.next, l.swapping = next, false
}
