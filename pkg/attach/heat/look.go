package heat

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// lookEvery is the time between two looks: what is read again sooner is not seen to be so when it
	// is read for the first time. saveEvery is how much of what was seen a plugin that ends may lose.
	lookEvery, saveEvery = 5 * time.Minute, time.Hour
	// plainChunk are the sectors of the chunks that a small cache would have (128 KiB), for volumes
	// that have none.
	plainChunk  = 256
	reuseSuffix = ".reuse"
)

// Host is the node whose volumes are looked at.
type Host interface {
	Entries() ([]state.Entry, error)
	// Entry is the entry of one volume, nil if there is none.
	Entry(id volume.ID) (*state.Entry, error)
	// TryLock takes a volume's lock, unless somebody works on it.
	TryLock(id volume.ID) (unlock func(), ok bool)
}

// looks are what is known of the reuse of attached volumes (states.md, Heat).
type looks struct {
	mu sync.Mutex
	of map[volume.ID]*looked
	// sizes are of reads, and not yet of what is known.
	sizes sizes
	work  passes.Workers
}

// looked is what is known of one. The volume's lock guards all but the last two, which are guarded by
// that of looks.
type looked struct {
	volume *reuse.Volume
	// last is what the kernel had counted at the last look, nil before the first one.
	last *devmapper.Reads
	// flushes were counted at the last look, if flushing.
	flushes  uint64
	flushing bool
	// saved is when the file was written, or read.
	saved time.Time
	// at is the last look, and summary what was known then.
	at      time.Time
	summary reuse.Summary
}

// Pass looks at the attached volumes that are due, and lets go of those that have left.
func (k *Keeper) Pass(ctx context.Context) {
	if k.Dir == "" || k.Host == nil {
		return
	}
	entries, err := k.Host.Entries() // Repair has said what cannot be read
	var due []volume.ID
	attached := map[volume.ID]bool{}
	for i := range entries {
		e := &entries[i]
		if e.State != state.Staged {
			continue
		}
		attached[e.ID] = true
		if k.Now().Sub(k.lookedAt(e.ID)) >= k.every() {
			due = append(due, e.ID)
		}
	}
	// What went wrong is logged by the volume.
	_ = k.work.Each(ctx, passes.Slow, passes.Patience, due, k.lookAt)
	if err == nil {
		k.leave(ctx, attached)
	}
}

func (k *Keeper) every() time.Duration {
	if k.Every > 0 {
		return k.Every
	}
	return lookEvery
}

func (k *Keeper) lookAt(ctx context.Context, id volume.ID) error {
	unlock, ok := k.Host.TryLock(id)
	if !ok {
		return nil
	}
	defer unlock()
	e, err := k.Host.Entry(id)
	if err != nil || e == nil || e.State != state.Staged {
		return err
	}
	k.Look(ctx, e)
	return nil
}

// Look adds what was read since the last look to what is known of the volume's reuse. The kernel goes
// on counting.
func (k *Keeper) Look(ctx context.Context, e *state.Entry) {
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	r, err := k.Devices.ReadAreas(ctx, layout.Device(e.ID, layout.Top))
	if errors.Is(err, devmapper.ErrNotExist) {
		return // Begin has said why, or the device is gone
	}
	k.failure(ctx, e.ID, err)
	if err == nil {
		k.look(ctx, e, r)
	}
}

// look takes the kernel's counts in. The first ones of a process are what was read before it.
func (k *Keeper) look(ctx context.Context, e *state.Entry, r devmapper.Reads) {
	if len(r.Counts) == 0 || len(r.Counts) > reuse.MaxAreas {
		return
	}
	l, now := k.known(e.ID), k.Now()
	if l == nil {
		l = &looked{volume: k.load(ctx, e.ID), saved: now}
	}
	flushes, flushing := k.flushes(ctx, e)
	sizes := k.takeSizes(e.ID)
	if l.last == nil {
		l.volume.Baseline(now, counts(e, r))
	} else {
		c := counts(e, since(*l.last, r))
		c.FlushesKnown, c.Sizes = l.flushing && flushing, sizes
		if c.Flushes = flushes; flushes >= l.flushes {
			c.Flushes -= l.flushes // else of a disk that was made anew
		}
		l.volume.Look(now, c)
	}
	l.flushes, l.flushing = flushes, flushing
	l.last = &r
	if now.Sub(l.saved) >= saveEvery {
		k.save(ctx, e.ID, l)
	}
	summary := l.volume.Summary()
	k.mu.Lock()
	defer k.mu.Unlock()
	l.at, l.summary = now, summary
	if k.of == nil {
		k.of = map[volume.ID]*looked{}
	}
	k.of[e.ID] = l
}

func (k *Keeper) flushes(ctx context.Context, e *state.Entry) (n uint64, known bool) {
	if k.Flushes == nil {
		return 0, false
	}
	return k.Flushes(ctx, e)
}

// since is what was counted more. Less is of a region that has begun anew.
func since(last, now devmapper.Reads) devmapper.Reads {
	anew := last.AreaSectors != now.AreaSectors || len(last.Counts) != len(now.Counts) ||
		now.ReadSectors < last.ReadSectors || now.Writes < last.Writes || now.WriteSectors < last.WriteSectors
	out := now
	out.Counts = slices.Clone(now.Counts)
	for i := 0; i < len(out.Counts) && !anew; i++ {
		anew = now.Counts[i] < last.Counts[i]
		out.Counts[i] -= last.Counts[i]
	}
	if anew {
		return now
	}
	out.ReadSectors -= last.ReadSectors
	out.Writes -= last.Writes
	out.WriteSectors -= last.WriteSectors
	return out
}

func counts(e *state.Entry, r devmapper.Reads) reuse.Counts {
	return reuse.Counts{
		AreaSectors: r.AreaSectors, ChunkSectors: chunkSectors(e), Reads: r.Counts, ReadSectors: r.ReadSectors, Writes: r.Writes, WriteSectors: r.WriteSectors,
	}
}

func chunkSectors(e *state.Entry) uint64 {
	if e.ChunkSectors == 0 {
		return plainChunk
	}
	return e.ChunkSectors
}

// cleared notes that the kernel has begun to count at zero.
func (k *Keeper) cleared(id volume.ID) {
	if l := k.known(id); l != nil {
		l.last = &devmapper.Reads{AreaSectors: l.last.AreaSectors, Counts: make([]uint64, len(l.last.Counts))}
	}
}

// Reuse returns what is known of an attached volume as of the last look; found is false if nobody has
// looked yet.
func (k *Keeper) Reuse(id volume.ID) (s reuse.Summary, found bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.of[id]
	if l == nil {
		return reuse.Summary{}, false
	}
	return l.summary, true
}

func (k *Keeper) known(id volume.ID) *looked {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of[id]
}

// lookedAt is the last look, zero if there was none.
func (k *Keeper) lookedAt(id volume.ID) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.of[id]; l != nil {
		return l.at
	}
	return time.Time{}
}

func (k *Keeper) forget(id volume.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.of, id)
	delete(k.sizes, id)
}

// leave saves what is known of volumes that are attached no more, and lets go of it.
func (k *Keeper) leave(ctx context.Context, attached map[volume.ID]bool) {
	k.mu.Lock()
	var gone []volume.ID
	for id := range k.of {
		if !attached[id] {
			gone = append(gone, id)
		}
	}
	k.mu.Unlock()
	for _, id := range gone {
		unlock, ok := k.Host.TryLock(id)
		if !ok {
			continue
		}
		// Under its lock it is attached again, or forgotten, or neither.
		if e, err := k.Host.Entry(id); err == nil && e != nil && e.State != state.Staged {
			if l := k.known(id); l != nil {
				k.save(ctx, id, l)
				k.forget(id)
			}
		}
		unlock()
	}
}

func (k *Keeper) reuseFile(id volume.ID) string { return filepath.Join(k.Dir, string(id)+reuseSuffix) }

// load returns what was saved, or nothing.
func (k *Keeper) load(ctx context.Context, id volume.ID) *reuse.Volume {
	b, err := readBounded(k.reuseFile(id), int64(reuse.MaxBytes))
	if errors.Is(err, os.ErrNotExist) {
		return &reuse.Volume{}
	}
	var v *reuse.Volume
	if err == nil {
		v, err = reuse.Decode(b)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "What was known of the volume's reuse cannot be read, and begins anew", "volume", id)
		return &reuse.Volume{}
	}
	return v
}

func (k *Keeper) save(ctx context.Context, id volume.ID, l *looked) {
	l.saved = k.Now()
	if err := durable.WriteFile(k.reuseFile(id), l.volume.Encode()); err != nil {
		klog.FromContext(ctx).Error(err, "What is known of the volume's reuse cannot be saved", "volume", id)
	}
}
