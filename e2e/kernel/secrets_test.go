//go:build kernel

package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// secretMark begins every sector of the volume whose content must not be seen again.
const secretMark = "do-not-show-this-to-anybody-else"

// secret is n bytes of it.
func secret(n int64) []byte {
	b := pattern(77, n)
	for at := int64(0); at < n; at += devmapper.SectorSize {
		copy(b[at:], secretMark)
	}
	return b
}

// secrets counts the sectors of a device that hold the secret, past the page cache.
func secrets(t *testing.T, path string) int {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	mustPass(t, "open", err)
	defer func() { _ = f.Close() }()
	found, buf := 0, aligned(mib)
	for {
		n, err := f.Read(buf)
		found += bytes.Count(buf[:n], []byte(secretMark))
		if errors.Is(err, io.EOF) {
			return found
		}
		mustPass(t, "read "+path, err)
	}
}

// mapper is the node of a device of the volume, by the end of its name.
func (d *disk) mapper(suffix string) string {
	d.m.t.Helper()
	name := "nf-" + string(d.req.ID) + suffix
	infos, err := d.n.DM.Info(d.m.t.Context(), name)
	mustPass(d.m.t, "devices", err)
	info, found := infos[name]
	if !found {
		d.m.t.Fatalf("no device %s", name)
	}
	return info.DevPath()
}

// imported is the disk that a destination's path device reads from.
func (v *movers) imported() string {
	v.m.t.Helper()
	table, err := v.b.DM.Table(v.m.t.Context(), layout.Device(v.req.ID, layout.Path))
	mustPass(v.m.t, "table", err)
	linear, ok := table[0].Target.(devmapper.LinearTarget)
	if !ok || len(table) != 1 {
		v.m.t.Fatalf("the path device is %v", table)
	}
	disk, err := os.Readlink("/sys/dev/block/" + linear.Device)
	mustPass(v.m.t, "disk "+linear.Device, err)
	return "/dev/" + filepath.Base(disk)
}

// dataVolume is the logical volume with the data of the volume's cache on this node.
func (n *node) dataVolume(t *testing.T, name string, id volume.ID) lvm.LV {
	t.Helper()
	lvs, err := n.LVM.LVs(t.Context(), pool.VolumeGroup(name))
	mustPass(t, "logical volumes", err)
	for _, lv := range lvs {
		if lv.Name == string(id)+".data" {
			return lv
		}
	}
	t.Fatalf("no cache of %s", id)
	return lvm.LV{}
}

// spill leaves a secret on the SSD of a: that of a volume that was cached there, kept as
// a retained cache, and deleted.
func (v *movers) spill() {
	t := v.m.t
	t.Helper()
	d := v.m.volume(v.a, "secret", 128*mib, cached(volume.ModeWriteback, 64*mib))
	d.req.Block = true
	d.stage()
	write(t, d.device(), secret(48*mib), 0, true)
	d.heat(48 * mib)
	d.unstage()
	if n := secrets(t, v.a.dataVolume(t, nodeName, "secret").DevPath()); n == 0 {
		t.Fatal("the retained cache does not hold the secret: this test proves nothing")
	}
	d.remove()
	if n := secrets(t, ssdOne); n == 0 {
		t.Fatal("the SSD does not hold the secret any more: this test proves nothing")
	}
}

// TestKernelSecrets: what a deleted volume has left on an SSD is seen by nobody to whom
// the space is given: not through a new volume with or without its cache, and not by the
// node that imports the new cache.
func TestKernelSecrets(t *testing.T) {
	m := newMachine(t)
	for _, kind := range cachingModes() {
		v := newMovers(t, m, "heir-"+string(kind), cached(kind, 64*mib))
		v.spill()
		// A small cache before it, so that the map of the next one lies where the
		// secret volume had data.
		small := m.volume(v.a, "small", 12*mib, cached(volume.ModeWritethrough, 12*mib))
		small.req.Block = true
		for _, d := range []*disk{small, v.disk} {
			d.stage()
			if n := secrets(t, v.a.dataVolume(t, nodeName, d.req.ID).DevPath()); n == 0 {
				t.Fatalf("the cache of %s does not lie where the secret is: this test proves nothing", d.req.ID)
			}
		}
		// Reading a volume fills its cache, so that of the one that moves is not read.
		clean(t, "a volume through its cache", small.device())
		data := pattern(1, 8*mib)
		write(t, v.device(), data, 0, true)
		v.heat(8 * mib)
		if n := secrets(t, v.a.dataVolume(t, nodeName, v.req.ID).DevPath()); n == 0 {
			t.Fatal("the cache that moves holds no secret any more: this test proves nothing")
		}
		v.unstage()

		v.publishTo(v.b, otherName)
		v.stage()
		clean(t, "what the source node exports", v.mapper(".exported"))
		clean(t, "the export, on the destination", v.imported())
		clean(t, "the volume on the destination", v.device())
		v.wantHydrated()
		clean(t, "the cache of the destination", v.b.dataVolume(t, otherName, v.req.ID).DevPath())
		check(t, v.device(), data, 0)
		v.unstage()
		v.ask(mode(volume.ModeNone))
		v.stage()
		clean(t, "the volume without a cache", v.device())
		v.unstage()
		v.remove()
		small.unstage()
		small.remove()
		mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
		m.dropPool(onOneSSD())
		m.try("vgremove", "--yes", "--force", pool.VolumeGroup(otherName))
		m.try("pvremove", "--yes", ssdTwo)
	}
}

// clean wants no secret on a device.
func clean(t *testing.T, what, path string) {
	t.Helper()
	if n := secrets(t, path); n > 0 {
		t.Errorf("%s: %d sectors show what a deleted volume has left there", what, n)
	}
}

// TestKernelSecretsFull: a cache of which every chunk was used is exported without a look at
// its map, and shows what it holds.
func TestKernelSecretsFull(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "brimful", cached(volume.ModeWritethrough, 16*mib))
	v.stage()
	data := pattern(3, 32*mib)
	write(t, v.device(), data, 0, true)
	for pass := range uint64(60) {
		reads(t, v.device(), pass, 2000, 32*mib)
		if st, _ := v.cache(); st.CacheUsed == st.CacheTotal {
			break
		}
	}
	st, _ := v.cache()
	v.unstage()
	e, err := v.a.Journal.Load(string(v.req.ID))
	mustPass(t, "journal", err)
	if full := st.CacheUsed == st.CacheTotal; !full || e.Full != full {
		t.Fatalf("%d of %d chunks are used, the journal says full: %t", st.CacheUsed, st.CacheTotal, e.Full)
	}
	v.publishTo(v.b, otherName)
	v.stage()
	table, err := v.a.DM.Table(t.Context(), "nf-brimful.exported")
	mustPass(t, "table", err)
	if len(table) != 2 {
		t.Errorf("the exported device is %v", fmt.Sprint(table))
	}
	v.wantHydrated()
	check(t, v.device(), data, 0)
	v.unstage()
	v.checkUncached(data)
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}

// TestKernelSecretsDiscarded: dm-cache takes a chunk that was discarded in without a copy
// of the origin, so that what the SSD held before would be read through it.
func TestKernelSecretsDiscarded(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "discards", cached(volume.ModeWritethrough, 64*mib))
	v.spill()
	v.stage()
	if n := secrets(t, v.a.dataVolume(t, nodeName, v.req.ID).DevPath()); n == 0 {
		t.Fatal("the cache does not lie where the secret is: this test proves nothing")
	}
	discard := func() {
		t.Helper()
		if err := blockdev.Discard(t.Context(), v.device(), [][2]uint64{{0, 128 << 20}}); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("discard: %v, want that it is refused", err)
		}
		v.heat(16 * mib)
		if st, _ := v.cache(); st.CacheUsed == 0 {
			t.Fatal("nothing was promoted: this test proves nothing")
		}
		clean(t, "a volume that was discarded", v.device())
	}
	discard()
	// A swap of the table sets the limits of the device anew.
	v.ask(mode(volume.ModeWriteback))
	v.change()
	v.wantCache("discards", volume.ModeWriteback, 64*mib)
	discard()
	v.unstage()
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}

// TestKernelSecretsReleased: what a node has exported is not left on its SSD once the destination
// has all of it.
func TestKernelSecretsReleased(t *testing.T) {
	m := newMachine(t)
	v := newMovers(t, m, "released", cached(volume.ModeWritethrough, 64*mib))
	v.stage()
	write(t, v.device(), secret(8*mib), 0, true)
	v.heat(8 * mib)
	v.unstage()
	if n := secrets(t, ssdOne); n == 0 {
		t.Fatal("the source node's SSD does not hold the data: this test proves nothing")
	}
	v.publishTo(v.b, otherName)
	v.stage()
	v.wantHydrated()
	if n := secrets(t, ssdTwo); n == 0 {
		t.Fatal("the destination's SSD does not hold the data: this test proves nothing")
	}
	clean(t, "the source node's SSD", ssdOne)
	v.unstage()
	v.remove()
	mustPass(t, "repair", errors.Join(v.a.Repair(t.Context()), v.b.Repair(t.Context())))
}
