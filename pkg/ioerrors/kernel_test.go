//go:build kernel

package ioerrors

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/tracefs"
)

// eachWay runs a test once for each way to count, with nothing counted before.
func eachWay(t *testing.T, test func(t *testing.T, c *Counter)) {
	t.Helper()
	for _, way := range []string{"histogram", "ring"} {
		t.Run(way, func(t *testing.T) {
			c := New(realTracefs, "/sys")
			c.noHistogram = way == "ring"
			if guest.Kernel() == "" {
				wantUnavailable(t, c)
				return
			}
			if err := c.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			test(t, c)
			if err := c.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if names, err := c.names(); err != nil || len(names) > 0 {
				t.Errorf("instances that are left: %v, %v", names, err)
			}
		})
	}
}

// wantUnavailable: the lab's own kernel has no tracing, and that is what is said.
func wantUnavailable(t *testing.T, c *Counter) {
	t.Helper()
	v := newRig(t).volume("none")
	if err := c.Start(t.Context(), v.origin.DevNo()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("start: %v, want ErrUnavailable", err)
	}
	if n, id, err := c.Count(t.Context(), v.origin.DevNo()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("count: %d, %s, %v, want ErrUnavailable", n, id, err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// again is the Counter of another process.
func (c *Counter) again() *Counter {
	next := New(c.tracefs, c.sysfs)
	next.noHistogram = c.noHistogram
	return next
}

func (v *vol) start(c *Counter) {
	v.t.Helper()
	v.must("start", c.Start(v.t.Context(), v.origin.DevNo()))
}

func (v *vol) count(c *Counter) (uint64, string) {
	v.t.Helper()
	n, id, err := c.Count(v.t.Context(), v.origin.DevNo())
	v.must("count", err)
	return n, id
}

// wantMore: what do does adds as many errors to the origin's count as it says, in a process
// after this one too.
func (v *vol) wantMore(c *Counter, what string, do func() uint64) {
	v.t.Helper()
	before, id := v.count(c)
	failed := do()
	for _, c := range []*Counter{c, c.again()} {
		v.start(c)
		if after, id2 := v.count(c); after-before != failed || id2 != id {
			v.t.Errorf("%s of %s: %d failed, counted are %d; %s, then %s", what, v.name, failed, after-before, id, id2)
		}
	}
}

// TestKernelIOErrorsCount: each bio that the origin of a writethrough cache fails is counted,
// and nothing else; the count outlives who began it; each volume has its own.
func TestKernelIOErrorsCount(t *testing.T) {
	eachWay(t, func(t *testing.T, c *Counter) {
		r := newRig(t)
		a, b := r.volume("a"), r.volume("b")
		a.start(c)
		b.start(c)
		works := func() uint64 {
			failed := a.writes(20) + a.reads(20)
			r.must("flush", a.file.Sync())
			r.must("discard", a.discard())
			return failed
		}
		a.wantMore(c, "use that works", works)

		repair := a.fail()
		a.wantMore(c, "a write", func() uint64 { return a.writes(1) })
		a.wantMore(c, "writes", func() uint64 { return a.writes(40) })
		a.wantMore(c, "reads", func() uint64 { return a.reads(15) })
		b.wantMore(c, "reads and writes", func() uint64 { return a.writes(3) - 3 + b.writes(3) + b.reads(3) })
		repair()
		a.wantMore(c, "use that works again", works)
		repair = b.fail()
		a.wantMore(c, "reads and writes", func() uint64 { return b.writes(3) - 3 + a.writes(3) + a.reads(3) })
		b.wantMore(c, "writes", func() uint64 { return b.writes(7) })
		repair()

		a.writes(1)
		defer a.fail()()
		if a.writes(1) != 1 {
			t.Fatal("a write to an origin that fails did not fail")
		}
		got := buffer(4096, 0)
		if _, err := a.file.ReadAt(got, 0); err != nil || !bytes.Equal(got, buffer(4096, a.seed)) {
			t.Errorf("a cache does not keep what its origin refused (%v): then nobody needs this package", err)
		}
	})
}

// TestKernelIOErrorsStorm: so many errors at once that no buffer has them all are counted;
// a bio that the kernel cuts is counted at least once.
func TestKernelIOErrorsStorm(t *testing.T) {
	eachWay(t, func(t *testing.T, c *Counter) {
		r := newRig(t)
		a, b := r.volume("a"), r.volume("b")
		a.start(c)
		b.start(c)
		defer a.fail()()
		before, id := a.count(c)
		others, _ := b.count(c)
		failed := make([]uint64, 8)
		var all sync.WaitGroup
		for i := range failed {
			all.Go(func() { failed[i] = a.writes(500) })
		}
		all.Wait()
		sum := uint64(0)
		for _, n := range failed {
			sum += n
		}
		n, id2 := a.count(c)
		exact := n-before == sum || c.noHistogram && n-before > sum // with those of the devices above and below
		if sum != 4000 || !exact || id2 != id {
			t.Errorf("%d writes have failed, counted are %d; %s, then %s", sum, n-before, id, id2)
		}
		// What the ring has lost is everybody's.
		m, _ := b.count(c)
		if lost := m - others; c.noHistogram != (lost > 0) {
			t.Errorf("of another volume %d are counted", lost)
		}
		if _, err := a.file.WriteAt(buffer(mib, 1), 512); err == nil {
			t.Error("a large write did not fail")
		}
		if now, _ := a.count(c); now <= n {
			t.Errorf("a large write was not counted: %d, then %d", n, now)
		}
	})
}

// TestKernelIOErrorsRequests: what a disk fails that takes requests is counted above it,
// also what a multipath device passes on (MEDIUM ERROR), and when the disk dies.
func TestKernelIOErrorsRequests(t *testing.T) {
	eachWay(t, func(t *testing.T, c *Counter) {
		r := newRig(t)
		const mediumError = "opts=2" // of sectors 0x1234 to 0x123d (drivers/scsi/scsi_debug.c)
		disk := r.fakeDisk(mediumError)
		if err := c.Start(t.Context(), disk.DevNo()); !errors.Is(err, ErrNotBioBased) {
			t.Errorf("start of a disk: %v", err)
		}
		requests := r.device("nf-m.requests", originSize*mibSectors, devmapper.RawTarget{Name: "multipath", Args: "0 0 1 1 round-robin 0 1 1 " + disk.DevNo() + " 1"})
		if err := c.Start(t.Context(), requests.DevNo()); !errors.Is(err, ErrNotBioBased) {
			t.Errorf("start of a request-based multipath device: %v", err)
		}
		r.must("remove", r.dm.Remove(t.Context(), "nf-m.requests"))
		lower := r.device("nf-m.lower", originSize*mibSectors, devmapper.RawTarget{Name: "multipath", Args: "2 queue_mode bio 0 1 1 round-robin 0 1 1 " + disk.DevNo() + " 1"})
		v := r.volumeOver("m", lower)
		v.start(c)
		v.must("start of a bio-based multipath device", c.Start(t.Context(), lower.DevNo()))
		v.wantMore(c, "a read of a bad sector", func() uint64 {
			_, err := v.file.ReadAt(buffer(4096, 0), 0x1234/8*4096)
			return v.isEIO(err)
		})
		if n, _ := v.count(c); n == 0 {
			t.Error("a read of a bad sector did not fail")
		}
		dirs, err := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*:*/state")
		if err != nil || len(dirs) != 1 {
			t.Fatalf("disks: %v, %v", dirs, err)
		}
		v.must("disk dies", tracefs.Write(dirs[0], "offline\n"))
		v.wantMore(c, "writes", func() uint64 { return v.writes(5) })
		v.wantMore(c, "reads", func() uint64 { return v.reads(5) })
		if n, _ := v.count(c); n < 10 {
			t.Errorf("a dead disk has failed %d bios", n)
		}
	})
}

// TestKernelIOErrorsOthers: a tracer of the host and this one do not see each other; a count
// that was ended, or was not begun wholly, is another one afterwards.
func TestKernelIOErrorsOthers(t *testing.T) {
	eachWay(t, func(t *testing.T, c *Counter) {
		v := newRig(t).volume("a")
		if _, _, err := c.Count(t.Context(), v.origin.DevNo()); !errors.Is(err, ErrNotCounting) {
			t.Errorf("count of what was not started: %v", err)
		}
		v.start(c)
		v.start(c.again())
		defer v.fail()()
		v.writes(2)
		for file, want := range map[string]string{event + "/enable": "0", event + "/filter": "none", event + "/trigger": "#", "tracing_on": "1"} {
			b, err := os.ReadFile(filepath.Join(realTracefs, file))
			if err != nil || !strings.HasPrefix(string(b), want) {
				t.Errorf("%s of the host's tracing is %q, %v", file, b, err)
			}
		}
		host := func(file, text string) {
			t.Helper()
			v.must(file, tracefs.Write(filepath.Join(realTracefs, file), text))
		}
		host(event+"/enable", "1")
		v.wantMore(c, "writes while the host traces", func() uint64 { return v.writes(3) })
		host("tracing_on", "0")
		host("events/enable", "0")
		v.wantMore(c, "writes after the host has traced", func() uint64 { return v.writes(3) })
		host("tracing_on", "1")

		names, err := c.names()
		if err != nil || len(names) != 1 {
			t.Fatalf("instances: %v, %v", names, err)
		}
		_, id := v.count(c)
		off := event + "/trigger"
		text := "!hist:keys=dev:size=1024 if error != 0"
		if c.noHistogram {
			off, text = event+"/enable", "0"
		}
		v.must("end", tracefs.Write(filepath.Join(c.dir(names[0]), off), text))
		if _, _, err := c.Count(t.Context(), v.origin.DevNo()); !errors.Is(err, ErrNotCounting) {
			t.Errorf("count of what was ended: %v", err)
		}
		v.must("part of a count", os.Mkdir(c.dir(prefix+"0"), 0o700))
		v.start(c)
		if n, id2 := v.count(c); id2 == id || n != 0 {
			t.Errorf("a count that was ended has %d errors and id %s, before it was %s", n, id2, id)
		}
		v.wantMore(c, "writes", func() uint64 { return v.writes(3) })
		if names, err := c.names(); err != nil || len(names) != 1 {
			t.Errorf("instances: %v, %v", names, err)
		}
	})
}
