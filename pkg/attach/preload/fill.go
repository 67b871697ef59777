package preload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/extents"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// roundLeast is the least time of a round. smq looks once in a second at what was read.
	roundLeast = 300 * time.Millisecond
	// roundChunks are the most chunks that a round reads of, leastChunks the fewest, whatever the bandwidth.
	roundChunks, leastChunks = 2048, 16
	// roundAhead is how many seconds' worth of the bandwidth a round reads of: few of it come in at once.
	roundAhead = 4
	// roundReads are the reads that are under way at once, readBytes is the length of one.
	roundReads, readBytes = 4, 4096
	// lookRounds is how many rounds go by between two looks at the map, and lookShare how much longer
	// they take than a look, which costs a processor.
	lookRounds, lookShare = 8, 10
	// failuresMost is how often in a row a look, or a round, may fail.
	failuresMost = 10
)

// source is what is read: an open device.
type source interface {
	io.ReaderAt
	io.Closer
}

// filling is one preload that goes on. What it needs of the world is in functions.
type filling struct {
	// raw is true if there is no filesystem; root is where it is mounted otherwise, and path what is
	// read of it.
	raw        bool
	root, path string
	// bandwidth bounds it, in bytes per second; 0 is no limit.
	bandwidth int64
	// patience is after how long without anything promoted it is given up.
	patience time.Duration

	open   func(ctx context.Context) (source, error)
	status func(ctx context.Context) (devmapper.CacheStatus, error)
	read   func(ctx context.Context) (cachemap.Map, error)
	now    func() time.Time
	pause  func(ctx context.Context, d time.Duration) error

	mu     sync.Mutex
	report volume.PreloadReport
}

// state is how far it is.
func (f *filling) state() volume.PreloadReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.report
}

func (f *filling) note(change func(*volume.PreloadReport)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.report)
}

// run reads until there is an end, or ctx ends; then there is none.
func (f *filling) run(ctx context.Context) {
	end, why := f.fill(ctx)
	if ctx.Err() != nil {
		return
	}
	f.note(func(r *volume.PreloadReport) { r.State, r.Message = end, why })
}

func (f *filling) fill(ctx context.Context) (volume.PreloadState, string) {
	st, err := f.status(ctx)
	if err != nil {
		return volume.PreloadFailed, err.Error()
	}
	if st.ChunkSectors == 0 || st.OriginSectors == 0 {
		return volume.PreloadFailed, "the kernel does not say what chunks the cache has"
	}
	l := newList(st.ChunkSectors*devmapper.SectorSize, st.OriginSectors*devmapper.SectorSize, st.CacheTotal)
	if err := f.list(ctx, l); err != nil {
		if errors.Is(err, extents.ErrNotFound) {
			return volume.PreloadFailed, fmt.Sprintf("path %s: there is no such directory or file in the volume (symbolic links and other filesystems are not followed)", f.path)
		}
		return volume.PreloadFailed, err.Error()
	}
	f.note(func(r *volume.PreloadReport) { r.TotalBytes = int64(uint64(len(l.chunks)) * l.chunk) })
	if len(l.chunks) == 0 {
		return volume.PreloadCompleted, "nothing is allocated there"
	}
	dev, err := f.open(ctx)
	if err != nil {
		return volume.PreloadFailed, err.Error()
	}
	defer func() { _ = dev.Close() }()
	return f.promote(ctx, dev, l)
}

// list fills l.
func (f *filling) list(ctx context.Context, l *list) error {
	if f.raw {
		return l.everything(ctx)
	}
	_, err := extents.Walk(ctx, f.root, f.path, l.add)
	return err
}

// promote reads what is missing until it is not.
func (f *filling) promote(ctx context.Context, dev source, l *list) (volume.PreloadState, string) {
	left, gained, from, failures := len(l.chunks)+1, f.now(), 0, 0
	for ctx.Err() == nil {
		began := f.now()
		st, err := f.status(ctx)
		var m cachemap.Map
		if err == nil {
			m, err = f.read(ctx)
		}
		if err != nil {
			if failures++; failures >= failuresMost {
				return volume.PreloadFailed, err.Error()
			}
			_ = f.pause(ctx, time.Second) // its end is seen above
			continue
		}
		missing := l.missing(m)
		f.note(func(r *volume.PreloadReport) { r.CachedBytes = int64(uint64(len(l.chunks)-len(missing)) * l.chunk) })
		switch {
		case len(missing) == 0:
			return l.whole()
		case len(missing) < left, st.Policy != devmapper.PolicySMQ: // the cleaner promotes nothing
			left, gained = min(left, len(missing)), f.now()
		case f.now().Sub(gained) >= f.patience:
			return volume.PreloadEnded, fmt.Sprintf("nothing more was promoted for %s: the cache is full of what is read more", f.patience)
		}
		window := missing
		if n := f.window(l.chunk); n < len(missing) {
			// Others get their turn before what does not come.
			from %= len(missing)
			window = append(append([]uint64{}, missing[from:min(from+n, len(missing))]...), missing[:max(0, from+n-len(missing))]...)
		}
		if err := f.rounds(ctx, dev, l, window, lookShare*f.now().Sub(began)); err != nil {
			if failures++; failures >= failuresMost {
				return volume.PreloadFailed, err.Error()
			}
			continue
		}
		failures = 0
		from += f.stuck(len(window), left)
	}
	return "", ""
}

// stuck is by how much the window moves on: not at all while it shrinks by itself.
func (f *filling) stuck(window, left int) int {
	if window >= left {
		return 0
	}
	return window / 2
}

// whole is the end of a list of which everything is cached.
func (l *list) whole() (volume.PreloadState, string) {
	if l.longer {
		return volume.PreloadEnded, "the cache has no room for more than that"
	}
	return volume.PreloadCompleted, "everything is cached"
}

// window is how many chunks a round reads of.
func (f *filling) window(chunk uint64) int {
	if f.bandwidth <= 0 {
		return roundChunks
	}
	return int(min(max(roundAhead*f.bandwidth/int64(chunk), leastChunks), roundChunks))
}

// rounds reads of each chunk, in some rounds that take at least so long.
func (f *filling) rounds(ctx context.Context, dev source, l *list, chunks []uint64, least time.Duration) error {
	began := f.now()
	for i := 0; i < lookRounds || f.now().Sub(began) < least; i++ {
		start := f.now()
		before, err := f.status(ctx)
		if err != nil {
			return err
		}
		if err := readEach(ctx, dev, l.chunk, chunks, i); err != nil {
			return err
		}
		if err := f.pause(ctx, roundLeast-f.now().Sub(start)); err != nil {
			return err
		}
		after, err := f.status(ctx)
		if err != nil {
			return err
		}
		if err := f.pause(ctx, f.rest(before, after, f.now().Sub(start))); err != nil {
			return err
		}
	}
	return nil
}

// rest is how long nothing is read after what a round has brought in.
func (f *filling) rest(before, after devmapper.CacheStatus, took time.Duration) time.Duration {
	if f.bandwidth <= 0 || after.Promotions <= before.Promotions { // fewer: of another table
		return 0
	}
	bytes := float64(after.Promotions-before.Promotions) * float64(after.ChunkSectors*devmapper.SectorSize)
	return time.Duration(bytes/float64(f.bandwidth)*float64(time.Second)) - took
}

// readEach reads a block of each chunk, another one in each round.
func readEach(ctx context.Context, dev source, chunk uint64, chunks []uint64, round int) error {
	g, gctx := errgroup.WithContext(ctx)
	within := int64(round) * readBytes % int64(chunk)
	for w := range min(roundReads, len(chunks)) {
		g.Go(func() error {
			buf := blockdev.AlignedBuffer(readBytes)
			for i := w; i < len(chunks) && gctx.Err() == nil; i += roundReads {
				if _, err := dev.ReadAt(buf, int64(chunks[i]*chunk)+within); err != nil {
					return fmt.Errorf("read: %w", err)
				}
			}
			return nil
		})
	}
	return cmp.Or(g.Wait(), ctx.Err())
}
