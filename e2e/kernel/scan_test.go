//go:build kernel

package kernel

import (
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// scanCache is the size of the cache, and scanHot of what is hot in it.
	scanCache, scanHot = 32 * mib, 28 * mib
	// The scan begins behind what is hot, and reads so many times the cache's size.
	scanFrom, scanTimes = scanCache, 8
	scanLength          = scanTimes * scanCache
	// scanSlice is read between two looks at what is hot, by scanReads reads.
	scanSlice, scanReads = 16 * mib, 400
	// scanAgain is a part of the scan that is read again and again in the end.
	scanAgain, scanAgainTimes = 8 * mib, 30
)

// TestKernelScan: what a scan that passes over a hot set costs, buffered as a filesystem's read-ahead
// makes it, and direct. The hot set stays in the cache, and hardly anything of the first pass comes in; a
// second one fills what is free. docs/benchmarks.md has the figures.
func TestKernelScan(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	spec := cached(volume.ModeWritethrough, scanCache)
	spec.WarmStart.From = volume.WarmOff
	d := m.volume(n, "scan", scanFrom+scanLength, spec)
	d.req.Block = true
	d.stage()
	for at := int64(0); at < d.size; at += scanSlice {
		write(t, d.device(), pattern(uint64(at), scanSlice), at, at+scanSlice == d.size)
	}
	d.unstage()
	for i, chunk := range []int64{64 << 10, 128 << 10, 256 << 10} {
		for j, direct := range []bool{false, true} {
			s := scanning{disk: d, t: t, chunk: chunk, direct: direct}
			s.name = fmt.Sprintf("%d KiB, %s", chunk>>10, map[bool]string{true: "direct", false: "buffered"}[direct])
			d.ask(func(r *volume.Volume) { r.Spec.ChunkBytes = chunk })
			d.publish(int64(2 + 2*i + j)) // of another generation: the cache is made anew
			d.stage()
			s.run()
			d.unstage()
		}
	}
	d.remove()
}

// scanning is one case.
type scanning struct {
	*disk
	t      *testing.T
	name   string
	chunk  int64
	direct bool
}

// run warms the cache up, and has two scans pass over it.
func (s *scanning) run() {
	t := s.t
	t.Helper()
	s.heat(scanHot)
	before := s.hitRate(2000, scanHot)
	promoted := uint64(0)
	for pass := range 2 {
		c := s.pass()
		after, lost := s.hitRate(2000, scanHot), s.lost()
		t.Logf("%s, pass %d: hit rate of the hot set %.3f before, %.3f during (%.3f at worst), %.3f after; of %d chunks of the scan %d promoted, %d hits of %d reads; %d demoted, %d of %d hot chunks are not cached",
			s.name, pass+1, before, c.rate, c.worst, after, scanLength/s.chunk, c.promoted, c.hits, c.hits+c.misses, c.demoted, lost, scanHot/s.chunk)
		promoted += c.promoted
		if pass > 0 {
			break // what is read a second time may be promoted
		}
		if after < 0.8*before || c.rate < 0.8*before || lost > uint64(scanHot/s.chunk/4) || c.promoted > uint64(scanLength/s.chunk/4) {
			t.Errorf("%s: a scan has taken the hot set's place", s.name)
		}
	}
	if promoted == 0 {
		t.Errorf("%s: nothing of a second pass is promoted either: this test proves nothing", s.name)
	}
	s.again()
}

// again reads a part of the scan again and again, into a cache that the second pass has filled.
func (s *scanning) again() {
	t, began := s.t, time.Now()
	t.Helper()
	before, _ := s.cache()
	first, last := 0.0, 0.0
	for i := range scanAgainTimes {
		was, _ := s.cache()
		s.read(scanFrom, scanAgain)
		is, _ := s.cache()
		if last = ratio(was.ReadHits, was.ReadMisses, is.ReadHits, is.ReadMisses); i == 0 {
			first = last
		}
	}
	after, _ := s.cache()
	t.Logf("%s: %d MiB of it read %d times in %s: hit rate %.3f first, %.3f last, %d promoted, %d demoted; %d of %d chunks are used",
		s.name, scanAgain>>20, scanAgainTimes, time.Since(began).Round(time.Second), first, last, after.Promotions-before.Promotions, after.Demotions-before.Demotions, after.CacheUsed, after.CacheTotal)
}

// passing is what a scan has done.
type passing struct {
	// rate is the hit rate of the hot set meanwhile, and worst the lowest between two slices.
	rate, worst float64
	// hits and misses are those of the scan.
	hits, misses, promoted, demoted uint64
}

// pass scans, and reads some of what is hot after each slice.
func (s *scanning) pass() passing {
	p, slices := passing{worst: 1}, 0
	began, _ := s.cache()
	for at := int64(scanFrom); at < scanFrom+scanLength; at += scanSlice {
		was, _ := s.cache()
		s.read(at, scanSlice)
		is, _ := s.cache()
		p.hits, p.misses = p.hits+is.ReadHits-was.ReadHits, p.misses+is.ReadMisses-was.ReadMisses
		rate := s.hitRate(scanReads, scanHot)
		p.rate, p.worst, slices = p.rate+rate, min(p.worst, rate), slices+1
	}
	ended, _ := s.cache()
	p.rate /= float64(slices)
	p.promoted, p.demoted = ended.Promotions-began.Promotions, ended.Demotions-began.Demotions
	return p
}

// read reads a part of the volume once, from one end to the other. What is read with the page cache
// was not in it.
func (s *scanning) read(at, length int64) {
	t, flags := s.t, 0
	t.Helper()
	if s.direct {
		flags = unix.O_DIRECT
	}
	f, err := os.OpenFile(s.device(), os.O_RDONLY|flags, 0)
	mustPass(t, "open", err)
	defer func() { _ = f.Close() }()
	mustPass(t, "forget", unix.Fadvise(int(f.Fd()), at, length, unix.FADV_DONTNEED))
	buf := aligned(mib)
	for end := at + length; at < end; at += mib {
		if _, err := io.ReadFull(io.NewSectionReader(f, at, mib), buf); err != nil {
			t.Fatalf("read: %v", err)
		}
	}
}

// lost is how many chunks of the hot set are not cached: of which a read misses.
func (s *scanning) lost() uint64 {
	t := s.t
	t.Helper()
	f := openDirect(t, s.device())
	defer func() { _ = f.Close() }()
	buf := aligned(4096)
	was, _ := s.cache()
	for at := int64(0); at < scanHot; at += s.chunk {
		_, err := f.ReadAt(buf, at)
		mustPass(t, "read", err)
	}
	is, _ := s.cache()
	return is.ReadMisses - was.ReadMisses
}
