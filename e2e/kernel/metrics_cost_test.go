//go:build kernel

package kernel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/observe"
	"github.com/nearflash/nearflash/pkg/volume"
)

// counting counts the processes that are started.
type counting struct {
	hostexec.Runner
	n int
}

func (c *counting) Run(ctx context.Context, cmd hostexec.Cmd) (hostexec.Result, error) {
	c.n++
	return c.Runner.Run(ctx, cmd)
}

// maxProcesses is what a pass may start, whatever the number of volumes.
const maxProcesses = 3

// TestKernelMetricsCost measures a pass over many volumes: CPU of this process
// and of those it starts, and their number.
func TestKernelMetricsCost(t *testing.T) {
	for _, n := range []int{100, 500} {
		t.Run(fmt.Sprintf("%d volumes", n), func(t *testing.T) {
			if n > 100 && testing.Short() {
				t.Skip("takes minutes: SHORT=false RUN=TestKernelMetricsCost hack/kernel-ring.sh")
			}
			passCost(t, n)
		})
	}
}

func passCost(t *testing.T, n int) {
	many := makeMany(t, n)
	run := &counting{Runner: hostexec.New()}
	journalDir := filepath.Join(t.TempDir(), "volumes")
	entries, err := journal.Open[state.Entry](journalDir)
	mustPass(t, "open the journal", err)
	for _, id := range many {
		mustPass(t, "journal", entries.Save(string(id), state.Entry{
			ID: id, State: state.Staged, Mode: volume.ModeWritethrough, Boot: "b", Activated: true, Counting: "a",
			Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.io.example:" + string(id)}},
			Fence:  volume.Fence{UID: "u", Generation: 1, Node: nodeName}, UpdatedAt: time.Now(),
		}))
	}
	volumes := observe.Remember(journalDir, func() ([]observe.Volume, error) {
		list, err := entries.List()
		var out []observe.Volume
		for _, e := range list {
			out = append(out, observe.Volume{ID: e.ID, PV: string(e.ID), Attached: true, Mode: e.Mode, Cached: true, Activation: e.Counting, Base: e.Base})
		}
		return out, err
	})
	parts := &timed{Kernel: devmapper.New(run)}
	now := clocktesting.NewFakePassiveClock(time.Now())
	s, err := observe.Open(observe.Config{
		Kernel: parts, Dir: filepath.Join(t.TempDir(), "metrics"), Now: now.Now,
		Volumes: func() ([]observe.Volume, error) {
			defer parts.add(&parts.journal, time.Now())
			return volumes()
		},
	})
	mustPass(t, "open the totals", err)
	// The kernel accounts time by ticks of 10 ms: many passes make a figure.
	const rounds, passes = 5, 10
	var cpus []time.Duration
	var wall time.Duration
	t.Logf("%d passes over %d volumes begin", rounds*passes, n)
	for range rounds {
		began, before := time.Now(), cpuTime(t)
		for range passes {
			run.n = 0
			now.SetTime(now.Now().Add(15 * time.Second))
			snap := s.Scrape(t.Context())
			if snap.Err != nil || len(snap.Volumes) != n {
				t.Fatalf("%d volumes, %v", len(snap.Volumes), snap.Err)
			}
			for _, v := range snap.Volumes {
				if v.Cache == nil || !v.Healthy() || len(v.IO) != len(observe.Devices()) {
					t.Fatalf("volume %+v", v)
				}
			}
			if run.n > maxProcesses {
				t.Fatalf("a pass started %d processes, at most %d are allowed", run.n, maxProcesses)
			}
		}
		cpus, wall = append(cpus, (cpuTime(t)-before)/passes), wall+time.Since(began)
	}
	slices.Sort(cpus)
	const all = rounds * passes
	t.Logf("%d volumes, %d devices: CPU of a pass %v (%v to %v), time %v, processes %d; of the time: journal %v, dmsetup %v, statistics %v",
		n, 5*n, cpus[rounds/2], cpus[0], cpus[rounds-1], wall/all, run.n, parts.journal/all, parts.status/all, parts.stats/all)
}

// timed adds up what the parts of passes take.
type timed struct {
	observe.Kernel
	journal, status, stats time.Duration
}

func (p *timed) add(sum *time.Duration, began time.Time) { *sum += time.Since(began) }

func (p *timed) StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error) {
	defer p.add(&p.status, time.Now())
	return p.Kernel.StatusAll(ctx)
}

func (p *timed) StatsAll(ctx context.Context, prefix string) (map[string]devmapper.Stats, error) {
	defer p.add(&p.stats, time.Now())
	return p.Kernel.StatsAll(ctx, prefix)
}

// cpuTime is what this process and the children it has waited for have used.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		mustPass(t, "getrusage", unix.Getrusage(who, &u))
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// makeMany makes caches as nearflash does, five devices each: two of the volume
// group, and data, origin and top device, the last three measured.
func makeMany(t *testing.T, n int) []volume.ID {
	t.Helper()
	const dataSectors, metaSectors, originSectors = 2048, 512, 2048
	zero, err := os.OpenFile(ssdTwo, os.O_WRONLY, 0)
	mustPass(t, "open", err)
	_, err = zero.Write(make([]byte, n*metaSectors*512))
	mustPass(t, "make the metadata blank", err)
	mustPass(t, "close", zero.Close())
	ids := make([]volume.ID, n)
	for i := range ids {
		ids[i] = volume.ID(fmt.Sprintf("pvc-%08d-0000-4000-8000-000000000000", i))
	}
	withoutUdev(t)
	t.Cleanup(func() { removeMany(t, ids) })
	dm := devmapper.New(hostexec.New())
	each := func(format string, table func(i int, devs map[string]devmapper.Info) string) {
		t.Helper()
		devs, err := dm.Info(t.Context(), "")
		mustPass(t, "info", err)
		var concise []string
		for i, id := range ids {
			concise = append(concise, fmt.Sprintf(format, id)+",,,rw,"+table(i, devs))
		}
		for part := range slices.Chunk(concise, 200) {
			manyAtOnce(t, "create", "--concise", strings.Join(part, ";"))
		}
	}
	on := func(device string, sectors int) func(int, map[string]devmapper.Info) string {
		return func(i int, _ map[string]devmapper.Info) string {
			return fmt.Sprintf("0 %d linear %s %d", sectors, device, i*sectors)
		}
	}
	each("vg-%s.data", on(ssdOne, dataSectors))
	each("vg-%s.meta", on(ssdTwo, metaSectors))
	each("nf-%s.origin", on(storageDisk, originSectors))
	each("nf-%s.data", func(i int, devs map[string]devmapper.Info) string {
		return fmt.Sprintf("0 %d linear %s 0", dataSectors, devs["vg-"+string(ids[i])+".data"].DevNo())
	})
	each("nf-%s", func(i int, devs map[string]devmapper.Info) string {
		id := string(ids[i])
		return fmt.Sprintf("0 %d cache %s %s %s 128 2 metadata2 writethrough smq 0", originSectors,
			devs["vg-"+id+".meta"].DevNo(), devs["nf-"+id+".data"].DevNo(), devs["nf-"+id+".origin"].DevNo())
	})
	for _, id := range ids {
		for _, suffix := range []string{"", ".data", ".origin"} {
			mustPass(t, "measure", dm.StatsCreate(t.Context(), "nf-"+string(id)+suffix))
		}
	}
	return ids
}

// manyAtOnce runs dmsetup with a command line of tens of kilobytes.
func manyAtOnce(t *testing.T, verb string, args ...string) {
	t.Helper()
	res, err := hostexec.New().Run(context.Background(), hostexec.Command("dmsetup", append([]string{verb, "--noudevsync", "--noudevrules"}, args...)...))
	if err != nil {
		t.Errorf("dmsetup %s: %s", verb, res.Stderr)
	}
}

func removeMany(t *testing.T, ids []volume.ID) {
	for _, form := range []string{"nf-%s", "nf-%s.data", "nf-%s.origin", "vg-%s.meta", "vg-%s.data"} {
		var names []string
		for _, id := range ids {
			names = append(names, fmt.Sprintf(form, id))
		}
		manyAtOnce(t, "remove", names...)
	}
}

// withoutUdev ends udev until the test ends: it would look into each of thousands
// of devices, and hold up for minutes what comes after.
func withoutUdev(t *testing.T) {
	t.Helper()
	const daemon = "/usr/lib/systemd/systemd-udevd"
	run := hostexec.New()
	_, err := run.Run(t.Context(), hostexec.Command("udevadm", "control", "--exit"))
	mustPass(t, "end udev", err)
	t.Cleanup(func() {
		if _, err := run.Run(context.Background(), hostexec.Command(daemon, "--daemon")); err != nil {
			t.Error(err)
		}
	})
}
