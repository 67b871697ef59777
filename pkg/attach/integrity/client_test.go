package integrity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
)

const (
	vg, ssd   = "nearflash-0123456789", "/dev/ssd"
	mib       = 1 << 20
	dataBytes = 8 * mib
)

// rig is a node with a pool on one SSD.
type rig struct {
	*testing.T
	machine *blockdevtest.Machine
	kernel  *devmappertest.Kernel
	lvm     *lvmtest.LVM
	blocks  *blockdevtest.Blocks
	// left is how many steps the process has, none for a process that goes on; dead is what it
	// panics with.
	left int
	lvm.Client
}

type dead struct{ at string }

func newRig(t *testing.T) *rig {
	r := &rig{T: t, machine: blockdevtest.New()}
	r.kernel, r.lvm = devmappertest.New(r.machine), lvmtest.New(r.machine)
	r.lvm.VolatileTags()
	r.machine.Add("259:0", ssd, blockdevtest.NewDisk(256*mib))
	r.start()
	r.must("volume group", r.CreateVG(t.Context(), vg, []string{ssd}))
	return r
}

func (r *rig) step(what string) {
	if r.left > 0 {
		if r.left--; r.left == 0 {
			panic(dead{what})
		}
	}
}

// start begins a process.
func (r *rig) start() {
	if r.blocks != nil {
		r.blocks.Exit()
	}
	r.blocks = r.machine.Blocks(r.step)
	raw := r.lvm.Client(r.step)
	raw.SetDevices([]string{ssd})
	r.Client = New(raw, r.kernel.Client(r.step), r.blocks)
}

// dies runs something with a process that ends at its n-th step, and reports whether it has; the next
// one begins, with power the node's too.
func (r *rig) dies(n int, power bool, do func() error) (died bool) {
	r.Helper()
	r.left = n
	func() {
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(dead); !ok {
					panic(p)
				}
				died = true
			}
		}()
		r.must("without a kill", do())
	}()
	r.left = 0
	if power {
		r.powerLoss()
	}
	r.start()
	return died
}

func (r *rig) powerLoss() {
	r.kernel.PowerLoss()
	r.lvm.PowerLoss()
	r.start()
}

func (r *rig) must(what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

// specs are the volumes of a cache, the map first.
func specs() []lvm.CreateSpec {
	tags := []string{layout.TagUID + "u1", "nearflash.node=n"}
	return []lvm.CreateSpec{
		{VG: vg, Name: "v.meta", SizeBytes: 4 * mib, Tags: tags, Flushes: "v.data"},
		{VG: vg, Name: "v.data", SizeBytes: RawBytes(dataBytes), Tags: tags, Checked: dataBytes},
	}
}

func (r *rig) create() {
	r.Helper()
	for _, s := range specs() {
		r.must("create "+s.Name, r.CreateLV(r.Context(), s))
	}
}

func (r *rig) lv(name string) lvm.LV {
	r.Helper()
	lvs, err := r.LVs(r.Context(), vg)
	r.must("LVs", err)
	i := slices.IndexFunc(lvs, func(v lvm.LV) bool { return v.Name == name })
	if i < 0 {
		r.Fatalf("no %s among %v", name, lvs)
	}
	return lvs[i]
}

func (r *rig) write(path string, b byte, at int64, sync bool) {
	r.Helper()
	f, err := r.blocks.Open(path, unix.O_RDWR)
	r.must("open", err)
	_, err = f.WriteAt(bytes.Repeat([]byte{b}, 4096), at)
	r.must("write", err)
	if sync {
		r.must("sync", f.Sync())
	}
	r.must("close", f.Close())
}

func (r *rig) read(path string, at int64) (byte, error) {
	r.Helper()
	f, err := r.blocks.Open(path, unix.O_RDONLY)
	r.must("open", err)
	b := make([]byte, 4096)
	_, err = f.ReadAt(b, at)
	r.must("close", f.Close())
	return b[0], err
}

func (r *rig) wants(path string, at int64, want byte) {
	r.Helper()
	if got, err := r.read(path, at); err != nil || got != want {
		r.Errorf("%s has %d at %d, %v; want %d", path, got, at, err, want)
	}
}

// TestClient: others see the device with checksums in the place of the logical volume, and none of this
// package's tags; a program without it sees no UID.
func TestClient(t *testing.T) {
	r := newRig(t)
	r.create()
	data, meta := r.lv("v.data"), r.lv("v.meta")
	if !data.Checked || !data.Active || data.Open || data.SizeBytes != dataBytes || data.RawBytes < RawBytes(dataBytes) || !slices.Equal(data.Tags, []string{layout.TagUID + "u1", "nearflash.node=n"}) {
		t.Errorf("data %+v", data)
	}
	if !meta.Active || meta.Open || meta.Checked || meta.SizeBytes != 4*mib || !slices.Equal(meta.Tags, data.Tags) {
		t.Errorf("map %+v", meta)
	}
	before := r.lvm.Client(nil)
	before.SetDevices([]string{ssd})
	raw, err := before.LVs(t.Context(), vg)
	r.must("LVs", err)
	if c := layout.Find(raw, "v"); c.Whole() || !c.Paired() {
		t.Errorf("a program of before takes it for a whole cache: %+v", c)
	}
	lvs, err := r.LVs(t.Context(), vg)
	r.must("LVs", err)
	if c := layout.Find(lvs, "v"); !c.Whole() || c.Fence.UID != "u1" {
		t.Errorf("no whole cache: %+v", c)
	}
	r.must("tags", r.ChangeTags(t.Context(), vg, []string{layout.TagUID + "u2", "nearflash.stop=clean"}, []string{layout.TagUID + "u1"}, "v.data", "v.meta"))
	want := []string{"nearflash.node=n", "nearflash.stop=clean", layout.TagUID + "u2"}
	for _, lv := range []lvm.LV{r.lv("v.data"), r.lv("v.meta")} {
		if got := slices.Sorted(slices.Values(lv.Tags)); !slices.Equal(got, want) {
			t.Errorf("%s has the tags %v", lv.Name, got)
		}
	}
	r.must("other", r.CreateLV(t.Context(), lvm.CreateSpec{VG: vg, Name: "w.data", SizeBytes: 4 * mib}))
	if w := r.lv("w.data"); w.Checked || !w.Active {
		t.Errorf("a volume without checksums: %+v", w)
	}
}

// TestMapAfterData: a flush of the map's device brings the data to the SSD before it (states.md, Checksums of
// what the SSD holds); what nobody has flushed, a loss of power takes.
func TestMapAfterData(t *testing.T) {
	r := newRig(t)
	r.create()
	r.write(r.lv("v.data").DevPath(), 7, 64<<10, false)
	r.write(r.lv("v.meta").DevPath(), 8, 0, true)
	r.write(r.lv("v.data").DevPath(), 9, 128<<10, false)
	r.powerLoss()
	if r.lv("v.data").Active || r.lv("v.meta").Active {
		t.Fatal("active after a loss of power")
	}
	r.must("activate", r.Activate(t.Context(), vg, "v.meta")) // and what it flushes
	r.wants(r.lv("v.meta").DevPath(), 0, 8)
	r.wants(r.lv("v.data").DevPath(), 64<<10, 7)
	if got, _ := r.read(r.lv("v.data").DevPath(), 128<<10); got == 9 {
		t.Error("what nobody has flushed is on the SSD: this test proves nothing")
	}
}

// TestRest: devices go with the volumes that need them, those of maps first; a volume that is open stays.
func TestRest(t *testing.T) {
	r := newRig(t)
	r.create()
	r.write(r.lv("v.data").DevPath(), 7, 0, false)
	f, err := r.blocks.Open(r.lv("v.meta").DevPath(), unix.O_RDONLY)
	r.must("open", err)
	if !r.lv("v.meta").Open || r.lv("v.data").Open {
		t.Errorf("open are %+v and %+v", r.lv("v.meta"), r.lv("v.data"))
	}
	if err := r.Rest(t.Context(), vg, "v.data"); !errors.Is(err, lvm.ErrBusy) {
		t.Errorf("rest of a map in use: %v", err)
	}
	r.must("close", f.Close())
	r.must("rest", r.Rest(t.Context(), vg, "v.data", "v.meta"))
	infos, err := r.kernel.Client(nil).Info(t.Context(), vg)
	r.must("devices", err)
	if len(infos) > 0 || r.lv("v.data").Active {
		t.Errorf("left: %v, %+v", infos, r.lv("v.data"))
	}
	r.must("activate", r.Activate(t.Context(), vg, "v.data", "v.meta"))
	r.wants(r.lv("v.data").DevPath(), 0, 7)
	r.must("remove", r.RemoveLVs(t.Context(), vg, "v.meta", "v.fill", "v.data"))
	lvs, err := r.LVs(t.Context(), vg)
	if err != nil || len(lvs) > 0 {
		t.Errorf("left: %v, %v", lvs, err)
	}
	r.must("again", r.RemoveLVs(t.Context(), vg, "v.meta", "v.data"))
	r.must("no group", r.RemoveLVs(t.Context(), "nearflash-none", "v.meta"))
}

// TestKillCreate ends the process, or its node, at each step of making a cache on an SSD that had another
// one there. What is activated later is formatted, and never what was there before.
func TestKillCreate(t *testing.T) {
	for _, power := range []bool{false, true} {
		for n := 1; ; n++ {
			r := newRig(t)
			r.create()
			r.write(r.lv("v.data").DevPath(), 99, 0, true)
			r.must("remove", r.RemoveLVs(t.Context(), vg, "v.meta", "v.data"))
			died := r.dies(n, power, func() error {
				for _, s := range specs() {
					if err := r.CreateLV(context.Background(), s); err != nil {
						return err
					}
				}
				return nil
			})
			name := fmt.Sprintf("step %d, power %t", n, power)
			lvs, err := r.LVs(t.Context(), vg)
			r.must(name, err)
			if len(lvs) == 2 {
				r.must(name, r.Activate(t.Context(), vg, "v.meta", "v.data"))
				if data, meta := r.lv("v.data"), r.lv("v.meta"); !data.Active || !meta.Active || data.SizeBytes != dataBytes {
					t.Errorf("%s: %+v, %+v", name, data, meta)
				}
				r.write(r.lv("v.data").DevPath(), 5, 0, true)
				r.powerLoss()
				r.must(name, r.Activate(t.Context(), vg, "v.meta", "v.data"))
				r.wants(r.lv("v.data").DevPath(), 0, 5)
			}
			r.must(name, r.RemoveLVs(t.Context(), vg, "v.meta", "v.data"))
			if !died {
				break
			}
		}
	}
}

// TestKillExtend ends the process, or its node, at each step of an extension, which is repeated.
func TestKillExtend(t *testing.T) {
	for _, power := range []bool{false, true} {
		for n := 1; ; n++ {
			r := newRig(t)
			r.create()
			r.write(r.lv("v.data").DevPath(), 5, 0, true)
			died := r.dies(n, power, func() error { return r.ExtendLV(context.Background(), vg, "v.data", 16*mib) })
			name := fmt.Sprintf("step %d, power %t", n, power)
			r.must(name, r.Activate(t.Context(), vg, "v.meta", "v.data"))
			r.must(name, r.ExtendLV(t.Context(), vg, "v.data", 16*mib))
			data := r.lv("v.data")
			if data.SizeBytes != 16*mib || !data.Active {
				t.Errorf("%s: %+v", name, data)
			}
			r.write(data.DevPath(), 6, 15*mib, true)
			r.wants(data.DevPath(), 0, 5)
			r.wants(data.DevPath(), 15*mib, 6)
			if !died {
				break
			}
		}
	}
}

// TestRawBytes: the logical volume has room for superblock, journal, checksums and data of every size, and
// what is for checksums is little of a large one.
func TestRawBytes(t *testing.T) {
	for _, bytes := range []int64{512, mib, 4 * mib, 16*mib - 512, 16 * mib, 16*mib + 512, 100 * mib, 10 << 30, 4 << 40} {
		sectors := uint64(bytes) / devmapper.SectorSize
		runs := (sectors + devmapper.IntegrityRunSectors - 1) / devmapper.IntegrityRunSectors
		need := devmapper.IntegrityHeadSectors + journalSectors(bytes) + runs*devmapper.IntegrityTagSectors + sectors
		if raw := RawBytes(bytes); uint64(raw)/devmapper.SectorSize < need || bytes > 1<<30 && raw > bytes+bytes/50 {
			t.Errorf("%d bytes need %d, and have %d", bytes, need*devmapper.SectorSize, raw)
		}
		if j := journalSectors(bytes); j%devmapper.IntegritySection != 0 || j == 0 || j > journalMost {
			t.Errorf("journal of %d sectors for %d bytes", j, bytes)
		}
	}
}

// TestTagsUnreadable: a tag that cannot be read is an error, and no volume without checksums.
func TestTagsUnreadable(t *testing.T) {
	for _, tag := range []string{tagChecked + "many", tagNew, tagChecked + "-1"} {
		if v, err := read(lvm.LV{Tags: []string{tag}}); err == nil {
			t.Errorf("%q: %+v", tag, v)
		}
	}
}

// TestApart: a rescue has the map's own device, and the data with nothing above them, also where the node's
// devices are left.
func TestApart(t *testing.T) {
	for _, left := range []bool{true, false} {
		r := newRig(t)
		r.create()
		r.write(r.lv("v.data").DevPath(), 7, 0, false)
		r.write(r.lv("v.meta").DevPath(), 8, 0, true)
		if !left {
			r.powerLoss()
		}
		raw := r.lvm.Client(nil)
		raw.SetDevices([]string{ssd})
		r.Client = NewApart(raw, r.kernel.Client(nil), r.blocks)
		if data, meta := r.lv("v.data"), r.lv("v.meta"); data.Open || meta.Open {
			t.Errorf("left %t: nobody uses %+v, %+v", left, data, meta)
		}
		if r.lv("v.data").Active {
			t.Errorf("left %t: the data are below the map's device, and called active", left)
		}
		r.must("activate", r.Activate(t.Context(), vg, "v.data", "v.meta"))
		data, meta := r.lv("v.data"), r.lv("v.meta")
		if !data.Active || !meta.Active || data.Open || meta.Open {
			t.Errorf("left %t: %+v, %+v", left, data, meta)
		}
		if n := r.machine.Openers(data.DevNo()); n != 0 {
			t.Errorf("left %t: %d have the data open", left, n)
		}
		r.wants(data.DevPath(), 0, 7)
		r.wants(meta.DevPath(), 0, 8)
	}
}
