//go:build kernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	appnode "github.com/nearflash/nearflash/pkg/app/node"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/rescue"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// rescued is what nearflash-node rescue says with the given flags.
func (d *disk) rescued(args ...string) (string, error) {
	d.m.t.Helper()
	return rescueCommand(d.m.t.Context(), append([]string{"--temp-dir", d.m.t.TempDir()}, args...)...)
}

func rescueCommand(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := appnode.Rescue{Out: &out}
	fs := flag.NewFlagSet("rescue", flag.ContinueOnError)
	cmd.AddFlags(fs)
	if err := fs.Parse(append([]string{"--pool-devices", ssdOne}, args...)); err != nil {
		return "", err
	}
	err := cmd.Run(ctx)
	return out.String(), err
}

// content is all of a device.
func content(t *testing.T, path string, size int64) []byte {
	t.Helper()
	f := openDirect(t, path)
	defer func() { _ = f.Close() }()
	b := aligned(size)
	_, err := f.ReadAt(b, 0)
	mustPass(t, "read "+path, err)
	return b
}

// powerCut leaves the SSD as a node leaves it whose power fails: nothing of the
// kernel's memory reaches it. The journal stays, on the node's own disk. The caller
// has cut the origin off, or the cache would be cleaned meanwhile.
func (d *disk) powerCut() {
	t := d.m.t
	t.Helper()
	lvs, err := d.n.raw.LVs(t.Context(), pool.VolumeGroup(nodeName))
	mustPass(t, "lvs", err)
	// Nobody writes to the SSD while it is copied: the copy is of one moment.
	for _, lv := range lvs {
		d.m.must("dmsetup", "suspend", "--noflush", "--nolockfs", "--major", fmt.Sprint(lv.Major), "--minor", fmt.Sprint(lv.Minor))
	}
	d.m.must("dd", "if="+ssdOne, "of="+ssdTwo, "bs=4M", "iflag=direct", "oflag=direct", "conv=fsync")
	for _, lv := range lvs {
		d.m.must("dmsetup", "resume", "--major", fmt.Sprint(lv.Major), "--minor", fmt.Sprint(lv.Minor))
	}
	for _, suffix := range []string{"", ".data", ".origin"} {
		mustPass(t, "remove", d.n.DM.Remove(t.Context(), "nf-"+string(d.req.ID)+suffix))
	}
	mustPass(t, "rest", d.n.LVM.Rest(t.Context(), pool.VolumeGroup(nodeName), layout.MetaLV(d.req.ID), layout.DataLV(d.req.ID)))
	if d.origin == nil { // of another driver the machine has the disk again
		mustPass(t, "log out", d.n.Transport.Disconnect(t.Context(), d.target()))
	}
	d.m.must("vgchange", "--devices", ssdOne, "--activate", "n", pool.VolumeGroup(nodeName))
	d.m.must("dd", "if="+ssdTwo, "of="+ssdOne, "bs=4M", "iflag=direct", "oflag=direct", "conv=fsync")
	d.m.must("dd", "if=/dev/zero", "of="+ssdTwo, "bs=4M", "count=1", "oflag=direct", "conv=fsync")
}

func (d *disk) target() transport.Target {
	s := d.req.Publication.Source
	return transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: s.Portals, IQN: s.IQN, LUN: s.LUN}}}
}

// connected attaches the volume's origin for a moment.
func (d *disk) connected(use func(path string)) {
	t := d.m.t
	t.Helper()
	i := iscsi.New(d.m.run, iscsi.Config{})
	o, err := i.Connect(t.Context(), d.target(), &volume.Credentials{Username: chapUser, Password: chapWord})
	mustPass(t, "connect", err)
	use(o.Paths[0])
	mustPass(t, "disconnect", i.Disconnect(t.Context(), d.target()))
}

// TestKernelRescueLate: the volume has had another owner since. A rescue without the
// cluster is told so by the LUN, and writes nothing.
func TestKernelRescueLate(t *testing.T) {
	const size = 32 * mib
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	d := m.volume(n, "late", size, cached(volume.ModeWriteback, 16*mib))
	d.req.Block = true
	d.stage()
	d.writeDirty(d.device(), pattern(1, 8*mib))
	d.powerCut()
	d.publish(2)
	d.connected(func(origin string) {
		newer := pattern(77, size)
		write(t, origin, newer, 0, true)
		_, err := d.rescued("--volume", "late", "--origin", origin)
		if !errors.Is(err, rescue.ErrRefused) || !strings.Contains(err.Error(), "generation 2") {
			t.Errorf("rescue over a later owner's data: %v", err)
		}
		if !bytes.Equal(content(t, origin, size), newer) {
			t.Error("the rescue wrote over a later owner's data")
		}
	})
	d.stage() // the owner of now gives up what is older
	check(t, d.device(), pattern(77, size), 0)
	d.unstage()
	d.remove()
}

// TestKernelRescue: the writes of a node that lost its power are brought to the origin
// from its SSD alone, byte for byte, by a command that refuses what would do harm; and
// whatever comes of the node afterwards, they are never written a second time.
func TestKernelRescue(t *testing.T) {
	const size = 64 * mib
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	spec := cached(volume.ModeWriteback, 32*mib)
	spec.ChunkBytes = 96 << 10 // the volume ends in a part of a chunk
	d := m.volume(n, "lost", size, spec)
	d.req.Block = true
	d.stage()
	write(t, d.device(), pattern(1, size), 0, true)
	for pass := range uint64(20) {
		write(t, d.device(), pattern(2+pass, 24*mib), 0, true)
	}
	write(t, d.device(), pattern(99, mib), size-mib, true)
	d.m.must("dmsetup", "wipe_table", "nf-lost.origin")
	st, _ := d.cache()
	if st.Dirty == 0 {
		t.Fatal("nothing is dirty")
	}
	want := pattern(1, size)
	copy(want, pattern(21, 24*mib))
	copy(want[size-mib:], pattern(99, mib))
	if out, err := d.rescued(); err != nil || !strings.Contains(out, "active") {
		t.Errorf("list of a running node: %v\n%s", err, out)
	}
	d.powerCut()

	out, err := d.rescued()
	t.Logf("%d blocks were dirty\n%s", st.Dirty, out)
	if err != nil || !strings.Contains(out, "dirty (unclean stop)") || !strings.Contains(out, "lost ") {
		t.Errorf("list: %v\n%s", err, out)
	}
	d.connected(func(origin string) {
		before := content(t, origin, size)
		if bytes.Equal(before, want) {
			t.Fatal("the origin had everything: the test proves nothing")
		}
		d.refusals(origin)
		out, err := d.rescued("--volume", "lost", "--origin", origin, "--dry-run")
		if err != nil || !strings.Contains(out, "nothing was written") {
			t.Errorf("dry run: %v\n%s", err, out)
		}
		if !bytes.Equal(content(t, origin, size), before) {
			t.Error("a refusal or the dry run wrote to the origin")
		}
	})
	if out, err := d.rescued(); err != nil || !strings.Contains(out, "dirty (unclean stop)") {
		t.Errorf("list after the dry run: %v\n%s", err, out)
	}

	d.connected(func(origin string) {
		if !d.killAt("rescue.written", order{Rescue: origin}) {
			t.Error("the rescue did not pass its fault point")
		}
		if !bytes.Equal(content(t, origin, size), want) {
			t.Error("the origin is not what the pod had written, after a rescue that was killed")
		}
	})
	if out, err := d.rescued(); err != nil || !strings.Contains(out, "dirty (unclean stop)") {
		t.Errorf("list after a rescue that was killed: %v\n%s", err, out)
	}

	chap := filepath.Join(t.TempDir(), "chap")
	mustPass(t, "chap", os.WriteFile(chap, []byte(chapUser+"\n"+chapWord+"\n"), 0o600))
	s := d.req.Publication.Source
	remote := []string{"--volume", "lost", "--portal", s.Portals[0], "--iqn", s.IQN, "--lun", fmt.Sprint(s.LUN), "--chap-file", chap, "--generation", "1"}
	out, err = d.rescued(remote...)
	mustPass(t, "rescue", err)
	t.Log(out)
	used := pattern(77, 8*mib)
	d.connected(func(origin string) {
		if !bytes.Equal(content(t, origin, size), want) {
			t.Error("the origin is not what the pod had written")
		}
		// Somebody uses the volume now.
		write(t, origin, used, 0, true)
	})
	if out, err := d.rescued(remote...); !errors.Is(err, rescue.ErrRefused) || !strings.Contains(err.Error(), "rescued") {
		t.Errorf("a second rescue: %v\n%s", err, out)
	}
	// The node is back after all, with its journal, and the record knows nothing.
	d.unstage()
	copy(want, used)
	d.connected(func(origin string) {
		if !bytes.Equal(content(t, origin, size), want) {
			t.Error("the node that came back has flushed its cache again")
		}
	})
	if rec, err := d.rec.load(d.req.ID); err != nil || rec.Volume.PossiblyDirty {
		t.Errorf("the record says possibly dirty %t, %v", rec.Volume.PossiblyDirty, err)
	}
	d.stage()
	if !bytes.Equal(content(t, d.device(), size), want) {
		t.Error("the volume has other data when it is staged again")
	}
	d.unstage()
	d.remove()
}

// refusals are tried on the true origin, of which nothing may change.
func (d *disk) refusals(origin string) {
	t := d.m.t
	t.Helper()
	refused := func(what, word string, err error) {
		t.Helper()
		if !errors.Is(err, rescue.ErrRefused) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want a refusal with %q", what, err, word)
		}
	}
	_, err := d.rescued("--volume", "lost", "--origin", origin, "--generation", "2")
	refused("another generation", "generation 1", err)
	_, err = d.rescued("--volume", "lost", "--origin", ssdTwo)
	refused("a larger device", "say so if it was expanded", err)
	small, err := d.n.DM.Create(t.Context(), "small", "NEARFLASH-test-small", devmapper.LinearTable(2048, blockNumber(t, ssdTwo)))
	mustPass(t, "small", err)
	_, err = d.rescued("--volume", "lost", "--origin", small.DevPath())
	refused("a small device", "it is not the origin", err)
	mustPass(t, "remove", d.n.DM.Remove(t.Context(), "small"))
	_, err = d.n.DM.Create(t.Context(), "held", "NEARFLASH-test-held", devmapper.LinearTable(2048, blockNumber(t, origin)))
	mustPass(t, "held", err)
	_, err = d.rescued("--volume", "lost", "--origin", origin)
	refused("a device in use", "is in use", err)
	mustPass(t, "remove", d.n.DM.Remove(t.Context(), "held"))
	if _, err := d.rescued("--volume", "other", "--origin", origin); !errors.Is(err, rescue.ErrNotFound) {
		t.Errorf("another volume: %v", err)
	}

	l := lvm.New(d.m.run, t.TempDir())
	l.SetDevices([]string{ssdOne})
	r := &rescue.Rescuer{
		DM: d.n.DM, LVM: l, Tools: cachetools.Tools{Run: d.m.run}, VG: pool.VolumeGroup(nodeName), Records: d.rec, Dir: t.TempDir(), Now: time.Now,
	}
	for word, change := range map[string]func(*volume.Volume){
		"newer data":   func(v *volume.Volume) { v.Fence.Generation, v.Fence.Node = 2, "elsewhere" },
		"another one":  func(v *volume.Volume) { v.Fence.UID = "x" },
		"were flushed": func(v *volume.Volume) { v.PossiblyDirty = false },
	} {
		kept, err := d.rec.load(d.req.ID)
		mustPass(t, "record", err)
		mustPass(t, "change", d.rec.update(d.req.ID, func(rec *fileRecord) error { change(&rec.Volume); return nil }))
		_, err = r.Rescue(t.Context(), rescue.Request{Volume: d.req.ID, Origin: origin})
		refused("a record", word, err)
		mustPass(t, "record", d.rec.store(d.req.ID, kept))
	}
	if _, err := r.Rescue(t.Context(), rescue.Request{Volume: d.req.ID, Origin: origin, DryRun: true}); err != nil {
		t.Errorf("dry run with the record as it is: %v", err)
	}
}

func blockNumber(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	mustPass(t, "stat", unix.Stat(path, &st))
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
}
