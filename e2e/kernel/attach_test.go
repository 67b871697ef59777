//go:build kernel

package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

func cached(mode volume.CacheMode, cacheBytes int64) volume.Spec {
	s := volume.Spec{Mode: mode}
	if mode != volume.ModeNone {
		s.Cache = volume.Size{Bytes: cacheBytes}
	}
	return s
}

// TestKernelLifecycle is provision, use, expand, restart, delete for every mode
// and every kind of volume.
func TestKernelLifecycle(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	i := 0
	for j, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback} {
		for k, kind := range []string{"ext4", "xfs", "block"} {
			if j != k && !every() {
				continue // each mode once, and each kind
			}
			i++
			name := fmt.Sprintf("vol-%d", i)
			t.Run(string(mode)+"/"+kind, func(t *testing.T) {
				m.t = t
				size := 128 * mib
				if kind == "xfs" {
					size = 320 * mib // the least that mkfs.xfs makes is 300 MiB
				}
				d := m.volume(n, name, size, cached(mode, 64*mib))
				d.req.Block, d.req.FSType = kind == "block", kind
				if d.req.Block {
					d.req.FSType = ""
				}
				d.lifecycle(mode)
				d.remove()
			})
		}
	}
	m.t = t
}

func (d *disk) lifecycle(mode volume.CacheMode) {
	t := d.m.t
	ctx := t.Context()
	d.stage()
	d.stage() // again: idempotent
	if _, found := d.cache(); found != (mode != volume.ModeNone) {
		t.Errorf("cached = %t in mode %s", found, mode)
	}
	published := filepath.Join(d.n.dir, "published-"+string(d.req.ID))
	pub := volume.PublishRequest{ID: d.req.ID, StagingPath: d.req.StagingPath, TargetPath: published, Block: d.req.Block, FSType: d.req.FSType}
	mustPass(t, "publish", d.n.Publish(ctx, pub))
	mustPass(t, "publish again", d.n.Publish(ctx, pub))
	file := published
	if !d.req.Block {
		file = filepath.Join(published, "data")
		mustPass(t, "create", os.WriteFile(file, make([]byte, 8*mib), 0o600))
	}
	data := pattern(1, 4*mib)
	write(t, file, data, mib, true)
	check(t, file, data, mib)

	_, err := d.m.svc.ExpandVolume(ctx, string(d.req.ID), d.size+64*mib)
	mustPass(t, "expand on the server", err)
	size, err := d.n.Expand(ctx, volume.ExpandRequest{ID: d.req.ID, Path: published, Block: d.req.Block})
	mustPass(t, "expand", err)
	st, err := d.n.Stats(ctx, d.req.ID, published)
	mustPass(t, "stats", err)
	if size < d.size+64*mib || st.TotalBytes < d.size || st.Abnormal || (d.req.Block && st.TotalBytes != size) {
		t.Errorf("after the expansion to %d: size %d, stats %+v", d.size+64*mib, size, st)
	}
	check(t, file, data, mib)

	mustPass(t, "unpublish", d.n.Unpublish(ctx, d.req.ID, published))
	mustPass(t, "unpublish again", d.n.Unpublish(ctx, d.req.ID, published))
	d.unstage()
	d.unstage()
	if left := d.m.leaks(); mode == volume.ModeNone && len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	d.stage()
	mustPass(t, "publish", d.n.Publish(ctx, pub))
	check(t, file, data, mib)
	mustPass(t, "unpublish", d.n.Unpublish(ctx, d.req.ID, published))
	d.unstage()
}

// TestKernelAbandonedIsTold: of writes that were abandoned, volume and claim are told when
// the volume is staged, and the first pod when it has the volume; the second pod is not.
func TestKernelAbandonedIsTold(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "told", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	ctx, id := t.Context(), d.req.ID
	mustPass(t, "give up", d.rec.update(id, func(rec *fileRecord) error { rec.Volume.Abandoned = true; return nil }))
	want := func(pods ...string) {
		t.Helper()
		rec, err := d.rec.load(id)
		mustPass(t, "read the record", err)
		if !slices.Equal(rec.Told, pods) {
			t.Errorf("told were %q, want %q", rec.Told, pods)
		}
	}
	d.stage()
	want("")
	for i, pod := range []string{"db-0", "db-0", "db-1"} {
		mustPass(t, "publish", d.n.Publish(ctx, volume.PublishRequest{
			ID: id, StagingPath: d.req.StagingPath, TargetPath: filepath.Join(d.n.dir, pod), Block: true, Pod: volume.Pod{Name: pod},
		}))
		if i == 0 {
			want("", "db-0")
		}
	}
	want("", "db-0")
	for _, pod := range []string{"db-0", "db-1"} {
		mustPass(t, "unpublish", d.n.Unpublish(ctx, id, filepath.Join(d.n.dir, pod)))
	}
	d.unstage()
	d.stage() // nothing to tell any more
	want("", "db-0")
	d.unstage()
	d.remove()
}

// TestKernelWarmRestart: what was hot before unstage is served by the SSD after
// the next stage on the same node, and by nothing stale after another owner (I3).
func TestKernelWarmRestart(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "warm", 256*mib, cached(volume.ModeWritethrough, 64*mib))
	d.req.Block = true
	d.stage()
	const set = 16 * mib
	write(t, d.device(), pattern(2, set), 0, true)
	d.heat(set)
	d.unstage()
	if rec, err := d.rec.load(d.req.ID); err != nil || rec.RetainedCache == nil || rec.RetainedCache.Generation != 1 {
		t.Fatalf("no retained cache is recorded: %+v, %v", rec, err)
	}
	d.stage()
	if rate := d.hitRate(1000, set); rate < 0.95 {
		t.Errorf("hit rate of the first 1000 reads after the restart: %.3f", rate)
	}
	check(t, d.device(), pattern(2, set), 0)
	d.unstage()

	d.publish(2) // another node had it meanwhile, and wrote
	newer := pattern(3, set)
	d.writeElsewhere(newer)
	d.stage()
	// udev reads a little of every new device, which may be cached already.
	st, found := d.cache()
	if !found || int64(st.CacheUsed*st.ChunkSectors*512) > set/2 {
		t.Errorf("a cache of a former generation was used: %+v", st)
	}
	check(t, d.device(), newer, 0)
	d.unstage()
	d.remove()
}

// writeElsewhere writes to the volume as another node would: past this node's
// cache.
func (d *disk) writeElsewhere(data []byte) {
	d.m.t.Helper()
	ctx := d.m.t.Context()
	at := d.target()
	o, err := d.n.Transport.Connect(ctx, at, &volume.Credentials{Username: chapUser, Password: chapWord})
	mustPass(d.m.t, "connect", err)
	write(d.m.t, o.Paths[0], data, 0, true)
	mustPass(d.m.t, "disconnect", d.n.Transport.Disconnect(ctx, at))
}

// heat reads until nearly all reads hit.
func (d *disk) heat(set int64) {
	d.m.t.Helper()
	rate := 0.0
	for pass := uint64(0); pass < 60; pass++ {
		before, _ := d.cache()
		reads(d.m.t, d.device(), pass, 2000, set)
		after, _ := d.cache()
		if rate = ratio(before.ReadHits, before.ReadMisses, after.ReadHits, after.ReadMisses); rate >= 0.995 {
			return
		}
	}
	d.m.t.Fatalf("the working set does not get hot: hit rate %.3f", rate)
}

func (d *disk) hitRate(n int, set int64) float64 {
	before, _ := d.cache()
	reads(d.m.t, d.device(), 99, n, set)
	after, _ := d.cache()
	return ratio(before.ReadHits, before.ReadMisses, after.ReadHits, after.ReadMisses)
}

func ratio(hits0, misses0, hits1, misses1 uint64) float64 {
	h, m := float64(hits1-hits0), float64(misses1-misses0)
	if h+m == 0 {
		return 0
	}
	return h / (h + m)
}

// TestKernelPoolFull: the oldest retained cache makes room, and when none is left the
// volume is attached uncached (I6).
func TestKernelPoolFull(t *testing.T) {
	m := newMachine(t)
	copies := lvmCopies(t)
	n := m.node(t.TempDir(), onOneSSD()) // 1 GiB
	var disks []*disk
	for i := range 4 {
		d := m.volume(n, fmt.Sprintf("full-%d", i), 512*mib, cached(volume.ModeWritethrough, 300*mib))
		d.req.Block = true
		disks = append(disks, d)
	}
	for _, d := range disks[:2] {
		d.stage()
		d.unstage()
	}
	disks[2].stage()
	disks[3].stage() // evicts full-0
	disks[3].wantReport(v1alpha1.ReasonCacheActive)
	lvs, err := n.LVM.LVs(t.Context(), pool.VolumeGroup(nodeName))
	mustPass(t, "lvs", err)
	names := map[string]bool{}
	for _, lv := range lvs {
		names[lv.Name] = true
	}
	if names["full-0.data"] || !names["full-1.data"] {
		t.Errorf("the oldest retained cache should have gone, the next should be left: %v", names)
	}
	disks[0].stage() // evicts full-1
	disks[0].wantReport(v1alpha1.ReasonCacheActive)
	disks[1].stage() // nothing left to evict
	disks[1].wantReport(v1alpha1.ReasonPoolFull)
	data := pattern(3, mib)
	write(t, disks[1].device(), data, 0, true)
	check(t, disks[1].device(), data, 0)
	for _, d := range disks {
		d.unstage()
		d.remove()
	}
	if more := lvmCopies(t); !slices.Equal(more, copies) {
		t.Errorf("LVM keeps copies of the pool's metadata: %q, before %q", more, copies)
	}
}

// lvmCopies are the files in which LVM keeps older metadata of the node's pool.
func lvmCopies(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/etc/lvm/*/" + pool.VolumeGroup(nodeName) + "*")
	mustPass(t, "copies", err)
	return files
}

// TestKernelUncached: without a pool a volume works all the same (I6).
func TestKernelUncached(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), v1alpha1.CachePoolSpec{})
	d := m.volume(n, "plain", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.stage()
	d.wantReport(v1alpha1.ReasonPoolMissing)
	d.unstage()
	d.remove()
}

// TestKernelFenced: a node whose generation the record has left behind attaches
// nothing (I1).
func TestKernelFenced(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "fenced", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	stale := d.req
	d.publish(2)
	if err := n.Stage(t.Context(), stale); !errors.Is(err, volume.ErrFenced) {
		t.Errorf("stage with generation 1 of 2: %v, want ErrFenced", err)
	}
	d.remove()
}

// TestKernelWrongSecret: a wrong CHAP secret is an error of its own, and leaves
// nothing once the volume is not wanted here any more, although the kubelet does
// not unstage what it could not stage.
func TestKernelWrongSecret(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "secret", 64*mib, cached(volume.ModeNone, 0))
	d.req.Block = true
	good := d.req.Credentials
	d.req.Credentials = &volume.Credentials{Username: chapUser, Password: "some-other-word"}
	if err := n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrAuth) {
		t.Errorf("stage with a wrong secret: %v, want ErrAuth", err)
	}
	published := func(p bool) {
		mustPass(t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error { r.Volume.Published = p; return nil }))
	}
	mustPass(t, "repair", n.Repair(t.Context()))
	if _, err := n.Journal.Load(string(d.req.ID)); err != nil {
		t.Errorf("repair took a volume away that is still wanted: %v", err)
	}
	published(false)
	mustPass(t, "repair", n.Repair(t.Context()))
	if _, err := n.Journal.Load(string(d.req.ID)); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("the journal of a volume that is not wanted: %v, want ErrNotFound", err)
	}
	published(true)
	d.req.Credentials = good
	d.stage()
	d.unstage()
	d.remove()
}

// TestKernelMultipath: two portals make two paths under one device, which works
// on when a path fails, and grows.
func TestKernelMultipath(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "paths", 64*mib, cached(volume.ModeWritethrough, 32*mib))
	d.req.Block = true
	d.stage()
	o, found, err := n.Transport.Lookup(t.Context(), d.target())
	if err != nil || !found || len(o.Paths) != 2 {
		t.Fatalf("paths: %+v, %t, %v", o, found, err)
	}
	data := pattern(5, mib)
	write(t, d.device(), data, 0, true)
	_, err = m.svc.ExpandVolume(t.Context(), "paths", 96*mib)
	mustPass(t, "expand on the server", err)
	size, err := n.Expand(t.Context(), volume.ExpandRequest{ID: d.req.ID, Path: d.device(), Block: true})
	if err != nil || size != 96*mib {
		t.Errorf("expand: %d, %v", size, err)
	}
	mustPass(t, "fail a path", os.WriteFile("/sys/block/"+filepath.Base(o.Paths[0])+"/device/state", []byte("offline\n"), 0))
	write(t, d.device(), data, 64*mib, true)
	check(t, d.device(), data, 64*mib)
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// TestKernelDeadPortal: a portal that nobody serves costs time and not the stage.
func TestKernelDeadPortal(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "dead", 64*mib, cached(volume.ModeNone, 0))
	d.req.Block = true
	d.req.Publication.Source.Portals = append(d.req.Publication.Source.Portals, "127.0.0.1:3299")
	d.stage()
	data := pattern(5, mib)
	write(t, d.device(), data, 0, true)
	check(t, d.device(), data, 0)
	d.unstage()
	d.remove()
}

// TestKernelSuperseded: a node that comes to unstage when the record has a newer
// owner must not write its dirty blocks over that owner's (I3).
func TestKernelSuperseded(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "late", 64*mib, cached(volume.ModeWriteback, 32*mib))
	d.req.Block = true
	d.stage()
	d.writeDirty(d.device(), pattern(7, 4*mib))
	o, found, err := n.Transport.Lookup(t.Context(), d.target())
	if err != nil || !found {
		t.Fatal(found, err)
	}
	newer := pattern(8, 4*mib)
	write(t, o.Paths[0], newer, 0, true)
	d.publish(2)
	d.unstage()
	d.stage()
	check(t, d.device(), newer, 0)
	d.unstage()
	d.remove()
}

// TestKernelFormat: only a blank device is formatted, and an mkfs.xfs that was
// interrupted is not taken for a filesystem: it is repeated if the record says that one
// was under way, and an error otherwise.
func TestKernelFormat(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "format", 320*mib, cached(volume.ModeNone, 0))
	d.req.Block = true
	d.stage()
	m.must("mkfs.ext4", "-q", "-F", d.device())
	uuid := m.must("blkid", "-p", "-s", "UUID", "-o", "value", d.device())
	d.unstage()
	d.req.Block, d.req.FSType = false, "xfs"
	if err := n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("stage of an ext4 volume as xfs: %v, want ErrInvalid", err)
	}
	if got := m.must("blkid", "-p", "-s", "UUID", "-o", "value", d.device()); got != uuid {
		t.Errorf("the filesystem was changed: %q, was %q", got, uuid)
	}
	d.unstage()

	d.req.Block = true
	d.stage()
	m.must("mkfs.xfs", "-q", "-f", d.device())
	const sector, inProgress = 512, 126 // sb_inprogress, which mkfs clears last
	head := aligned(4096)
	f := openDirect(t, d.device())
	_, err := f.ReadAt(head, 0)
	mustPass(t, "read", err)
	mustPass(t, "close", f.Close())
	head[inProgress] = 1
	write(t, d.device(), head, 0, true)
	d.unstage()
	d.req.Block = false
	for _, state := range []volume.Formatted{volume.FormatNever, volume.FormatDone} {
		d.filesystem(state)
		if err := n.Stage(t.Context(), d.req); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("stage of half an XFS, of which the record says %q: %v, want ErrInvalid", state, err)
		}
	}
	d.filesystem(volume.FormatBegun)
	d.stage()
	mustPass(t, "write", os.WriteFile(filepath.Join(d.req.StagingPath, "x"), make([]byte, sector), 0o600))
	d.unstage()
	d.remove()
}
