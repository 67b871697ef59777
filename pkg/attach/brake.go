package attach

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
	// brakeList is how often the volumes with a bound are looked up, and brakeLook how
	// often one is looked at while it is braked.
	brakeList, brakeLook = time.Second, 250 * time.Millisecond
	// brakeRetry is the pause after a swap that failed. Until then the bound does not
	// hold, so that it is short.
	brakeRetry = time.Second
	// brakeTimeout bounds one swap, and one look.
	brakeTimeout, lookTimeout = 15 * time.Second, 5 * time.Second
)

// Braking is what the dirty limit of a volume has done since the plugin started.
type Braking struct {
	ID volume.ID
	// Bytes and Age are the bound; 0 is none.
	Bytes int64
	Age   time.Duration
	// Held is the time in writethrough mode under smq, Drained under the cleaner, and
	// Brakes how often that began.
	Held, Drained time.Duration
	Brakes        uint64
}

// brakes are the volumes with a dirty limit that are attached.
type brakes struct {
	mu     sync.Mutex
	m      map[volume.ID]*brake
	listed time.Time
	// swaps are under way.
	swaps sync.WaitGroup
}

// brake is one of them. All of it is guarded by brakes.mu, which is not held while a
// command runs.
type brake struct {
	fence volume.Fence
	seen  Braking
	// devno is the top device's; empty while that is not known.
	devno string
	// level is what is live, since when it is.
	level brakeLevel
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
	// next is when to look again. While swapping, somebody swaps the table; flushing is
	// of bound.
	next               time.Time
	swapping, flushing bool
}

// idle tells whether somebody else is at the table.
func (b *brake) idle() bool { return !b.swapping && !b.flushing }

// RunBrakes keeps volumes within their dirty limits (states.md, I7) until ctx ends.
func (a *Attacher) RunBrakes(ctx context.Context) {
	defer a.brakes.swaps.Wait()
	said := ""
	for {
		pause, err := a.lookAtBrakes(ctx)
		if passes.News(err, &said) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Dirty limits could not be watched")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Brakings returns what the bounds of the attached volumes have done.
func (a *Attacher) Brakings() []Braking {
	a.brakes.mu.Lock()
	defer a.brakes.mu.Unlock()
	var out []Braking
	for _, b := range a.brakes.m {
		out = append(out, b.seen)
	}
	return out
}

// lookAtBrakes looks at the volumes that are due, begins the swaps that are, and
// returns when the next look is due. One command serves all volumes, and none is run
// while the counts of their devices show that none can be near its bound.
func (a *Attacher) lookAtBrakes(ctx context.Context) (pause time.Duration, err error) {
	if a.Now().Sub(a.brakes.listed) >= brakeList {
		if err := a.listBrakes(ctx); err != nil {
			return brakeList, err
		}
		a.brakes.listed = a.Now()
	}
	if a.brakesDue() {
		lctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		status, err := a.DM.StatusAll(lctx)
		if err != nil {
			return brakeRetry, err
		}
		a.judgeBrakes(ctx, status)
	}
	a.brakes.mu.Lock()
	defer a.brakes.mu.Unlock()
	pause = brakeList
	for _, b := range a.brakes.m {
		pause = min(pause, b.next.Sub(a.Now()))
	}
	return max(pause, 10*time.Millisecond), nil
}

// listBrakes finds the volumes that have a bound to be kept.
func (a *Attacher) listBrakes(ctx context.Context) error {
	records, err := a.Owned.List(ctx)
	if err != nil {
		return err
	}
	bounded := map[volume.ID]*brake{}
	bounds := map[volume.ID]bound{}
	unknown := false
	for _, rec := range records {
		if rec.Spec.DirtyBound.IsZero() || rec.Spec.Mode != volume.ModeWriteback || !rec.Published {
			continue
		}
		e, err := a.load(rec.ID)
		if err != nil || !brakable(e, rec.Fence) {
			continue // the repair speaks of a journal that cannot be read
		}
		b := a.oldBrake(ctx, e)
		bounds[rec.ID] = bound{rec.Spec.DirtyBound.Bytes(e.DataBytes), rec.Spec.DirtyBound.Age, rec.FlushPending() && e.FlushDone != rec.FlushRequest}
		if b.devno == "" || !a.isTop(b.devno, rec.ID) {
			b.devno, unknown = "", true
		}
		bounded[rec.ID] = b
	}
	if unknown {
		infos, err := a.DM.Info(ctx, layout.DevicePrefix)
		if err != nil {
			return err
		}
		for id, b := range bounded {
			if info, found := infos[layout.Device(id, layout.Top)]; found {
				b.devno = info.DevNo()
			}
		}
	}
	a.brakes.mu.Lock()
	defer a.brakes.mu.Unlock()
	for id, b := range bounded {
		n := bounds[id]
		b.seen.Bytes, b.seen.Age, b.flushing = n.bytes, n.age, n.flushing
	}
	a.brakes.m = bounded
	return nil
}

// bound is what a record asks for. While flushing, a flush that was asked for cleans
// the cache, and the brake leaves it alone.
type bound struct {
	bytes    int64
	age      time.Duration
	flushing bool
}

// brakable tells an entry whose cache takes writes that the origin does not have.
func brakable(e *Entry, f volume.Fence) bool {
	return e != nil && e.State == StateStaged && e.Mode == volume.ModeWriteback && e.Fence == f
}

// oldBrake returns what is known of a volume, or the beginning of it.
func (a *Attacher) oldBrake(ctx context.Context, e *Entry) *brake {
	a.brakes.mu.Lock()
	b := a.brakes.m[e.ID]
	a.brakes.mu.Unlock()
	if b != nil && b.fence == e.Fence {
		return b
	}
	now := a.Now()
	b = &brake{fence: e.Fence, seen: Braking{ID: e.ID}, clean: now, since: now, level: brakeOpen}
	if a.Meter != nil {
		// A plugin that starts does not know how long something has been dirty.
		if t := a.Meter.DirtySince(ctx, e.ID); !t.IsZero() && t.Before(now) {
			b.clean = t
		}
	}
	return b
}

// isTop tells whether a device number is still that of the volume's top device.
func (a *Attacher) isTop(devno string, id volume.ID) bool {
	name, err := os.ReadFile(filepath.Join(a.Sysfs, "dev/block", devno, "dm/name"))
	return err == nil && strings.TrimSpace(string(name)) == layout.Device(id, layout.Top)
}

// brakesDue tells whether the status of a volume is needed, and puts the others off.
func (a *Attacher) brakesDue() bool {
	a.brakes.mu.Lock()
	defer a.brakes.mu.Unlock()
	now, due := a.Now(), false
	for _, b := range a.brakes.m {
		if !b.idle() {
			b.next, b.looked = now.Add(lookLeast), time.Time{}
			if b.flushing {
				b.counted = time.Time{}
			}
			continue
		}
		// Also of those that are not due: one status serves all, and what is written
		// after this is not in it.
		w, err := blockdev.WrittenTo(a.Sysfs, b.devno)
		b.before = w
		if now.Before(b.next) {
			continue
		}
		if b.devno == "" || err != nil || b.chunkSectors == 0 || b.level != brakeOpen {
			due = true
			continue
		}
		most := min(w.Chunks(b.written, b.chunkSectors), 1<<40)
		quiet := most == 0 && b.dirty == 0
		dirty := b.dirty + int64(min(most*b.chunkSectors*sectorSize, 1<<60))
		switch {
		case quiet:
			b.clean = now
		case b.seen.Bytes > 0 && dirty >= highMark(b.seen.Bytes), b.seen.Age > 0 && now.Sub(b.looked) >= lookMost:
			due = true
			continue
		}
		b.next = now.Add(lookAfter(b.seen.Bytes, dirty))
	}
	return due
}

// judgeBrakes takes in what the kernel says of all caches, and begins the swaps that
// follow from it.
func (a *Attacher) judgeBrakes(ctx context.Context, status map[string]devmapper.CacheStatus) {
	a.brakes.mu.Lock()
	defer a.brakes.mu.Unlock()
	for id, b := range a.brakes.m {
		if !b.idle() {
			continue
		}
		st, live := status[layout.Device(id, layout.Top)]
		if !live || st.Silent || st.Fail || st.Unparsed != "" {
			b.next = a.Now().Add(lookMost)
			continue
		}
		if st.CacheUsed == 0 && b.dirty > 0 {
			// Somebody swaps the table, and the kernel has not read the map again yet:
			// until then it says that nothing is dirty.
			b.next = a.Now().Add(lookLeast)
			continue
		}
		b.take(a.Now(), st)
		f := b.facts(a.Now())
		want := decideBrake(f)
		if want == b.level {
			continue
		}
		b.swapping = true
		log := klog.FromContext(ctx).WithValues("volume", id, "level", want, "dirty", f.Dirty, "dirtyFor", f.DirtyFor, "growth", f.Growth, "bound", f.Bytes)
		ctx := klog.NewContext(ctx, log)
		a.brakes.swaps.Go(func() { a.brake(ctx, id, b, want) })
	}
}

// take takes in the status of the volume's cache.
func (b *brake) take(now time.Time, st devmapper.CacheStatus) {
	level := levelOf(st)
	b.count(now, level)
	dirty := int64(st.DirtyBytes())
	b.growth = 0
	if age := now.Sub(b.looked); !b.looked.IsZero() && age > 0 {
		b.growth = int64(float64(dirty-b.dirty) / age.Seconds())
	}
	if dirty == 0 {
		b.clean = now
	}
	b.dirty, b.looked, b.chunkSectors, b.written = dirty, now, st.ChunkSectors, b.before
	b.next = now.Add(lookAfter(b.seen.Bytes, dirty))
	if level != brakeOpen {
		b.next = now.Add(brakeLook)
	}
}

// count adds the time since the last look to what the level has taken.
func (b *brake) count(now time.Time, level brakeLevel) {
	if !b.counted.IsZero() {
		switch age := now.Sub(b.counted); b.level {
		case brakeHold:
			b.seen.Held += age
		case brakeDrain:
			b.seen.Drained += age
		case brakeOpen:
		}
	}
	b.counted = now
	if level == b.level {
		return
	}
	if b.level == brakeOpen {
		b.seen.Brakes++
	}
	b.level, b.since = level, now
}

// levelOf reads the level off a cache that is to be in writeback mode.
func levelOf(st devmapper.CacheStatus) brakeLevel {
	switch {
	case st.Policy == devmapper.PolicyCleaner:
		return brakeDrain
	case st.Mode() == devmapper.Writethrough:
		return brakeHold
	}
	return brakeOpen
}

func (b *brake) facts(now time.Time) brakeFacts {
	return brakeFacts{
		Bytes: b.seen.Bytes, Age: b.seen.Age, Level: b.level, Since: now.Sub(b.since),
		Dirty: b.dirty, Growth: b.growth, DirtyFor: now.Sub(b.clean),
	}
}

// brake swaps the table of one volume, beside the looks at others.
func (a *Attacher) brake(ctx context.Context, id volume.ID, b *brake, want brakeLevel) {
	log := klog.FromContext(ctx)
	// A swap that was begun is ended, also by a plugin that ends.
	bctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), brakeTimeout)
	defer cancel()
	began := a.Now()
	done, err := a.swapBrake(bctx, id, b.fence, want)
	now := a.Now()
	next := now.Add(lookLeast)
	switch {
	case err != nil:
		log.Error(err, "Dirty limit could not be kept, it is tried again")
		next = now.Add(brakeRetry)
	case done:
		log.V(2).Info("Dirty limit", "duration", now.Sub(began))
	}
	a.brakes.mu.Lock()
	defer a.brakes.mu.Unlock()
	if done && err == nil {
		b.count(now, want)
		b.looked = time.Time{}
	}
	b.next, b.swapping = next, false
}

// swapBrake loads the table of a level. It does nothing while a request works on the
// volume, or when there is nothing to bound any more.
func (a *Attacher) swapBrake(ctx context.Context, id volume.ID, f volume.Fence, want brakeLevel) (done bool, err error) {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return false, nil
	}
	defer unlock()
	e, err := a.loadSettled(ctx, id)
	if err != nil || !brakable(e, f) {
		return false, err
	}
	switch want {
	case brakeHold:
		err = a.swapTo(ctx, e, devmapper.Writethrough, devmapper.PolicySMQ, a.quickCount)
	case brakeDrain:
		err = a.swapTo(ctx, e, devmapper.Writethrough, devmapper.PolicyCleaner, a.quickCount)
	case brakeOpen:
		err = a.restore(ctx, e)
	}
	faultBrakeSwapped.Hit()
	return err == nil, err
}
