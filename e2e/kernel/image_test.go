//go:build kernel

package kernel

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// imagePiece is what an image keeps or leaves out.
const imagePiece = 256 << 10

// image is a backup of a node's disks: its SSD and what it keeps in its state directory.
type image struct {
	name, ssd string
	size      int64
	blocks    map[int64][]byte
	files     map[string][]byte
}

// stateFolders are those of a node's own disk; the records of a test are elsewhere in
// truth.
var stateFolders = []string{"journal", "fills"}

func emptyImage(name, ssd string) *image {
	return &image{name: name, ssd: ssd, blocks: map[int64][]byte{}, files: map[string][]byte{}}
}

// takeImage copies the disks of a node as they are at one moment.
func (m *machine) takeImage(n *node, name, ssd string) *image {
	m.t.Helper()
	i := emptyImage(name, ssd)
	lvs, err := n.LVM.LVs(m.t.Context(), pool.VolumeGroup(name))
	mustPass(m.t, "logical volumes", err)
	var active []string
	for _, lv := range lvs {
		if lv.Active {
			active = append(active, m.dmName(lv))
		}
	}
	for _, dev := range active {
		m.must("dmsetup", "suspend", "--noflush", "--nolockfs", dev)
	}
	i.copy(m, n)
	for _, dev := range active {
		m.must("dmsetup", "resume", dev)
	}
	return i
}

// copy reads the disks, of which nothing is written just then.
func (i *image) copy(m *machine, n *node) {
	m.t.Helper()
	i.size = scan(m.t, i.ssd, func(at int64, b []byte) {
		if len(bytes.Trim(b, "\x00")) > 0 {
			i.blocks[at] = bytes.Clone(b)
		}
	})
	for _, folder := range stateFolders {
		files, err := os.ReadDir(filepath.Join(n.dir, folder))
		mustPass(m.t, "state", err)
		for _, f := range files {
			path := filepath.Join(folder, f.Name())
			i.files[path], err = os.ReadFile(filepath.Join(n.dir, path))
			mustPass(m.t, "state", err)
		}
	}
}

// scan reads a device past the page cache.
func scan(t *testing.T, path string, each func(at int64, b []byte)) (size int64) {
	t.Helper()
	f := openDirect(t, path)
	defer func() { _ = f.Close() }()
	b := aligned(imagePiece)
	for {
		n, err := f.ReadAt(b, size)
		if n > 0 {
			each(size, b[:n])
			size += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return size
		}
		mustPass(t, "read", err)
	}
}

// putBack makes the node's disks what they were. Nothing of it is in use, and its kernel
// has stopped.
func (i *image) putBack(m *machine, n *node) {
	m.t.Helper()
	m.must("vgchange", "--devices", i.ssd, "--activate", "n", pool.VolumeGroup(i.name))
	f := openDirect(m.t, i.ssd)
	defer func() { _ = f.Close() }()
	zero, out := aligned(imagePiece), aligned(imagePiece)
	scan(m.t, i.ssd, func(at int64, b []byte) {
		want := zero[:len(b)]
		if kept, ok := i.blocks[at]; ok {
			want = out[:copy(out, kept)]
		}
		if !bytes.Equal(want, b) {
			_, err := f.WriteAt(want, at)
			mustPass(m.t, "write", err)
		}
	})
	mustPass(m.t, "flush", f.Sync())
	for _, folder := range stateFolders {
		mustPass(m.t, "state", errors.Join(os.RemoveAll(filepath.Join(n.dir, folder)), os.MkdirAll(filepath.Join(n.dir, folder), 0o700)))
	}
	for path, b := range i.files {
		mustPass(m.t, "state", os.WriteFile(filepath.Join(n.dir, path), b, 0o600))
	}
	mustPass(m.t, "boot", os.WriteFile(filepath.Join(n.dir, "boot"), []byte(rand.Text()), 0o600))
}

// backup is an image of the disk's node.
func (d *disk) backup() *image { return d.m.takeImage(d.n, nodeName, ssdOne) }

// restore puts it back while the volume is not attached, and starts the node.
func (d *disk) restore(i *image) {
	d.m.t.Helper()
	i.putBack(d.m, d.n)
	n, err := openNode(d.m.t.Context(), d.n.dir, onOneSSD(), d.rec)
	mustPass(d.m.t, "restart", err)
	d.n = n
}

// stopNow is an unclean stop of the node.
func (d *disk) stopNow() {
	d.m.t.Helper()
	s := stopping{m: d.m, n: d.n, name: nodeName, id: d.req.ID, sources: []volume.Source{d.req.Publication.Source}}
	s.cut()
	s.vanish()
}

// fill writes until data are cached.
func (d *disk) fill(data []byte) {
	d.m.t.Helper()
	d.m.must("dmsetup", "message", "nf-"+string(d.req.ID), "0", "migration_threshold", "0")
	for range 20 {
		write(d.m.t, d.device(), data, 0, true)
	}
}

func (d *disk) wantOrigin(what string, want []byte) {
	d.m.t.Helper()
	d.connected(func(origin string) {
		if !bytes.Equal(content(d.m.t, origin, int64(len(want))), want) {
			d.m.t.Errorf("%s: the storage server has other data", what)
		}
	})
}

// TestKernelRestoredNode: a node whose disks are put back from an image, under the same
// generation, serves no old block and flushes none over a newer one (Whose disks these
// are).
func TestKernelRestoredNode(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for _, mode := range []volume.CacheMode{volume.ModeWritethrough, volume.ModeWriteback} {
		t.Run("at rest/"+string(mode), func(t *testing.T) {
			m.t = t
			d := m.volume(n, "rest-"+string(mode), 64*mib, cached(mode, 32*mib))
			d.req.Block = true
			d.stage()
			d.fill(pattern(1, 4*mib))
			d.unstage()
			old := d.backup()
			d.stage()
			now := pattern(2, 4*mib)
			write(t, d.device(), now, 0, true)
			d.unstage()
			d.restore(old)
			d.stage()
			check(t, d.device(), now, 0)
			d.unstage()
			d.wantOrigin("at rest", now)
			// What is not an image is used again.
			d.stage()
			d.fill(now)
			d.unstage()
			d.stage()
			if st, found := d.cache(); !found || st.CacheUsed == 0 {
				t.Errorf("the cache begins cold: %+v", st)
			}
			d.unstage()
			d.remove()
			n = d.n
		})
	}
	t.Run("in use, flushed since", func(t *testing.T) {
		m.t = t
		d := m.volume(n, "flushed", 64*mib, cached(volume.ModeWriteback, 32*mib))
		d.req.Block = true
		d.stage()
		d.fill(pattern(1, 4*mib))
		old := d.backup()
		now := pattern(2, 4*mib)
		write(t, d.device(), now, 0, true)
		d.unstage()
		for _, repair := range []bool{false, true} {
			d.restore(old)
			if repair {
				mustPass(t, "repair", d.n.Repair(t.Context()))
				d.wantOrigin("repair after a flush", now)
			}
			d.stage()
			check(t, d.device(), now, 0)
			d.unstage()
			d.wantOrigin("after a flush", now)
		}
		d.remove()
		n = d.n
	})
	t.Run("at rest, and lost since", func(t *testing.T) {
		m.t = t
		n = lostSince(t, m, n)
	})
	t.Run("in use, and lost", func(t *testing.T) {
		m.t = t
		n = inUseAndLost(t, m, n)
	})
	m.t = t
}

// inUseAndLost: the image is older than the writes that were lost with the disks. Nobody
// flushes it until somebody gives these writes up.
func inUseAndLost(t *testing.T, m *machine, n *node) *node {
	d := m.volume(n, "lostwrites", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.fill(pattern(1, 4*mib))
	old := d.backup()
	mustPass(t, "count", d.countUp())
	write(t, d.device(), pattern(2, 4*mib), 0, true)
	d.stopNow()
	d.restore(old)
	origin := []byte(nil)
	d.connected(func(path string) { origin = content(t, path, 4*mib) })
	if err := d.n.Repair(t.Context()); !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), "restored from an image") {
		t.Errorf("repair: %v", err)
	}
	if err := d.n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), "abandon") {
		t.Errorf("stage: %v", err)
	}
	d.wantOrigin("kept", origin)
	if e, err := d.n.Journal.Load(string(d.req.ID)); err != nil || !e.MayBeDirty() {
		t.Errorf("the journal of what is kept: %+v, %v", e, err)
	}
	mustPass(t, "give up", d.rec.update(d.req.ID, func(r *fileRecord) error { r.Volume.PossiblyDirty, r.Volume.GivenUp = false, true; return nil }))
	d.stage()
	check(t, d.device(), origin, 0)
	d.unstage()
	d.wantOrigin("given up", origin)
	d.remove()
	return d.n
}

// lostSince: the image has a cache at rest, and the writes that were lost with the disks
// came after it. The volume is not staged without them, before a repair or after it, until
// somebody gives them up.
func lostSince(t *testing.T, m *machine, n *node) *node {
	d := m.volume(n, "lostsince", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.fill(pattern(1, 4*mib))
	d.unstage()
	old := d.backup()
	d.stage()
	write(t, d.device(), pattern(2, 4*mib), 0, true)
	d.stopNow()
	d.restore(old)
	for _, when := range []string{"before", "after"} {
		if err := d.n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrFenced) || !strings.Contains(err.Error(), "unflushed writes") {
			t.Errorf("stage %s a repair: %v", when, err)
		}
		if err := d.n.Repair(t.Context()); err != nil && !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("repair: %v", err)
		}
	}
	mustPass(t, "give up", d.rec.update(d.req.ID, func(r *fileRecord) error { r.Volume.PossiblyDirty, r.Volume.GivenUp = false, true; return nil }))
	d.stage()
	d.unstage()
	d.remove()
	return d.n
}

// countUp is what a plugin does after a while with an attached volume.
func (d *disk) countUp() error {
	defer d.n.later(0)
	d.n.later(time.Hour)
	return d.n.CountUp(d.m.t.Context())
}

// TestKernelKillCount: killed while the count of an attached volume grows, or while the
// record is told of a stage, the node's own writes stay its own.
func TestKernelKillCount(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "count", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	points := []string{"count.journaled", "count.tagged", "stage.pending", "stage.untagged", "stage.activated", "stage.confirmed"}
	for i, point := range killedAt(t, points, "count.tagged", "stage.pending", "stage.activated") {
		stage := strings.HasPrefix(point, "stage.")
		if stage && !d.killAt(point, order{}) {
			t.Fatalf("stage did not pass %s", point)
		}
		if point == "stage.activated" || point == "stage.confirmed" {
			// What the record does not know of yet must be recovered all the same.
			d.stopNow()
			d.reopen()
		}
		d.stage()
		data := pattern(uint64(i)+1, 4*mib)
		d.fill(data)
		if !stage && !d.killAt(point, order{Count: true}) {
			t.Fatalf("the count did not pass %s", point)
		}
		d.stopNow()
		d.reopen()
		d.stage()
		check(t, d.device(), data, 0)
		d.unstage()
		d.wantOrigin(point, data)
	}
	d.remove()
}

// reopen starts the node's plugin.
func (d *disk) reopen() {
	d.m.t.Helper()
	n, err := openNode(d.m.t.Context(), d.n.dir, onOneSSD(), d.rec)
	mustPass(d.m.t, "restart", err)
	d.n = n
}

// TestKernelEarlierVersion: what a version before has left, which knew no activations, is
// used again and recovered.
func TestKernelEarlierVersion(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "earlier", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	data := pattern(1, 4*mib)
	d.stage()
	d.fill(data)
	d.unstage()
	d.forgetActivation()
	d.stage()
	if st, found := d.cache(); !found || st.CacheUsed == 0 {
		t.Errorf("the retained cache is not used: %+v", st)
	}
	check(t, d.device(), data, 0)
	data = pattern(2, 4*mib)
	d.fill(data)
	d.forgetActivation()
	d.stage() // a new plugin adopts it
	d.stopNow()
	d.reopen()
	mustPass(t, "repair", d.n.Repair(t.Context()))
	d.wantOrigin("recovered", data)
	d.stage()
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// forgetActivation makes journal, tags and record those of a version before.
func (d *disk) forgetActivation() {
	t := d.m.t
	t.Helper()
	id := string(d.req.ID)
	e, err := d.n.Journal.Load(id)
	mustPass(t, "journal", err)
	e.ActivationID, e.ActivationCount = "", 0
	mustPass(t, "journal", d.n.Journal.Save(id, e))
	vg := pool.VolumeGroup(nodeName)
	lvs, err := d.n.LVM.LVs(t.Context(), vg)
	mustPass(t, "logical volumes", err)
	for _, lv := range lvs {
		for _, tag := range lv.Tags {
			for _, prefix := range []string{"nearflash.activation=", "nearflash.count=", "nearflash.stop="} {
				if strings.HasPrefix(tag, prefix) {
					mustPass(t, "tags", d.n.LVM.ChangeTags(t.Context(), vg, nil, []string{tag}, lv.Name))
				}
			}
		}
	}
	mustPass(t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error {
		r.Volume.Activation, r.Volume.Pending = volume.Activation{}, volume.Activation{}
		return nil
	}))
}

// trustName: a node serves what an image of its disks has (Whose disks these are).
func trustName(t *testing.T, m *machine, name string) checker.Report {
	w := newWatched(t, m, name, volume.ModeWritethrough)
	w.ask(from(volume.WarmOff))
	r := seeded()
	w.use()
	w.warm(w.load(r))
	w.leave()
	old := m.takeImage(w.a, nodeName, ssdOne)
	w.use()
	w.write(w.load(r), 500*time.Millisecond)
	w.leave()
	old.putBack(m, w.a)
	w.restart()
	w.use()
	report := w.judge(checker.LossNothing)
	w.leave()
	w.end()
	return report
}

// restoreNode: the node's disks come back from an image that was taken while the volume
// was there, or in use.
func (c *campaign) restoreNode() {
	name, _ := c.here()
	ssd := map[string]string{nodeName: ssdOne, otherName: ssdTwo}[name]
	c.whole()
	rest := c.r.IntN(2) == 0
	if rest {
		c.leave()
	}
	old := c.m.takeImage(c.n, name, ssd)
	if rest {
		c.use()
	}
	c.write(c.load(c.r), 500*time.Millisecond)
	c.leave()
	old.putBack(c.m, c.n)
	c.restart()
	c.repairSometimes()
	c.again(checker.LossNothing)
	c.write(c.load(c.r), 200*time.Millisecond)
	c.must(checker.LossNothing)
}
