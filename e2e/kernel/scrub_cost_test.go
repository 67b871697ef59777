//go:build kernel

package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelScrubPause: how long a suspension is, which grows with the number of chunks, since the
// kernel writes down what it knows of each. What larger disks (DISK) have room for is measured too, up to
// as many chunks as a cache may have.
func TestKernelScrubPause(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	room := n.pool.View().FreeBytes * 3 / 4 / smallestChunk
	for _, chunks := range []int64{2048, 16 << 10, 128 << 10, devmapper.MaxCacheBlocks} {
		if chunks > room {
			break
		}
		spec := cached(volume.ModeWritethrough, chunks*smallestChunk)
		spec.ChunkBytes = smallestChunk
		d := m.volume(n, fmt.Sprintf("pause-%d", chunks), chunks*smallestChunk, spec)
		d.req.Block = true
		d.stage()
		d.wantReport("CacheActive")
		mustPass(t, "device", d.n.DM.Await(t.Context(), layout.Device(d.req.ID, layout.Top)))
		o := scrub.Order{ID: d.req.ID, Device: layout.Device(d.req.ID, layout.Top), Meta: d.below("meta"), Data: d.below("data"), Origin: d.originDevice(), BlockBytes: smallestChunk, Pieces: []scrub.Piece{{Length: 4096}}}
		l := startLoad(t, d.device(), 4*mib)
		l.moving()
		l.longest.Store(0)
		l.moving()
		alone := time.Duration(l.longest.Swap(0))
		var longest, all time.Duration
		const times = 5
		for range times {
			var r scrub.Result
			var err error
			for tries := 0; tries == 0 || err != nil && tries < 10; tries++ { // the guard gives up on a busy machine
				l.fast.Store(loadBurst)
				r, err = n.Judge.Judge(t.Context(), o)
			}
			mustPass(t, "suspension", err)
			longest, all = max(longest, r.Suspended), all+r.Suspended
		}
		l.moving()
		t.Logf("%d chunks: suspended for %s on average, %s at most; the longest access of the pod took %s, %s without", chunks, all/times, longest, time.Duration(l.longest.Load()), alone)
		if all == 0 {
			t.Errorf("%d chunks: nothing was suspended", chunks)
		}
		l.end()
		d.unstage()
		d.remove()
		mustPass(t, "repair", n.Repair(t.Context()))
	}
}

// TestKernelScrubRate: a scrub within the chart's rate leaves a pod most of what it had, in the same run.
func TestKernelScrubRate(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	n.Scrub.Rate = 16 * mib
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		t.Run(string(mode), func(t *testing.T) {
			m.t = t
			d, _ := m.hot(n, "rate-"+string(mode), mode)
			l := startLoad(t, d.device(), scrubbedBytes)
			l.moving()
			during := func(what func()) (perSecond float64, longest time.Duration) {
				l.longest.Store(0)
				l.fast.Store(1 << 30)
				before, began := l.rounds.Load(), time.Now()
				what()
				perSecond = float64(l.rounds.Load()-before) / time.Since(began).Seconds()
				l.fast.Store(0)
				return perSecond, time.Duration(l.longest.Load())
			}
			alone, longestAlone := during(func() { time.Sleep(6 * time.Second) })
			scrubbed, longest := during(func() {
				for i := range 4 {
					d.scrubs(fmt.Sprintf("%s-%d", mode, i))
				}
			})
			again, _ := during(func() { time.Sleep(6 * time.Second) })
			use := n.scrubUse(d.req.ID)
			t.Logf("%s: %.0f accesses a second without a scrub, %.0f with one, %.0f after it; the longest access took %s, %s without; %d MiB compared, %d suspensions, longest %s",
				mode, alone, scrubbed, again, longest, longestAlone, use.CheckedBytes>>20, use.Suspensions, use.Longest)
			if scrubbed < min(alone, again)/5 {
				t.Errorf("of %.0f and %.0f accesses a second a scrub leaves %.0f", alone, again, scrubbed)
			}
			l.end()
			l.check(d.device())
			d.flushes("last")
			d.unstage()
			d.remove()
		})
	}
	m.t = t
}

// TestKernelScrubTrim: a filesystem that has discarded blocks, and writes to parts of them, gets no
// false finding: the kernel takes such chunks in without a copy of the origin.
func TestKernelScrubTrim(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "trim", 128*mib, cached(volume.ModeWritethrough, 64*mib))
	d.req.FSType = "ext4"
	d.stage()
	file := filepath.Join(d.req.StagingPath, "file")
	mustPass(t, "write", os.WriteFile(file, pattern(3, 48*mib), 0o600))
	m.must("sync")
	mustPass(t, "remove", os.Remove(file))
	m.must("sync")
	m.must("fstrim", d.req.StagingPath)
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	mustPass(t, "create", err)
	b := aligned(4096)
	copy(b, pattern(4, 4096))
	for range 12 {
		for at := int64(0); at < 48*mib; at += 64 << 10 {
			_, err := f.WriteAt(b, at)
			mustPass(t, "write", err)
			_, err = f.ReadAt(b, at)
			mustPass(t, "read", err)
		}
	}
	mustPass(t, "close", f.Close())
	st, _ := d.cache()
	infos, err := d.n.DM.Info(t.Context(), layout.Device(d.req.ID, layout.Top))
	mustPass(t, "device", err)
	discards, err := blockdev.Discards("/sys", infos[layout.Device(d.req.ID, layout.Top)].DevNo())
	mustPass(t, "counts", err)
	reports := d.scrubs("trimmed")
	t.Logf("%d discards, %d chunks used: %+v", discards, st.CacheUsed, reports)
	if r := reports[len(reports)-1]; discards == 0 || r.CheckedBytes == 0 || r.Corrupted > 0 || len(reports) != 1 {
		t.Errorf("%d discards: %+v", discards, reports)
	}
	d.unstage()
	d.remove()
}
