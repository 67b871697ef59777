//go:build kernel

package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/mount"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/volume"
)

const staticSize = 64 * mib

// static records a LUN that nearflash did not make, published to the node.
func (l *lun) static(n *node, mode volume.CacheMode, portals ...string) *disk {
	l.m.t.Helper()
	d := &disk{m: l.m, n: n, rec: fileRecords{filepath.Join(n.dir, "records")}, size: staticSize}
	id := volume.ID(l.name)
	spec := cached(mode, 32*mib)
	spec.Static = &volume.ISCSI{Portals: portals, IQN: l.iqn}
	fence := volume.Fence{UID: "uid-" + l.name, Generation: 1, Node: nodeName}
	mustPass(l.m.t, "record", d.rec.store(id, fileRecord{Volume: volume.Volume{ID: id, Spec: spec, Fence: fence, Published: true}}))
	d.req = volume.StageRequest{
		ID: id, StagingPath: filepath.Join(n.dir, "staging-"+l.name), Block: true,
		Publication: volume.Publication{Fence: fence, Source: volume.Source{ISCSI: *spec.Static}},
	}
	return d
}

// give makes another node the owner of a static volume, as a force detach does.
func (d *disk) give(node string) volume.Fence {
	d.m.t.Helper()
	var f volume.Fence
	mustPass(d.m.t, "record", d.rec.update(d.req.ID, func(r *fileRecord) error {
		r.Volume.Fence.Generation++
		r.Volume.Fence.Node, r.Volume.PossiblyDirty = node, false
		f = r.Volume.Fence
		return nil
	}))
	d.req.Publication.Fence = f
	return f
}

// forget removes what a test leaves of a static volume that its node has unstaged.
func (d *disk) forget() {
	d.m.t.Helper()
	mustPass(d.m.t, "forget", errors.Join(os.Remove(filepath.Join(d.rec.dir, string(d.req.ID))), d.n.Repair(d.m.t.Context())))
}

// writeUntilError is a pod that goes on writing, past the page cache, until a write
// fails.
func writeUntilError(t *testing.T, device string, data []byte) <-chan error {
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_DIRECT, 0)
	mustPass(t, "open", err)
	failed := make(chan error, 1)
	go func() {
		defer func() { _ = f.Close() }()
		for at := int64(0); ; at = (at + mib) % (8 * mib) {
			if _, err := f.WriteAt(data[:mib], at); err != nil {
				failed <- err
				return
			}
		}
	}()
	return failed
}

func awaitError(t *testing.T, failed <-chan error) {
	t.Helper()
	select {
	case err := <-failed:
		t.Logf("the old writer has: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the old writer goes on")
	}
}

// liveTarget is the type of the first target of the volume's top device.
func (d *disk) liveTarget() devmapper.Target {
	d.m.t.Helper()
	table, err := d.n.DM.Table(d.m.t.Context(), "nf-"+string(d.req.ID))
	if err != nil || len(table) == 0 {
		d.m.t.Fatalf("table %v, %v", table, err)
	}
	return table[0].Target
}

// mounted gives a static volume a filesystem with a file, and stages it; the file.
func (d *disk) mounted(fs string, size int64) string {
	d.m.t.Helper()
	d.stage()
	args := []string{"-q"}
	if fs == "xfs" { // of the features that every supported kernel mounts
		args = append(args, "-c", "options="+mount.XFSFeatures)
	}
	d.m.must("mkfs."+fs, append(args, d.device())...)
	d.unstage()
	d.req.Block, d.req.FSType = false, fs
	d.stage()
	file := filepath.Join(d.req.StagingPath, "data")
	mustPass(d.m.t, "create", os.WriteFile(file, make([]byte, size), 0o600))
	return file
}

// TestKernelStaticTakenAway: a pod goes on writing to a static volume of which its
// cluster has made another node the owner. From the moment that the other one has the
// LUN none of the old writes lands, the old pod reads nothing old, also through a
// filesystem that has something to write and cannot, and what the new owner wrote stays,
// also when the old node unstages, with unflushed writes on its SSD.
func TestKernelStaticTakenAway(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	n.Transport = m.initiatorAs(initiatorA)
	for _, c := range []struct {
		mode volume.CacheMode
		fs   string
	}{
		{volume.ModeNone, ""}, {volume.ModeWritethrough, ""}, {volume.ModeWriteback, ""},
		{volume.ModeNone, "ext4"}, {volume.ModeWritethrough, "xfs"}, {volume.ModeWriteback, "ext4"},
	} {
		name := strings.Trim(string(c.mode)+"-"+c.fs, "-")
		t.Run(name, func(t *testing.T) {
			m.t = t
			ctx := t.Context()
			size := int64(staticSize)
			if c.fs == "xfs" {
				size = 320 * mib // mkfs makes no smaller one
			}
			l := m.newLUN("taken-"+name, size, []string{portalA, portalB})
			d := l.static(n, c.mode, portalA)
			file := ""
			if c.fs != "" {
				file = d.mounted(c.fs, 8*mib)
			} else {
				d.stage()
				file = d.device()
			}
			older, newer := pattern(1, 8*mib), pattern(2, 8*mib)
			write(t, file, older, 0, true)
			old := writeUntilError(t, file, older)

			next := d.give(otherName)
			b := l.paths(m.initiatorAs(initiatorB), portalB)
			key := reservation.KeyOf(next.UID, next.Generation)
			mustTake(t, asPaths(b), key)
			write(t, b[0].disk, newer, 0, true)
			if c.mode != volume.ModeWriteback { // whose writes are on the SSD until the plugin looks
				awaitError(t, old)
			}
			if c.fs != "" {
				// Refused at once, or when the filesystem is frozen.
				_ = os.WriteFile(filepath.Join(d.req.StagingPath, "more"), older, 0o600)
			}
			mustPass(t, "look at the reservation", n.WatchReservations(ctx))
			if c.mode == volume.ModeWriteback {
				awaitError(t, old)
			}
			if got := d.liveTarget().Type(); got != "error" {
				t.Errorf("the table of the old owner is %s", got)
			}
			if err := compare(file, older[:4096], 0); !errors.Is(err, unix.EIO) {
				t.Errorf("the old pod reads: %v, want %v", err, unix.EIO)
			}
			rec, err := d.rec.load(d.req.ID)
			if err != nil || !slices.Contains(rec.Reasons, v1alpha1.ReasonReservationLost) {
				t.Errorf("reported: %v, %v", rec.Reasons, err)
			}
			mustPass(t, "look again", n.WatchReservations(ctx))
			d.unstage()
			check(t, b[0].disk, newer, 0)

			mustPass(t, "give", reservation.Give(ctx, asPaths(b), key))
			d.give(nodeName)
			d.req.Block = true
			d.stage()
			check(t, d.device(), newer, 0)
			d.unstage()
			keys, err := b[0].Keys(ctx)
			if err != nil || len(keys) > 0 {
				t.Errorf("keys that are left: %v, %v", keys, err)
			}
			d.forget()
		})
	}
	m.t = t
}

// TestKernelStaticTakes: a stage takes the LUN from a node that still writes. Its own
// reservation outlives the loss of a path, the plugin, and a restart of the target, which
// keeps it or not.
func TestKernelStaticTakes(t *testing.T) {
	m := newMachine(t)
	dir := t.TempDir()
	n := m.node(dir, onOneSSD())
	n.Transport = m.initiatorAs(initiatorB)
	ctx := t.Context()
	l := m.newLUN("takes", staticSize, []string{portalA, portalB}, []string{portalB2})
	d := l.static(n, volume.ModeWritethrough, portalB, portalB2)
	a := l.paths(m.initiatorAs(initiatorA), portalA)
	mustTake(t, asPaths(a), reservation.KeyOf("uid-"+l.name, 1))
	older, newer := pattern(1, 8*mib), pattern(2, 8*mib)
	old := writeUntilError(t, a[0].disk, older)

	d.give(nodeName)
	d.stage()
	write(t, d.device(), newer, 0, true)
	awaitError(t, old)
	fenced := func(when string) {
		t.Helper()
		if err := a[0].Write(ctx); err == nil {
			t.Errorf("%s the old owner writes", when)
		}
		check(t, d.device(), newer, 0)
		write(t, d.device(), newer, 0, true)
	}
	fenced("after the stage")

	o, found, err := n.Transport.Lookup(ctx, d.target())
	if err != nil || !found || len(o.Paths) != 2 {
		t.Fatalf("paths %+v, %v", o, err)
	}
	state := "/sys/block/" + filepath.Base(o.Paths[0]) + "/device/state"
	mustPass(t, "fail a path", os.WriteFile(state, []byte("offline\n"), 0))
	mustPass(t, "look", n.WatchReservations(ctx))
	fenced("with one path")
	mustPass(t, "mend the path", os.WriteFile(state, []byte("running\n"), 0))

	for _, keep := range []bool{true, false} {
		l.restart(keep)
		back := func() error {
			_, answer, err := reservation.Inspect(ctx, asPaths(a), 0)
			if err == nil && len(answer) == 1 {
				_, answer, err = reservation.Inspect(ctx, n.pathsOf(o.Paths), 0)
			}
			if err == nil && len(answer) < 2 {
				err = fmt.Errorf("%d paths answer", len(answer))
			}
			return err
		}
		for until := time.Now().Add(3 * time.Minute); back() != nil; time.Sleep(200 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("the paths do not come back: %v", back())
			}
		}
		if keep {
			fenced("after a restart that keeps reservations, before anybody looked,")
		}
		// Another process of the plugin.
		n2, err := openNode(ctx, dir, onOneSSD(), d.rec)
		mustPass(t, "plugin", err)
		n2.Transport = n.Transport
		d.n, n = n2, n2
		mustPass(t, "repair", n.Repair(ctx))
		mustPass(t, "look", n.WatchReservations(ctx))
		fenced(fmt.Sprintf("after a restart that keeps reservations (%t)", keep))
	}
	d.unstage()
	// The LUN was taken from somebody: nothing tells that he has stopped.
	if err := a[0].Write(ctx); err == nil {
		t.Error("the old owner writes once the next one has left")
	}
	d.forget()
}

// mustTake takes a LUN by some paths.
func mustTake(t *testing.T, paths []reservation.Path, key reservation.Key) {
	t.Helper()
	_, err := reservation.Take(t.Context(), paths, key)
	mustPass(t, "take", err)
}

// pathsOf are the paths of some disks.
func (n *node) pathsOf(disks []string) []reservation.Path {
	var out []reservation.Path
	for _, d := range disks {
		out = append(out, reservation.Path{Name: d, LUN: n.Reserver.LUN(d)})
	}
	return out
}

// TestKernelStaticRefused: a LUN that cannot be fenced is not attached, unless the volume
// accepts it; nor one that another host or a later owner has.
func TestKernelStaticRefused(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	n.Transport = m.initiatorAs(initiatorA)
	ctx := t.Context()
	l := m.newLUN("refused", staticSize, []string{portalA, portalB})
	d := l.static(n, volume.ModeNone, portalA)
	b := l.paths(m.initiatorAs(initiatorB), portalB)
	for _, c := range []struct {
		key  reservation.Key
		want error
		say  string
	}{
		{0x1234, volume.ErrInUse, "0x0000000000001234"},
		{reservation.KeyOf("uid-"+l.name, 2), volume.ErrFenced, "generation 2"},
	} {
		mustPass(t, "register", errors.Join(b[0].Register(ctx, c.key), b[0].Reserve(ctx, c.key)))
		if err := n.Stage(ctx, d.req); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("stage of a LUN that %s has: %v, want %v", c.key, err, c.want)
		}
		mustPass(t, "unregister", b[0].Register(ctx, 0))
	}
	l.support(false)
	err := n.Stage(ctx, d.req)
	if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), "withoutReservations") || !strings.Contains(err.Error(), volume.AcceptTwoWriters) {
		t.Errorf("stage of a LUN without reservations: %v", err)
	}
	d.req.AcceptTwoWriters = true
	d.stage()
	mustPass(t, "look", n.WatchReservations(ctx))
	write(t, d.device(), pattern(1, mib), 0, true)
	d.unstage()
	d.forget()
}
