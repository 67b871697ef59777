package scratch

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"io/fs"
	"math/bits"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

const (
	// fillBlock and fillDepth are how a scratch volume is written first.
	fillBlock, fillDepth = 1 << 20, 8
	// precision is how many bits of a duration are counted, from the highest on.
	precision = 7
)

// Open opens a scratch volume past the page cache, and returns it if it is the one that was lent: once it is
// open it is not removed, and its number not given to another. Nothing is written before. Errors: ErrOther.
func Open(d Device, sysfs fs.FS) (blockdev.File, error) {
	f, err := blockdev.Open(d.Path, unix.O_RDWR|unix.O_DIRECT)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("stat %s: %w", d.Path, err)
	}
	if err := check(d, st.Rdev, sysfs); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// check compares the device mapper's UUID of what is open with the one that was lent.
func check(d Device, rdev uint64, sysfs fs.FS) error {
	name := filepath.Join("dev/block", fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)), "dm/uuid")
	text, err := fs.ReadFile(sysfs, name)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrOther, d.Path, err)
	}
	if uuid := strings.TrimSpace(string(text)); d.UUID == "" || uuid != d.UUID {
		return fmt.Errorf("%w: %s has the UUID %q, and not %q", ErrOther, d.Path, uuid, d.UUID)
	}
	return nil
}

// Measure writes a device once and carries a task out on it.
func Measure(ctx context.Context, f blockdev.File, size int64, t Task, stat func() string) ([]Run, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if err := fill(ctx, f, size); err != nil {
		return nil, fmt.Errorf("write the scratch volume once: %w", err)
	}
	var runs []Run
	for _, depth := range t.Depths {
		before := stat()
		r, err := (&load{f: f, size: size, task: t}).run(ctx, depth)
		if err != nil {
			return nil, err
		}
		r.CPU = [2]string{before, stat()}
		runs = append(runs, r)
	}
	return runs, nil
}

// fill writes all of a device with what cannot be compressed.
func fill(ctx context.Context, f blockdev.File, size int64) error {
	var next atomic.Int64
	group, working := errgroup.WithContext(ctx)
	for range fillDepth {
		group.Go(func() error {
			buf, err := noise(fillBlock)
			for err == nil {
				at := (next.Add(1) - 1) * fillBlock
				if at >= size {
					return nil
				}
				if err = working.Err(); err == nil {
					_, err = f.WriteAt(buf[:min(fillBlock, size-at)], at)
				}
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return f.Sync()
}

// noise returns a buffer of it.
func noise(n int) ([]byte, error) {
	buf := blockdev.AlignedBuffer(n)
	_, err := crand.Read(buf)
	return buf, err
}

// load is a run under way.
type load struct {
	f    blockdev.File
	size int64
	task Task

	// next is the block of the next request in order, and writes how many writes there were.
	next, writes atomic.Int64
	mu           sync.Mutex
	out          Run
}

// run keeps so many requests under way until the time is over. Each is a thread that waits in the kernel.
func (l *load) run(ctx context.Context, depth int) (Run, error) {
	if l.size < int64(l.task.BlockBytes) {
		return Run{}, fmt.Errorf("%w: requests of %d bytes on %d bytes", ErrTask, l.task.BlockBytes, l.size)
	}
	l.out = Run{Depth: depth, Reads: Counts{}, Writes: Counts{}, Syncs: Counts{}}
	group, working := errgroup.WithContext(ctx)
	began := time.Now()
	for range depth {
		group.Go(func() error { return l.work(working, began.Add(l.task.Time)) })
	}
	if err := group.Wait(); err != nil {
		return Run{}, err
	}
	l.out.Seconds = time.Since(began).Seconds()
	return l.out, nil
}

// work makes one request after the other.
func (l *load) work(ctx context.Context, end time.Time) error {
	buf, err := noise(l.task.BlockBytes)
	if err != nil {
		return err
	}
	own := Run{Reads: Counts{}, Writes: Counts{}, Syncs: Counts{}}
	defer func() { l.add(own) }()
	blocks := l.size / int64(len(buf))
	for ctx.Err() == nil {
		began := time.Now()
		if !began.Before(end) {
			return nil
		}
		at := (l.next.Add(1) - 1) % blocks
		if l.task.Random {
			at = rand.Int64N(blocks)
		}
		reads := rand.IntN(100) < l.task.ReadPercent
		into := own.Writes
		if reads {
			into = own.Reads
			_, err = l.f.ReadAt(buf, at*int64(len(buf)))
		} else {
			_, err = l.f.WriteAt(buf, at*int64(len(buf)))
		}
		if err != nil {
			return err
		}
		into[bin(time.Since(began))]++
		own.Bytes += uint64(len(buf))
		if !reads {
			if err := l.flushed(own.Syncs); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// flushed follows a write with a flush if one is due.
func (l *load) flushed(into Counts) error {
	n := l.writes.Add(1)
	if l.task.SyncEvery == 0 || n%int64(l.task.SyncEvery) != 0 {
		return nil
	}
	began := time.Now()
	if err := l.f.Sync(); err != nil {
		return err
	}
	into[bin(time.Since(began))]++
	return nil
}

// add adds what a worker has counted.
func (l *load) add(own Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out.Bytes += own.Bytes
	for _, c := range []struct{ to, from Counts }{{l.out.Reads, own.Reads}, {l.out.Writes, own.Writes}, {l.out.Syncs, own.Syncs}} {
		for ns, n := range c.from {
			c.to[ns] += n
		}
	}
}

// bin is the middle of the range that a duration is counted in.
func bin(d time.Duration) int64 {
	ns := max(0, d.Nanoseconds())
	shift := max(0, bits.Len64(uint64(ns))-precision)
	if shift == 0 {
		return ns
	}
	return ns>>shift<<shift + 1<<(shift-1)
}
