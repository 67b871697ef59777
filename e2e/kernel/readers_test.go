//go:build kernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// readBy has this node and another one read the volume, under a generation, as the controller does.
func (d *disk) readBy(generation int64) {
	d.m.t.Helper()
	ctx := d.m.t.Context()
	mustPass(d.m.t, "shut out", d.m.svc.UnexportVolume(ctx, string(d.req.ID), "", ""))
	var c target.Connection
	for _, who := range []string{initiatorB, d.m.initiator} {
		var err error
		c, err = d.m.svc.ExportVolumeReadOnly(ctx, string(d.req.ID), who, target.Account{Username: chapUser, Password: chapWord}, generation)
		mustPass(d.m.t, "admit "+who, err)
	}
	mustPass(d.m.t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error {
		r.Volume.Fence.Generation, r.Volume.Fence.Node = generation, volume.Readers
		r.Volume.Published, r.Volume.Readers = true, []string{"other", nodeName}
		d.req.Publication.Fence = r.Volume.For(nodeName).Fence
		return nil
	}))
	d.req.ReadOnly = true
	d.req.Publication.Source = volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals[:1], IQN: c.IQN, LUN: int(c.LUN)}}
}

// writeBy has this node write again.
func (d *disk) writeBy(generation int64) {
	d.m.t.Helper()
	mustPass(d.m.t, "shut out", d.m.svc.UnexportVolume(d.m.t.Context(), string(d.req.ID), "", ""))
	mustPass(d.m.t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error {
		r.Volume.Fence.Node, r.Volume.Readers = nodeName, nil
		return nil
	}))
	d.req.ReadOnly = false
	d.publish(generation)
}

// file is one on the staged filesystem.
func (d *disk) file() string { return filepath.Join(d.req.StagingPath, "model") }

func (d *disk) wantFile(want []byte) {
	d.m.t.Helper()
	got, err := os.ReadFile(d.file())
	if err != nil || !bytes.Equal(got, want) {
		d.m.t.Errorf("the file is another one (%d bytes, %v)", len(got), err)
	}
}

// TestKernelReaders: a volume that one node has written is read by two at a time, through the cache of
// each, and by nobody written; a writer is refused meanwhile. Who reads again finds the cache that it has
// kept; who writes after that is not kept from it, and what was cached is stale then.
func TestKernelReaders(t *testing.T) {
	m := newMachine(t, portal, secondPortal)
	n := m.node(t.TempDir(), onOneSSD())
	other := m.initiatorAs(initiatorB)
	for i, fs := range []string{"ext4", "xfs"} {
		spec := cached(volume.ModeWriteback, 32*mib)
		spec.AcceptNodeLoss = true
		d := m.volume(n, "readers-"+fs, 320*mib, spec)
		d.req.FSType = fs
		d.stage()
		model := pattern(uint64(i), 16*mib)
		mustPass(t, "write", os.WriteFile(d.file(), model, 0o600))
		d.unstage()
		d.readBy(2)
		d.stage()
		d.wantFile(model)
		if err := os.WriteFile(d.file(), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: a reader writes: %v", fs, err)
		}
		at := transport.Target{Source: d.req.Publication.Source}
		at.Portals = []string{secondPortal}
		o, err := other.Connect(t.Context(), at, d.req.Credentials)
		mustPass(t, "the other reader", err)
		checkSame(t, d.device(), o.Paths[0])
		var exported *target.ExportedError
		if _, err := m.svc.ExportVolume(t.Context(), string(d.req.ID), m.initiator, target.Account{Username: chapUser, Password: chapWord}, 3); !errors.As(err, &exported) {
			t.Errorf("a writer beside readers: %v", err)
		}
		d.warm()
		d.unstage()
		d.stage()
		if st, found := d.cache(); !found || st.CacheUsed == 0 || st.Dirty > 0 {
			t.Errorf("%s: the cache that was kept has %+v, %v", fs, st, found)
		}
		d.wantFile(model)
		d.unstage()
		checkReads(t, o.Paths[0])
		mustPass(t, "the other reader leaves", other.Disconnect(t.Context(), at))

		d.writeBy(3)
		d.stage()
		d.wantFile(model)
		model = pattern(uint64(i+10), 16*mib)
		mustPass(t, "write", os.WriteFile(d.file(), model, 0o600))
		d.unstage()
		d.readBy(4)
		d.stage()
		d.wantFile(model)
		d.unstage()
		d.remove()
	}
}

// warm reads the device until the cache answers.
func (d *disk) warm() {
	d.m.t.Helper()
	for range 200 {
		if st, _ := d.cache(); st.ReadHits > 0 && st.CacheUsed > 0 {
			return
		}
		reads(d.m.t, d.device(), 1, 64, 16*mib)
	}
	d.m.t.Fatalf("the cache of a reader answers nothing")
}

// checkSame compares the first MiBs of two devices.
func checkSame(t *testing.T, a, b string) {
	t.Helper()
	buf := aligned(4 * mib)
	f, err := blockdev.OpenDirect(a)
	mustPass(t, "open", err)
	_, err = f.ReadAt(buf, 0)
	mustPass(t, "read", errors.Join(err, f.Close()))
	check(t, b, buf, 0)
}

// checkReads reads from a device past the page cache.
func checkReads(t *testing.T, device string) {
	t.Helper()
	f, err := blockdev.OpenDirect(device)
	mustPass(t, "open", err)
	_, err = f.ReadAt(aligned(4096), 0)
	mustPass(t, "the other reader reads on", errors.Join(err, f.Close()))
}

// TestKernelReadersOfUncleanFilesystem: what was cut below a pod has a journal to recover. Many cannot read
// it, and the error says what can be done; with the mount option that leaves the journal alone, they can.
func TestKernelReadersOfUncleanFilesystem(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	for fs, option := range map[string]string{"ext4": "noload", "xfs": "norecovery"} {
		d := m.volume(n, "unclean-"+fs, 320*mib, cached(volume.ModeWritethrough, 32*mib))
		d.req.FSType = fs
		d.stage()
		mustPass(t, "write", os.WriteFile(d.file(), pattern(1, mib), 0o600))
		d.unstage() // what is in the journal alone is not shown without it
		d.stage()
		mustPass(t, "write", os.WriteFile(d.file()+"-2", pattern(2, mib), 0o600))
		m.must("sync", d.file()+"-2")
		c := m.cloneOf(d)
		d.unstage()
		c.readBy(2)
		err := n.Stage(t.Context(), c.req)
		if err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: stage of a filesystem with a journal to recover: %v; want an error that names %s", fs, err, option)
		}
		c.req.MountOptions = []string{option}
		c.stage()
		c.wantFile(pattern(1, mib))
		c.unstage()
		c.remove()
		d.remove()
		mustPass(t, "delete", m.svc.DeleteSnapshot(context.WithoutCancel(t.Context()), "cut-"+fs, ""))
	}
}

// cloneOf cuts a volume below its pod and makes another one of that.
func (m *machine) cloneOf(d *disk) *disk {
	m.t.Helper()
	ctx, cut := m.t.Context(), "cut-"+d.req.FSType
	_, err := m.svc.CreateSnapshot(ctx, target.SnapshotRequest{Name: cut, Volume: string(d.req.ID), Hold: "hold-1"})
	mustPass(m.t, "cut", err)
	mustPass(m.t, "accept", m.svc.AcceptSnapshot(ctx, cut, "hold-1"))
	c := &disk{m: m, n: d.n, rec: d.rec, req: d.req, size: d.size}
	c.req.ID = volume.ID("clone-" + d.req.FSType)
	c.req.StagingPath += "-clone"
	_, err = m.svc.CreateVolumeFromSnapshot(ctx, string(c.req.ID), c.size, target.Thin, cut)
	mustPass(m.t, "clone", err)
	rec, err := d.rec.load(d.req.ID)
	mustPass(m.t, "record", err)
	rec.Volume.ID, rec.Volume.Fence.UID, rec.Volume.Fence.Generation = c.req.ID, "uid-"+string(c.req.ID), 0
	rec.Volume.Activation, rec.Volume.Pending = volume.Activation{}, volume.Activation{}
	mustPass(m.t, "record", c.rec.store(c.req.ID, rec))
	return c
}
