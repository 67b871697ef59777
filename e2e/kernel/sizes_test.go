//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/iosizes"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	tracing = "/sys/kernel/tracing"
	// shortReads of 4 KiB and longReads of 1 MiB are in a sample.
	shortReads, longReads = 1800, 200
	// sizesInstance is what the kernel has of it.
	sizesInstance = tracing + "/instances/nearflash_sizes"
)

// sampled has the last sample that was made.
type sampled struct {
	*iosizes.Sampler
	last map[string]iosizes.Counts
}

func (s *sampled) Sample(ctx context.Context, d time.Duration) (map[string]iosizes.Counts, error) {
	var err error
	s.last, err = s.Sampler.Sample(ctx, d)
	return s.last, err
}

// readSizes reads the volume past the page cache.
func readSizes() error {
	f, err := os.OpenFile("/dev/mapper/nf-adv", os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	b := aligned(mib)
	for i := range shortReads + longReads {
		n := int64(4096)
		if i%(shortReads/longReads+1) == 0 {
			n = mib
		}
		if _, err := f.ReadAt(b[:n], rand.Int64N(advisedMiB)*mib); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

// TestKernelIOSizes: reads are counted as long as they are, where statistics of the device mapper see no
// more than a chunk. A sample that was cut short, and one whose process was killed, leave nothing to the next
// one.
func TestKernelIOSizes(t *testing.T) {
	a := newAdviser(t)
	a.cache(largeMiB)
	s := &sampled{Sampler: iosizes.New(tracing)}
	// Nothing is read while the kernel begins to count, or ends: the emulator may go on executing what an
	// instruction was before the kernel changed it, if another processor is just there.
	s.Wait = func(context.Context, time.Duration) error { return readSizes() }
	a.keeper.Sampler, a.keeper.Host = s, oneEntry{a.entry}
	a.keeper.Device = func(ctx context.Context, _ volume.ID) (string, error) { return a.devno(ctx) }
	if guest.Kernel() == "" {
		// The lab's own kernel has no tracing.
		if err := a.keeper.SamplePass(t.Context()); !errors.Is(err, iosizes.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		mustPass(t, "stop", s.Stop())
		return
	}
	devno, err := a.devno(t.Context())
	mustPass(t, "device", err)
	sample := func() {
		t.Helper()
		mustPass(t, "sample", a.keeper.SamplePass(t.Context()))
		if c, want := s.last[devno], (iosizes.Counts{3: shortReads, 11: longReads}); c != want {
			t.Errorf("reads of a sample: %v, want %v", c, want)
		}
	}
	a.look()
	sample()
	for range 9 {
		a.look()
	}
	summary, _ := a.keeper.Reuse(advisedID)
	if len(summary.Windows) == 0 {
		t.Fatalf("nothing is known: %+v", summary)
	}
	w := summary.Windows[0]
	t.Logf("%.0f reads of %.0f bytes; of at most each size %.3f", w.Reads, w.ReadBytes, w.AtMost)
	if short := float64(shortReads) / (shortReads + longReads); !w.AtMostKnown || math.Abs(w.AtMost[0]-short) > 0.001 || math.Abs(w.AtMost[7]-short) > 0.001 || w.AtMost[8] < 0.999 {
		t.Errorf("reads of at most each size: %v, %v", w.AtMostKnown, w.AtMost)
	}
	if w.ReadBytes > adviceChunk*512 {
		t.Errorf("reads of %.0f bytes: the kernel divides them no more", w.ReadBytes)
	}

	short := iosizes.New(tracing)
	short.Wait = func(context.Context, time.Duration) error { return context.Canceled }
	if _, err := short.Sample(t.Context(), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a sample that is cut short: %v", err)
	}
	wantNoTrigger(t)
	// As a process that is killed leaves it.
	trigger := filepath.Join(sizesInstance, "events/block/block_bio_queue/trigger")
	mustPass(t, "trigger", os.WriteFile(trigger, []byte(`hist:keys=dev,nr_sector.log2:size=8192 if rwbs ~ "R*"`), 0))
	mustPass(t, "reads", readSizes())
	sample()
	wantNoTrigger(t)
	mustPass(t, "stop", s.Stop())
	if _, err := os.Stat(sizesInstance); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kernel still has %s: %v", sizesInstance, err)
	}
	mustPass(t, "stop again", s.Stop())
}

// oneEntry is a node with one volume.
type oneEntry struct{ e *state.Entry }

func (h oneEntry) Entries() ([]state.Entry, error) { return []state.Entry{*h.e}, nil }

func (h oneEntry) Entry(volume.ID) (*state.Entry, error) { return h.e, nil }

func (h oneEntry) TryLock(volume.ID) (func(), bool) { return func() {}, true }

// devno is the number of the top device.
func (a *adviser) devno(ctx context.Context) (string, error) {
	infos, err := a.dm.Info(ctx, "nf-adv")
	for _, info := range infos {
		if info.Name == "nf-adv" {
			return info.DevNo(), err
		}
	}
	return "", err
}

func wantNoTrigger(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sizesInstance, "events/block/block_bio_queue/hist"))
	if err != nil || len(text) > 0 {
		t.Errorf("counted outside of samples: %q, %v", text, err)
	}
}

// TestKernelIOSizesCost measures what reads cost more while they are counted: rounds with and without in
// turns, and the least of each.
func TestKernelIOSizesCost(t *testing.T) {
	if guest.Kernel() == "" {
		t.Skip("the lab's own kernel has no tracing")
	}
	a := newAdviser(t)
	a.cache(largeMiB)
	s := iosizes.New(tracing)
	f, err := os.OpenFile("/dev/mapper/nf-adv", os.O_RDONLY|unix.O_DIRECT, 0)
	mustPass(t, "open", err)
	defer func() { _ = f.Close() }()
	b := aligned(4096)
	round := func() time.Duration {
		const reads = 1000
		cpu := cpuTime(t)
		for range reads {
			_, err := f.ReadAt(b, 0)
			mustPass(t, "read", err)
		}
		return (cpuTime(t) - cpu) / reads
	}
	round()
	var without, with []time.Duration
	before := slab(t)
	s.Wait = func(context.Context, time.Duration) error {
		t.Logf("kernel memory: %d KiB more while it counts", slab(t)-before)
		return nil
	}
	_, err = s.Sample(t.Context(), 0)
	mustPass(t, "sample", err)
	t.Logf("kernel memory: %d KiB more between samples", slab(t)-before)
	s.Wait = func(context.Context, time.Duration) error {
		with = append(with, round())
		return nil
	}
	for range 5 {
		without = append(without, round())
		_, err := s.Sample(t.Context(), 0)
		mustPass(t, "sample", err)
	}
	mustPass(t, "stop", s.Stop())
	plain, counted := slices.Min(without), slices.Min(with)
	t.Logf("CPU of a read of 4 KiB: %v, %v while it is counted", plain, counted)
	if counted > 4*plain {
		t.Errorf("a read costs %v, and %v while it is counted", plain, counted)
	}
}

// slab is what the kernel has allocated for itself in small pieces, in KiB.
func slab(t *testing.T) (kib int) {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	mustPass(t, "memory", err)
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "Slab: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatalf("no Slab in %s", text)
	return 0
}

// TestKernelIOAreas: reads and writes of several chunks, which several processors divide and end, are counted,
// and areas can be read whatever the kernel says is in flight. It was not so: a count below zero was none, and
// the end of a part may be counted for another area than its beginning. Of a linear device, all areas
// that were written to are known.
func TestKernelIOAreas(t *testing.T) {
	a := newAdviser(t)
	a.cache(largeMiB)
	const tag, linear = "divided", "nf-adv.origin"
	for _, name := range []string{"nf-adv", linear} {
		mustPass(t, "track", a.dm.TrackWrites(t.Context(), name, tag, adviceChunk))
	}
	// Of the first half every second MiB is written, through the cache, and the others are read.
	const used = advisedMiB / 2
	group, ctx := errgroup.WithContext(t.Context())
	for at := range 4 {
		group.Go(func() error {
			f, err := os.OpenFile("/dev/mapper/nf-adv", os.O_RDWR|unix.O_DIRECT, 0)
			if err != nil {
				return err
			}
			b := aligned(mib)
			for i := at; i < used && err == nil && ctx.Err() == nil; i += 4 {
				if i%2 == 0 {
					_, err = f.WriteAt(b, int64(i)*mib)
				}
				for n := 0; n < 5 && err == nil && i%2 != 0; n++ {
					_, err = f.ReadAt(b, int64(i)*mib)
				}
			}
			return errors.Join(err, f.Close())
		})
	}
	mustPass(t, "reads and writes", group.Wait())
	time.Sleep(20 * time.Millisecond) // a tick of the kernel, at least
	const chunks = int(mib) / (adviceChunk * 512)
	for _, name := range []string{"nf-adv", linear} {
		w, err := a.dm.WrittenAreas(t.Context(), name, tag)
		mustPass(t, "written areas", err)
		missing, more := 0, 0
		for i, there := range w.Areas {
			switch in := i / chunks; {
			case in < used && in%2 == 0 && !there:
				missing++
			case there && (in >= used || in%2 != 0):
				more++
			}
		}
		t.Logf("%s: of %d chunks %d count as written that were not, %d do not that were", name, len(w.Areas), more, missing)
		switch {
		case name == linear && (missing > 0 || more > 0):
			t.Error("a device that divides nothing mistakes areas")
		case more > len(w.Areas)/40 || missing > len(w.Areas)/40:
			t.Error("too many to be parts that ended elsewhere")
		}
	}
	r, err := a.dm.ReadAreas(t.Context(), "nf-adv")
	mustPass(t, "read areas", err)
	if want := uint64(used / 2 * chunks); r.Writes < want {
		t.Errorf("%d writes, want %d", r.Writes, want)
	}
	a.settle()
}
