//go:build kernel

package kernel

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// solid is a device over the guest's second SSD.
const (
	solid     = "solid"
	solidPath = "/dev/mapper/" + solid
)

// onTwoSSDs makes the pool of a node of two SSDs, one after the other, with a volume that
// leaves room for no other cache on the first, and one on the frail SSD.
func onTwoSSDs(m *machine) (n *node, first, second *disk) {
	t := m.t
	t.Helper()
	sectors := strings.TrimSpace(m.must("blockdev", "--getsz", ssdTwo))
	m.must("dmsetup", "create", solid, "--table", "0 "+sectors+" linear "+ssdTwo+" 0")
	t.Cleanup(func() { m.try("dmsetup", "remove", "--retry", solid) })
	dir := t.TempDir()
	n = m.node(dir, v1alpha1.CachePoolSpec{Devices: []string{solidPath}})
	first = m.volume(n, "first", 1024*mib, cached(volume.ModeWritethrough, 1000*mib))
	first.req.Block = true
	first.stage()
	both := onFrailSSD(m)
	both.Devices = append(both.Devices, solidPath)
	n, err := openNode(t.Context(), dir, both, fileRecords{filepath.Join(dir, "records")})
	mustPass(t, "open node", err)
	t.Cleanup(func() { m.dropPool(both) })
	first.n = n
	second = m.volume(n, "second", 128*mib, cached(volume.ModeWritethrough, 64*mib))
	second.req.Block = true
	second.stage()
	for _, d := range []*disk{first, second} {
		if _, found := d.cache(); !found {
			t.Fatalf("volume %s has no cache", d.req.ID)
		}
	}
	if deps := m.must("dmsetup", "deps", "--options", "devname", "nearflash--"+strings.TrimPrefix(n.pool.View().VG, "nearflash-")+"-second.meta"); !strings.Contains(deps, "("+frail+")") {
		t.Fatalf("the map of the second volume is not on the frail SSD: %s", deps)
	}
	return n, first, second
}

// commands are the programs of the node plugin that have not ended.
func commands() map[int]bool {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		panic(err)
	}
	found := map[int]bool{}
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		program, _, _ := strings.Cut(string(line), "\x00")
		if slices.Contains([]string{"dmsetup", "lvs", "vgs", "pvs", "lvchange", "lvcreate", "lvremove", "wipefs"}, filepath.Base(program)) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
				found[pid] = true
			}
		}
	}
	return found
}

// maxHung is how many programs may wait for one SSD: looks at all caches and at each, with
// and without a commit, and those of LVM.
const maxHung = 16

// TestKernelHungSSD: one SSD of a pool does not answer, and gives no error. The volume on
// the other one fails over when that fails, a third one is staged, as fast as
// otherwise but for what the first looks wait; the programs that wait do not grow in number.
func TestKernelHungSSD(t *testing.T) {
	m := newMachine(t)
	n, first, second := onTwoSSDs(m)
	third := m.volume(n, "third", 64*mib, volume.Spec{Mode: volume.ModeNone})
	third.req.Block = true

	var ahead atomic.Int64
	n.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { n.CacheFaults().Run(ctx, 200*time.Millisecond) })
	loops.Go(func() { n.RunChanges(ctx, time.Second) })
	loops.Go(func() { n.Run(ctx, time.Second) })
	failedOver := func() bool {
		all, err := n.DM.StatusAll(ctx)
		st, cache := all["nf-first"]
		return err == nil && !cache && !st.Silent
	}
	soon(t, "the loops run", func() bool { _, err := n.DM.StatusAll(ctx); return err == nil })
	began := time.Now()
	third.stage()
	alone := time.Since(began)
	third.unstage()
	m.must("dmsetup", "suspend", "--noflush", "--nolockfs", frail)
	ahead.Store(int64(2 * time.Minute)) // the SSDs are to be written to now
	soon(t, "the SSD is noticed to hang", func() bool {
		all, err := n.DM.StatusAll(ctx)
		return err == nil && all["nf-second"].Silent && !all["nf-first"].Silent
	})
	hung := len(commands())
	began = time.Now()
	third.stage()
	// Its own look at the SSD may be the first, which is given up with the cache.
	beside := time.Since(began)
	if limit := 5*alone + n.CacheTimeout + 30*time.Second; beside > limit {
		t.Errorf("a stage took %s beside an SSD that hangs, %s without: more than %s", beside, alone, limit)
	}
	m.swapTable(solid, "0 "+strings.TrimSpace(m.must("blockdev", "--getsz", ssdTwo))+" error")
	began = time.Now()
	soon(t, "the other volume fails over", failedOver)
	t.Logf("failed over after %s; a stage takes %s, beside the SSD %s; %d programs ran at first", time.Since(began), alone, beside, hung)
	// Those that wait are there a while later too; others come and go, on a busy machine
	// many at a time.
	var looks []map[int]bool
	most := 0
	for range 25 {
		time.Sleep(time.Second)
		looks = append(looks, commands())
		waiting := 0
		for pid := range looks[len(looks)-1] {
			if looks[max(0, len(looks)-6)][pid] {
				waiting++
			}
		}
		if len(looks) <= 5 {
			continue
		}
		if most = max(most, waiting); waiting > maxHung {
			t.Fatalf("%d programs wait for the SSD, %d ran at first", waiting, hung)
		}
	}
	t.Logf("%d programs waited at most", most)
	// Before LVM can change the group again: a physical volume that cannot be read then is
	// marked as missing, also when it is back.
	m.swapTable(solid, "0 "+strings.TrimSpace(m.must("blockdev", "--getsz", ssdTwo))+" linear "+ssdTwo+" 0")
	m.must("dmsetup", "resume", frail)
	soon(t, "the SSD answers", func() bool {
		all, err := n.DM.StatusAll(ctx)
		return err == nil && !all["nf-second"].Silent
	})
	cancel()
	loops.Wait()
	n.Now = time.Now
	var infos map[string]devmapper.Info
	infos, err := n.DM.Info(t.Context(), "nf-second")
	mustPass(t, "devices", err)
	if len(infos) == 0 {
		t.Error("the second volume has lost its devices")
	}
	for _, d := range []*disk{first, second, third} {
		d.unstage()
	}
	// Whoever began to remove the failed cache may still be at it, and a program that waited
	// for the SSD may not have ended yet. Repair leaves a pool alone that could not be seen.
	problem := ""
	soon(t, "the failed cache is gone", func() bool {
		mustPass(t, "pool", n.pool.Reconcile(t.Context()))
		if now := n.pool.View().Problem; now != problem {
			t.Logf("the pool: %q", now)
			problem = now
		}
		mustPass(t, "repair", n.Repair(t.Context()))
		lvs, err := n.LVM.LVs(t.Context(), pool.VolumeGroup(nodeName))
		return err == nil && !slices.ContainsFunc(lvs, func(lv lvm.LV) bool { return strings.HasPrefix(lv.Name, "first.") })
	})
	for _, d := range []*disk{first, second, third} {
		d.remove()
	}
}
