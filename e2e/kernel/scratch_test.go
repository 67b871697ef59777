//go:build kernel

package kernel

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/scratch"
	"github.com/nearflash/nearflash/pkg/volume"
)

// mixed is what the tests measure: reads and writes with flushes in between.
func mixed(depths ...int) scratch.Task {
	return scratch.Task{BlockBytes: 8192, ReadPercent: 50, Random: true, SyncEvery: 8, Depths: depths, Time: 500 * time.Millisecond}
}

// scratched reports whether the pool has a scratch volume.
func (n *node) scratched(t *testing.T) bool {
	t.Helper()
	lvs, err := n.LVM.LVs(t.Context(), n.pool.View().VG)
	mustPass(t, "logical volumes", err)
	return slices.ContainsFunc(lvs, func(lv lvm.LV) bool { return lv.Name == ssd.ScratchLV })
}

// TestKernelScratch: the SSD is measured alone beside a cache with unflushed writes, whose blocks stay as they
// are. What a killed plugin has left goes once nobody has it open (states.md, The SSD alone).
func TestKernelScratch(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d, _ := m.hot(n, "beside", volume.ModeWriteback)
	data := pattern(2, scrubbedBytes)
	write(t, d.device(), data, 0, true)

	lent, back, err := n.LendScratch(t.Context(), scratch.MinBytes)
	mustPass(t, "lend", err)
	f, err := scratch.Open(lent, os.DirFS("/sys"))
	mustPass(t, "open", err)
	runs, err := scratch.Measure(t.Context(), f, lent.Bytes, mixed(1, 4), func() string { return "" })
	mustPass(t, "measure", err)
	for _, r := range runs {
		if r.Reads.Total() == 0 || r.Syncs.Total() != r.Writes.Total()/8 || r.Seconds < 0.5 {
			t.Errorf("with %d requests under way: %d reads, %d writes, %d flushes in %.1f s", r.Depth, r.Reads.Total(), r.Writes.Total(), r.Syncs.Total(), r.Seconds)
		}
		t.Logf("with %d requests under way: %.0f/s", r.Depth, float64(r.Reads.Total()+r.Writes.Total())/r.Seconds)
	}
	if _, _, err := n.LendScratch(t.Context(), scratch.MinBytes); !errors.Is(err, volume.ErrBusy) {
		t.Errorf("lent twice: %v", err)
	}
	mustPass(t, "repair while it is lent", n.Repair(t.Context()))
	// Another device than the one that was lent is not written to.
	for _, other := range []string{d.below("data"), d.device()} {
		if _, err := scratch.Open(scratch.Device{Path: other, UUID: lent.UUID}, os.DirFS("/sys")); !errors.Is(err, scratch.ErrOther) {
			t.Errorf("%s passes for the scratch volume: %v", other, err)
		}
	}
	if err := back(t.Context()); !errors.Is(err, lvm.ErrBusy) || !n.scratched(t) {
		t.Errorf("taken back while it is open: %v", err)
	}
	mustPass(t, "close", f.Close())
	mustPass(t, "repair", n.Repair(t.Context()))
	if n.scratched(t) {
		t.Error("what could not be removed at once stays")
	}

	if !d.killAt("scratch.made", order{Scratch: true}) {
		t.Fatal("nothing was killed")
	}
	if !n.scratched(t) {
		t.Fatal("the killed plugin has left nothing: this tests nothing")
	}
	again := m.node(n.dir, onOneSSD())
	f, err = os.OpenFile(again.scratchPath(t), os.O_RDWR, 0)
	mustPass(t, "open what was left", err)
	mustPass(t, "repair while a process goes on", again.Repair(t.Context()))
	if !again.scratched(t) {
		t.Error("removed below a process that has it open")
	}
	mustPass(t, "close", f.Close())
	mustPass(t, "repair", again.Repair(t.Context()))
	if again.scratched(t) {
		t.Error("a plugin that was killed has left its scratch volume for ever")
	}
	// And the next one begins with what is left, without a repair before it.
	if !d.killAt("scratch.made", order{Scratch: true}) {
		t.Fatal("nothing was killed")
	}
	_, back, err = again.LendScratch(t.Context(), scratch.MinBytes)
	mustPass(t, "lend again", err)
	mustPass(t, "take back", back(t.Context()))
	if again.scratched(t) {
		t.Error("what was taken back is there")
	}
	check(t, d.device(), data, 0)
	d.n = again
	d.unstage()
	d.wantOrigin("in the end", data)
	d.remove()
}

// scratchPath is the device of the scratch volume.
func (n *node) scratchPath(t *testing.T) string {
	t.Helper()
	lvs, err := n.LVM.LVs(t.Context(), n.pool.View().VG)
	mustPass(t, "logical volumes", err)
	i := slices.IndexFunc(lvs, func(lv lvm.LV) bool { return lv.Name == ssd.ScratchLV })
	if i < 0 {
		t.Fatal("there is no scratch volume")
	}
	return lvs[i].DevPath()
}
