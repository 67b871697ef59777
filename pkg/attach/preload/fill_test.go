package preload

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/extents"
	"github.com/nearflash/nearflash/pkg/volume"
)

const testChunk = 128 << 10

// TestList: chunks are listed once, in the order of the extents, within the volume and the cache.
func TestList(t *testing.T) {
	l := newList(testChunk, 10*testChunk+4096, 6)
	for _, x := range []extents.Extent{
		{Start: 3*testChunk + 4096, Length: 4096}, {}, {Start: 3 * testChunk, Length: testChunk}, {Start: testChunk - 1, Length: 2},
		{Start: 9 * testChunk, Length: 2 * testChunk}, {Start: 20 * testChunk, Length: testChunk},
	} {
		if err := l.add(x); err != nil {
			t.Fatal(err)
		}
	}
	if want := []uint64{3, 0, 1, 9}; !slices.Equal(l.chunks, want) || l.longer {
		t.Errorf("%v, want %v", l.chunks, want)
	}
	if err := l.add(extents.Extent{Start: 4 * testChunk, Length: 3 * testChunk}); !errors.Is(err, extents.ErrStop) || len(l.chunks) != 6 || !l.longer {
		t.Errorf("more than the cache has room for: %v, %v", l.chunks, err)
	}
	m := cachemap.Map{Entries: []cachemap.Entry{{Cache: 0, Origin: 9}, {Cache: 1, Origin: 3}, {Cache: 2, Origin: 1 << 40}}}
	if got, want := l.missing(m), []uint64{0, 1, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("missing %v, want %v", got, want)
	}
}

// kernel is a cache that takes a chunk in when it was read in so many rounds, as far as it has room.
type kernel struct {
	mu          sync.Mutex
	clock       time.Time
	after, room int
	reads       map[uint64]int
	cached      []uint64
	policy      devmapper.CachePolicy
	failReads   int
	failMaps    int
	reading     int
}

func (k *kernel) ReadAt(b []byte, at int64) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failReads != 0 {
		k.failReads--
		return 0, errors.New("input/output error")
	}
	chunk := uint64(at) / testChunk
	k.reads[chunk]++
	if k.reads[chunk] == k.after && len(k.cached) < k.room && k.policy == devmapper.PolicySMQ {
		k.cached = append(k.cached, chunk)
	}
	return len(b), nil
}

func (k *kernel) Close() error { k.reading--; return nil }

func (k *kernel) now() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.clock
}

func (k *kernel) pause(ctx context.Context, d time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clock = k.clock.Add(max(d, 0))
	return ctx.Err()
}

// filling is one of a raw block volume of so many chunks.
func (k *kernel) filling(chunks uint64) *filling {
	return &filling{
		raw: true, patience: time.Minute, now: k.now, pause: k.pause,
		open: func(context.Context) (source, error) { k.reading++; return k, nil },
		status: func(context.Context) (devmapper.CacheStatus, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			return devmapper.CacheStatus{
				ChunkSectors: testChunk / devmapper.SectorSize, OriginSectors: chunks * testChunk / devmapper.SectorSize, CacheTotal: 1 << 20,
				Policy: k.policy, Promotions: uint64(len(k.cached)),
			}, nil
		},
		read: func(context.Context) (cachemap.Map, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.failMaps > 0 {
				k.failMaps--
				return cachemap.Map{}, errors.New("torn")
			}
			var m cachemap.Map
			for i, c := range k.cached {
				m.Entries = append(m.Entries, cachemap.Entry{Cache: uint64(i), Origin: c})
			}
			return m, nil
		},
	}
}

func newKernel(after, room int) *kernel {
	return &kernel{clock: time.Unix(1e9, 0), after: after, room: room, reads: map[uint64]int{}, policy: devmapper.PolicySMQ}
}

// TestFill: reading goes on until all is cached, or nothing more comes in, and ends with what cannot be.
func TestFill(t *testing.T) {
	for name, c := range map[string]struct {
		k      *kernel
		chunks uint64
		change func(*kernel)
		want   volume.PreloadState
		why    string
		cached int64
	}{
		"all":                      {k: newKernel(9, 1<<20), chunks: 5000, want: volume.PreloadCompleted, why: "everything", cached: 5000},
		"all are there":            {k: newKernel(9, 1<<20), chunks: 3, change: func(k *kernel) { k.cached = []uint64{0, 1, 2} }, want: volume.PreloadCompleted, why: "everything", cached: 3},
		"a full cache":             {k: newKernel(9, 10), chunks: 100, want: volume.PreloadEnded, why: "full", cached: 10},
		"nothing":                  {k: newKernel(9, 10), chunks: 0, want: volume.PreloadFailed, why: "chunks"},
		"maps that are torn":       {k: newKernel(2, 1<<20), chunks: 10, change: func(k *kernel) { k.failMaps = failuresMost - 1 }, want: volume.PreloadCompleted, why: "everything", cached: 10},
		"a map that is not read":   {k: newKernel(2, 1<<20), chunks: 10, change: func(k *kernel) { k.failMaps = failuresMost }, want: volume.PreloadFailed, why: "torn"},
		"reads that fail at first": {k: newKernel(2, 1<<20), chunks: 10, change: func(k *kernel) { k.failReads = 2 }, want: volume.PreloadCompleted, why: "everything", cached: 10},
		"reads that fail":          {k: newKernel(2, 1<<20), chunks: 10, change: func(k *kernel) { k.failReads = -1 }, want: volume.PreloadFailed, why: "input/output"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.k)
			}
			f := c.k.filling(c.chunks)
			f.run(t.Context())
			got := f.state()
			if got.State != c.want || !strings.Contains(got.Message, c.why) || got.CachedBytes != c.cached*testChunk {
				t.Errorf("%+v, want %s (%s), %d chunks", got, c.want, c.why, c.cached)
			}
			if c.k.reading != 0 {
				t.Error("the device is still open")
			}
		})
	}
}

// TestFillStops: what is stopped has no end, and nothing open.
func TestFillStops(t *testing.T) {
	k := newKernel(1<<30, 1)
	f := k.filling(10)
	ctx, cancel := context.WithCancel(t.Context())
	rounds := 0
	f.pause = func(ctx context.Context, d time.Duration) error {
		if rounds++; rounds == 20 {
			cancel()
		}
		return k.pause(ctx, d)
	}
	f.report.State = volume.PreloadRunning
	f.run(ctx)
	if got := f.state(); got.Over() || k.reading != 0 {
		t.Errorf("%+v, %d open", got, k.reading)
	}
}

// TestFillRate: no more comes in than the bandwidth allows, but for the last second of it.
func TestFillRate(t *testing.T) {
	for _, c := range []struct {
		bandwidth int64
		after     int
	}{{1 << 20, 1}, {1 << 20, 9}, {100 << 20, 1}, {0, 1}} {
		k := newKernel(c.after, 1<<20)
		f := k.filling(4000)
		f.bandwidth = c.bandwidth
		began := k.now()
		f.run(t.Context())
		took, bytes := k.now().Sub(began), float64(4000*testChunk)
		least := time.Duration(0)
		if c.bandwidth > 0 {
			least = time.Duration((bytes - float64(max(c.bandwidth, leastChunks*testChunk))) / float64(c.bandwidth) * float64(time.Second))
		}
		if got := f.state(); got.State != volume.PreloadCompleted || took < least || c.bandwidth == 0 && took > 5*time.Minute {
			t.Errorf("%d bytes a second, after %d reads: %+v in %s, want at least %s", c.bandwidth, c.after, got, took, least)
		}
	}
}

// TestFillCleaner: while the cache is flushed nothing comes in, and that is no end.
func TestFillCleaner(t *testing.T) {
	k := newKernel(30, 1<<20)
	f := k.filling(10)
	k.policy = devmapper.PolicyCleaner
	began := k.now()
	f.pause = func(ctx context.Context, d time.Duration) error {
		if k.now().Sub(began) > 5*f.patience && k.policy != devmapper.PolicySMQ {
			k.mu.Lock()
			k.policy, k.reads = devmapper.PolicySMQ, map[uint64]int{}
			k.mu.Unlock()
		}
		return k.pause(ctx, d)
	}
	f.run(t.Context())
	if got := f.state(); got.State != volume.PreloadCompleted {
		t.Errorf("%+v", got)
	}
}
