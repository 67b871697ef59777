//go:build kernel

package kernel

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/heat"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// advisedMiB is the size of the volume, adviceChunk its chunks of 128 KiB, and largeMiB the cache
	// with which it is looked at.
	advisedMiB, adviceChunk, largeMiB = 512, 256, 384
	// lookPause is the time between two looks of these tests, which stands for five minutes.
	lookPause = 2 * time.Second
	// advisePoints is by how many points a prediction may differ from what is measured.
	advisePoints = 7
	advisedID    = "adv"
)

// adviser is a volume whose reads are looked at, over a cache that is made anew in other sizes.
type adviser struct {
	*metered
	keeper *heat.Keeper
	entry  *state.Entry
	now    time.Time
}

func newAdviser(t *testing.T) *adviser {
	run := hostexec.New()
	a := &adviser{
		metered: &metered{t: t, run: run, dm: devmapper.New(run), devs: map[string]string{}},
		entry:   &state.Entry{ID: advisedID, ActivationID: "a", Mode: volume.ModeWritethrough, ChunkSectors: adviceChunk, State: state.Staged},
		now:     time.Now(),
	}
	a.keeper = &heat.Keeper{Devices: a.dm, Dir: t.TempDir(), Now: func() time.Time { return a.now }}
	t.Cleanup(func() {
		for _, name := range []string{"nf-adv", "nf-adv.data", "nf-adv.meta", "nf-adv.origin"} {
			if err := a.dm.Remove(context.Background(), name); err != nil {
				t.Error(err) // and the others all the same
			}
		}
	})
	a.linear("nf-adv.origin", storageDisk, advisedMiB)
	a.linear("nf-adv.meta", ssdTwo, 8)
	return a
}

// cache makes the volume's cache anew, empty and of such a size.
func (a *adviser) cache(mibs uint64) {
	t := a.t
	t.Helper()
	a.settle()
	for _, name := range []string{"nf-adv", "nf-adv.data"} {
		mustPass(t, "remove", a.dm.Remove(context.Background(), name))
	}
	write(t, "/dev/mapper/nf-adv.meta", make([]byte, mib), 0, true)
	a.linear("nf-adv.data", ssdOne, mibs)
	table := devmapper.Table{{Length: advisedMiB * sectorsPerMiB, Target: devmapper.CacheTarget{
		Metadata: a.devs["nf-adv.meta"], Data: a.devs["nf-adv.data"], Origin: a.devs["nf-adv.origin"], ChunkSectors: adviceChunk, Mode: devmapper.Writethrough,
		Policy: devmapper.PolicySMQ, MigrationThreshold: devmapper.MigrationThreshold(adviceChunk),
	}}}
	_, err := a.dm.Create(t.Context(), "nf-adv", "NEARFLASH-test-top", table)
	mustPass(t, "create", err)
	a.settle() // udev reads what is new
	a.keeper.Begin(t.Context(), a.entry)
}

// settle waits until udev has nothing open.
func (a *adviser) settle() {
	a.t.Helper()
	_, err := a.run.Run(context.Background(), hostexec.Command("udevadm", "settle"))
	mustPass(a.t, "udevadm", err)
}

// hits are the reads of the cache that hit and missed.
func (a *adviser) hits() (hits, misses uint64) {
	a.t.Helper()
	all, err := a.dm.StatusAll(a.t.Context())
	mustPass(a.t, "status", err)
	return all["nf-adv"].ReadHits, all["nf-adv"].ReadMisses
}

// look has the volume looked at.
func (a *adviser) look() {
	a.now = a.now.Add(5 * time.Minute)
	a.keeper.Look(a.t.Context(), a.entry)
}

// readLoad reads the volume in some way until it ends, which is told by the channel. Its times are in
// seconds.
type readLoad func(t *testing.T, seconds int) (ended <-chan error)

// fioReads is a load of fio.
func fioReads(args ...string) readLoad {
	return func(t *testing.T, seconds int) <-chan error {
		all := append([]string{
			"--name=load", "--filename=/dev/mapper/nf-adv", "--direct=1", "--ioengine=libaio", "--minimal", "--norandommap", "--randrepeat=1", "--allrandrepeat=1", "--randseed=7",
		}, args...)
		if seconds > 0 {
			all = append(all, "--time_based", fmt.Sprintf("--runtime=%d", seconds))
		}
		cmd := exec.CommandContext(t.Context(), "fio", all...)
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = &said, &said
		mustPass(t, "start fio", cmd.Start())
		ended := make(chan error, 1)
		go func() {
			err := cmd.Wait()
			if err != nil {
				err = fmt.Errorf("fio: %w: %s", err, said.String())
			}
			ended <- err
		}()
		return ended
	}
}

// predict looks at the volume while it is read, and returns what is predicted.
func (a *adviser) predict(read readLoad, seconds int) reuse.WindowSummary {
	t := a.t
	t.Helper()
	a.cache(largeMiB)
	a.look()
	ended := read(t, seconds)
	looks := 0
	for running := true; running; {
		select {
		case err := <-ended:
			mustPass(t, "load", err)
			running = false
		case <-time.After(lookPause):
		}
		a.look()
		looks++
	}
	for range 12 { // the node goes on looking, so that half an hour has passed after a short load too
		if s, _ := a.keeper.Reuse(advisedID); len(s.Windows) > 0 {
			break
		}
		a.look()
	}
	s, found := a.keeper.Reuse(advisedID)
	if !found || len(s.Windows) == 0 {
		t.Fatalf("nothing is known after %d looks: %+v", looks, s)
	}
	w := s.Windows[0]
	t.Logf("%d looks, %.0f reads of %.0f bytes: predicted %.3f, again %.3f, knee %d MiB", looks, w.Reads, w.ReadBytes, w.Hits, w.Again, w.KneeBytes/mib)
	return w
}

// measure makes the cache as large as percent of the volume, has the volume read for warm seconds and
// then some more, and returns the part of the latter reads that hit, in percent. A load that ends by
// itself is measured whole if warm is 0.
func (a *adviser) measure(read readLoad, percent, warm, seconds int) float64 {
	t := a.t
	t.Helper()
	a.cache(uint64(advisedMiB * percent / 100))
	lasts := 0
	if warm > 0 {
		lasts = warm + seconds + 5
	}
	hits, misses := a.hits()
	ended := read(t, lasts)
	if warm > 0 {
		time.Sleep(time.Duration(warm) * time.Second)
		hits, misses = a.hits()
		time.Sleep(time.Duration(seconds) * time.Second)
	} else {
		mustPass(t, "load", <-ended)
	}
	h, m := a.hits()
	if warm > 0 {
		mustPass(t, "load", <-ended)
	}
	if h+m == hits+misses {
		t.Fatal("nothing was read")
	}
	return 100 * float64(h-hits) / float64(h+m-hits-misses)
}

// compare wants what was predicted for sizes in percent of the volume to be what is measured.
func (a *adviser) compare(what string, w reuse.WindowSummary, read readLoad, warm, seconds int, percents ...int) {
	a.t.Helper()
	for _, percent := range percents {
		predicted := 0.
		for i, f := range reuse.Fractions {
			if f == percent {
				predicted = 100 * w.Hits[i]
			}
		}
		measured := a.measure(read, percent, warm, seconds)
		a.t.Logf("%s, cache of %d %%: predicted %.1f %%, measured %.1f %%", what, percent, predicted, measured)
		if math.Abs(predicted-measured) > advisePoints {
			a.t.Errorf("%s, cache of %d %%: predicted %.1f %%, measured %.1f %%", what, percent, predicted, measured)
		}
	}
}

// TestKernelAdvise: what is predicted of a large cache's reads is what a cache of another size answers.
func TestKernelAdvise(t *testing.T) {
	random := []string{"--rw=randread", "--bs=4k", "--iodepth=8"}
	for _, c := range []struct {
		name string
		read readLoad
		// predicting is how long it is looked at, warm how long a smaller cache fills, in seconds.
		predicting, warm, measuring int
		percents                    []int
	}{
		{"uniform", fioReads(random...), 40, 40, 20, []int{10, 50}},
		{"zipf", fioReads(append(random, "--random_distribution=zipf:1.1")...), 40, 60, 20, []int{5, 25}},
		{"scan", fioReads("--rw=read", "--bs=128k", "--iodepth=4", "--rate=25m"), 0, 0, 0, []int{25}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAdviser(t)
			a.compare(c.name, a.predict(c.read, c.predicting), c.read, c.warm, c.measuring, c.percents...)
		})
	}
}

// TestKernelAdviseCost measures a look at a volume with as many areas as there can be, and the memory
// that is kept of it.
func TestKernelAdviseCost(t *testing.T) {
	a := newAdviser(t)
	a.entry.ChunkSectors = 64
	a.cache(largeMiB)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	a.look()
	areas := a.areas()
	const looks = 20
	cpu, began := cpuTime(t), time.Now()
	for range looks {
		a.look()
	}
	perLook, wall := (cpuTime(t)-cpu)/looks, time.Since(began)/looks
	kept := int64(heap()) - int64(before)
	t.Logf("%d areas: %v of CPU a look (%v), %.4f %% of a CPU at one look in five minutes; %d bytes kept", areas, perLook, wall, 100*perLook.Seconds()/300, kept)
	// A hundredth of a CPU in a guest whose system calls are slow.
	if perLook > 3*time.Second || kept > mib {
		t.Errorf("a look takes %v, %d bytes are kept", perLook, kept)
	}
	runtime.KeepAlive(a)
}

func (a *adviser) areas() int {
	a.t.Helper()
	r, err := a.dm.ReadAreas(a.t.Context(), "nf-adv")
	mustPass(a.t, "areas", err)
	return len(r.Counts)
}
