//go:build kernel

// Tests on a real kernel: LVM, LIO and the open-iscsi initiator over loopback.
// They need root, a running iscsid, and a disk (package guest) of
// at least 1 GiB whose content they DESTROY. Run them in a throwaway machine.
package target_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lio"
)

func TestKernelVolume(t *testing.T) {
	for _, p := range []target.Provisioning{target.Thin, target.Thick} {
		t.Run(string(p), func(t *testing.T) {
			r := newRig(t)
			svc := r.start()
			defer r.stop(svc)
			ctx := t.Context()
			if _, err := svc.CreateVolume(ctx, "v1", 64*mib, p); err != nil {
				t.Fatal(err)
			}
			c := r.export(svc, "v1", 1)
			if _, err := r.login(c, "default", "user", "password-of-b"); err == nil {
				t.Fatal("a wrong password was accepted")
			}
			if _, err := r.login(c, otherIface, "user", "password-of-a"); err == nil {
				t.Fatal("another initiator was accepted")
			}
			disk := r.mustLogin(c)
			r.wantZero("new volume", disk, 0, 64*mib)
			if got := r.sysfs("/sys/block/" + disk + "/queue/write_cache"); got != "write back" {
				t.Errorf("write cache %q: flushes would not be sent", got)
			}
			data := r.random(mib)
			r.write(disk, data, 4*mib)
			r.write(disk, data, 63*mib)
			r.logout(c)
			if disk = r.mustLogin(c); !r.holds(disk, data, 4*mib) || !r.holds(disk, data, 63*mib) {
				t.Error("data read is not what was written")
			}
			if v, err := svc.GetVolume(ctx, "v1"); err != nil || !v.Exports[0].LoggedIn {
				t.Errorf("session is not shown: %+v, %v", v, err)
			}
			r.checkExpand(svc, disk, data)
			if p == target.Thin {
				r.checkDiscard(svc, disk)
			}
			r.checkUnexport(svc, c)
			r.checkReuse(svc, p)
		})
	}
}

func (r *rig) holds(disk string, want []byte, at int64) bool {
	r.t.Helper()
	got, err := r.read(disk, len(want), at)
	if err != nil {
		r.t.Fatal(err)
	}
	return bytes.Equal(got, want)
}

func (r *rig) checkExpand(svc *target.Service, disk string, data []byte) {
	r.t.Helper()
	if size, err := svc.ExpandVolume(r.t.Context(), "v1", 150*mib); err != nil || size != 152*mib {
		r.t.Fatalf("expand: %d, %v", size, err)
	}
	if size, err := svc.ExpandVolume(r.t.Context(), "v1", 10*mib); err != nil || size != 152*mib {
		r.t.Fatalf("expand to less: %d, %v", size, err)
	}
	r.must("iscsiadm", "-m", "session", "-R")
	if got := r.sysfs("/sys/block/" + disk + "/size"); got != "311296" {
		r.t.Errorf("the initiator sees %s sectors, want 311296", got)
	}
	r.wantZero("new space", disk, 64*mib, 152*mib)
	if !r.holds(disk, data, 63*mib) {
		r.t.Error("data changed while expanding")
	}
}

func (r *rig) checkDiscard(svc *target.Service, disk string) {
	r.t.Helper()
	used := func() int64 {
		v, err := svc.GetVolume(r.t.Context(), "v1")
		if err != nil {
			r.t.Fatal(err)
		}
		return v.UsedBytes
	}
	before := used()
	r.must("blkdiscard", "/dev/"+disk)
	if after := used(); before < 2*mib || after > mib/2 {
		r.t.Errorf("discard: %d bytes used before, %d after", before, after)
	}
}

func (r *rig) checkUnexport(svc *target.Service, c target.Connection) {
	r.t.Helper()
	ctx := r.t.Context()
	var exported *target.ExportedError
	if err := svc.DeleteVolume(ctx, "v1"); !errors.As(err, &exported) {
		r.t.Fatalf("delete while exported: %v", err)
	}
	var stale *target.StaleGenerationError
	if _, err := svc.ExportVolume(ctx, "v1", r.node, account("a"), 0); err == nil {
		r.t.Fatal("generation 0 was accepted")
	}
	before := c
	c = r.export(svc, "v1", 7)
	if _, err := svc.ExportVolume(ctx, "v1", r.node, account("a"), 6); !errors.As(err, &stale) || stale.Stored != 7 {
		r.t.Fatalf("outdated generation: %v", err)
	}
	r.logout(before)
	if _, err := r.login(before, "default", "user", "password-of-a"); err == nil {
		r.t.Error("the target of another generation is there still")
	}
	disk := r.mustLogin(c)
	former := admitted(r.t, svc, r.node)
	r.export(svc, "v1", 7)
	if err := svc.UnexportVolume(ctx, "v1", r.node, former); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.read(disk, 4096, 0); err != nil {
		r.t.Errorf("the end of a former admission ended the session: %v", err)
	}
	if err := svc.UnexportVolume(ctx, "v1", r.node, admitted(r.t, svc, r.node)); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.read(disk, 4096, 0); err == nil {
		r.t.Error("the initiator can still read after unexport")
	}
	r.try("iscsiadm", "-m", "node", "-T", c.IQN, "--logout")
	r.try("iscsiadm", "-m", "node", "-T", c.IQN, "-o", "delete")
	if _, err := r.login(c, "default", "user", "password-of-a"); err == nil {
		r.t.Error("login after unexport")
	}
	for _, left := range []string{lio.DefaultRoot + "/iscsi/" + c.IQN, lio.DefaultRoot + "/core/iblock_26110/t1:v1"} {
		if _, err := os.Stat(left); !os.IsNotExist(err) {
			r.t.Errorf("%s is still there: %v", left, err)
		}
	}
}

// checkReuse fills a volume with a secret, deletes it, and looks for the secret in
// a new one that takes all the room.
func (r *rig) checkReuse(svc *target.Service, p target.Provisioning) {
	r.t.Helper()
	ctx := r.t.Context()
	c := r.export(svc, "v1", 8)
	disk := r.mustLogin(c)
	former := c.WWID
	secret := aligned(r.t, 4*mib)
	copy(secret, bytes.Repeat([]byte("SECRET!!"), len(secret)/8))
	for at := int64(0); at < 152*mib; at += 4 * mib {
		r.write(disk, secret, at)
	}
	r.logout(c)
	if err := errors.Join(svc.UnexportVolume(ctx, "v1", "", ""), svc.DeleteVolume(ctx, "v1")); err != nil {
		r.t.Fatal(err)
	}
	if _, err := svc.CreateVolume(ctx, "v1", 300*mib, p); err != nil {
		r.t.Fatal(err)
	}
	c = r.export(svc, "v1", 1)
	if c.WWID == former {
		r.t.Error("a new volume has the identity of the deleted one")
	}
	disk = r.mustLogin(c)
	// Small writes make a thin pool provision whole blocks around them.
	one := r.random(4096)
	for at := int64(0); at < 300*mib; at += mib {
		r.write(disk, one, at)
	}
	for at := int64(0); at < 300*mib; at += mib {
		b, err := r.read(disk, mib, at)
		if err != nil {
			r.t.Fatal(err)
		}
		if !bytes.Equal(b[:4096], one) || bytes.IndexFunc(b[4096:], func(c rune) bool { return c != 0 }) >= 0 {
			r.t.Fatalf("at %d: former data, or not what was written", at)
		}
	}
	r.logout(c)
}

// A restart of the server does not disturb a session; a reboot of the machine (all
// of LIO gone, LVs inactive) is repaired by the next start.
func TestKernelRestart(t *testing.T) {
	r := newRig(t)
	svc := r.start()
	for _, p := range []target.Provisioning{target.Thin, target.Thick} {
		if _, err := svc.CreateVolume(t.Context(), "v-"+string(p), 16*mib, p); err != nil {
			t.Fatal(err)
		}
	}
	thin, thick := r.export(svc, "v-thin", 1), r.export(svc, "v-thick", 1)
	disk := r.mustLogin(thin)
	data := r.random(mib)
	r.write(disk, data, 0)
	r.stop(svc)
	if !r.holds(disk, data, 0) {
		t.Error("the export ended with the server")
	}
	svc = r.start()
	if !r.holds(disk, data, 0) {
		t.Error("the session did not survive the restart")
	}
	if out := r.must("iscsiadm", "-m", "session", "-P", "1"); strings.Contains(out, "FAILED") || strings.Contains(out, "REOPEN") {
		t.Errorf("the restart disturbed the session:\n%s", out)
	}
	r.stop(svc)

	// The machine is left below the session, as for another one, and taken again.
	if err := target.Withdraw(t.Context(), r.cfg); err != nil {
		t.Fatal(err)
	}
	r.must("vgchange", "--activate", "n", kernelVG)
	svc = r.start()
	defer r.stop(svc)
	r.awaitDisk(disk)
	if !r.holds(disk, data, 0) {
		t.Error("data is gone after the exports were withdrawn and restored")
	}
	r.mustLogin(thick)
	r.logout(thin)
	r.logout(thick)
}

// dying is a configfs that stops working after some changes.
type dying struct {
	lio.FS

	left int
}

var errDied = errors.New("died")

func (d *dying) step() error {
	if d.left == 0 {
		return errDied
	}
	d.left--
	return nil
}

func (d *dying) Mkdir(p string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.FS.Mkdir(p)
}

func (d *dying) Rmdir(p string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.FS.Rmdir(p)
}

func (d *dying) Symlink(to, link string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.FS.Symlink(to, link)
}

func (d *dying) Unlink(p string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.FS.Unlink(p)
}

func (d *dying) Write(p, v string) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.FS.Write(p, v)
}

// TestKernelCrashAnywhere is the test of package lio of the same purpose, on the
// real tree: building and removing a target, stopped after every single change.
func TestKernelCrashAnywhere(t *testing.T) {
	r := newRig(t)
	svc := r.start()
	defer r.stop(svc)
	if _, err := svc.CreateVolume(t.Context(), "v1", 16*mib, target.Thin); err != nil {
		t.Fatal(err)
	}
	want := lio.Target{
		IQN: "iqn.2026-11.io.nearflash:t2:x", Backstore: "t2:x", Device: "/dev/" + kernelVG + "/nf-v1", Serial: strings.Repeat("0123456789abcdef", 2),
		Unmap: true, Portals: []string{kernelPortal}, ACLs: []lio.ACL{{Initiator: r.node, Username: "user", Password: "password-of-a"}},
	}
	real := lio.NewTree(lio.NewFS(lio.DefaultRoot))
	for _, direction := range []string{"build", "remove"} {
		for stop := 0; ; stop++ {
			tree := lio.NewTree(&dying{FS: lio.NewFS(lio.DefaultRoot), left: stop})
			var err error
			if direction == "build" {
				err = tree.Ensure(t.Context(), want)
			} else {
				if err := real.Ensure(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				err = tree.Remove(t.Context(), want.IQN, want.Backstore)
			}
			if err != nil && !errors.Is(err, errDied) {
				t.Fatalf("%s, stopped at %d: %v", direction, stop, err)
			}
			if err := real.Ensure(t.Context(), want); err != nil {
				t.Fatalf("%s, stopped at %d, then built: %v", direction, stop, err)
			}
			if err := real.Remove(t.Context(), want.IQN, want.Backstore); err != nil {
				t.Fatalf("%s, stopped at %d, then removed: %v", direction, stop, err)
			}
			if left, err := real.Targets("iqn.2026-11.io.nearflash:t2:"); err != nil || len(left) > 0 {
				t.Fatalf("%s, stopped at %d: left %v, %v", direction, stop, left, err)
			}
			if err == nil {
				t.Logf("%s: %d changes", direction, stop)
				break
			}
		}
	}
}
