//go:build kernel

// Tests on a real kernel: LVM, LIO and the open-iscsi initiator over loopback.
// They need root, a running iscsid, and /dev/ubdb (or NEARFLASH_TEST_DISK), a disk
// of at least 1 GiB whose content they DESTROY. Run them in a throwaway machine.
package target_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lvol"
)

const (
	kernelVG     = "nftest"
	kernelPortal = "127.0.0.1:3260"
	otherIface   = "nftest-other"
	otherNode    = "iqn.2026-11.io.nearflash:test-other"
	garbage      = 0xa5
	// guestDisk is an empty disk of the guests that run these tests.
	guestDisk = "/dev/ubdb"
)

// rig is a real machine with a volume group on the test disk.
type rig struct {
	t     *testing.T
	run   hostexec.Runner
	cfg   target.Config
	node  string // this machine's initiator name
	store *exportstate.Store
}

// newRig makes the volume group anew, on a disk full of a former owner's data.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := attachRig(t, filepath.Join(t.TempDir(), "state"))
	disk := testDisk(t)
	r.try("vgremove", "--force", "--yes", kernelVG)
	r.try("pvremove", "--force", "--force", "--yes", disk)
	fill(t, disk)
	r.must("pvcreate", "--yes", "--force", "--force", disk)
	r.must("vgcreate", "--yes", kernelVG, disk)
	r.must("lvcreate", "--yes", "--type", "thin-pool", "--zero", "y", "--size", "400m", "--name", "pool", kernelVG)
	t.Cleanup(func() {
		r.try("iscsiadm", "-m", "session", "-u")
		r.clearLIO()
		r.try("vgremove", "--force", "--yes", kernelVG)
	})
	return r
}

func testDisk(t *testing.T) string {
	t.Helper()
	disk := os.Getenv("NEARFLASH_TEST_DISK")
	if disk == "" {
		disk = guestDisk
	}
	if _, err := os.Stat(disk); err != nil || os.Geteuid() != 0 {
		t.Fatalf("run as root in a throwaway guest that has %s (its content is destroyed): %v", disk, err)
	}
	return disk
}

// attachRig uses the machine as it is.
func attachRig(t *testing.T, stateDir string) *rig {
	t.Helper()
	r := &rig{t: t, run: hostexec.New(), cfg: target.Config{
		ServerID: "t1", VolumeGroup: kernelVG, ThinPool: "pool", DefaultProvisioning: target.Thin, MaxOvercommit: 10,
		Portals: []string{kernelPortal}, StateDir: stateDir,
	}}
	b, err := os.ReadFile("/etc/iscsi/initiatorname.iscsi")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if name, ok := strings.CutPrefix(line, "InitiatorName="); ok {
			r.node = name
		}
	}
	r.try("iscsiadm", "-m", "iface", "-I", otherIface, "-o", "new")
	r.must("iscsiadm", "-m", "iface", "-I", otherIface, "-o", "update", "-n", "iface.transport_name", "-v", "tcp")
	r.must("iscsiadm", "-m", "iface", "-I", otherIface, "-o", "update", "-n", "iface.initiatorname", "-v", otherNode)
	return r
}

func (r *rig) must(name string, args ...string) string {
	r.t.Helper()
	res, err := r.run.Run(r.t.Context(), hostexec.Command(name, args...))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(res.Stdout)
}

func (r *rig) try(name string, args ...string) {
	_, _ = r.run.Run(r.t.Context(), hostexec.Command(name, args...))
}

func fill(t *testing.T, disk string) {
	t.Helper()
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	block := bytes.Repeat([]byte{garbage}, 4*mib)
	for {
		if _, err := f.Write(block); err != nil {
			break // the end of the disk
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// start starts a server in this process.
func (r *rig) start() *target.Service {
	r.t.Helper()
	ctx := r.t.Context()
	if err := target.NewHost(r.run).Preflight(ctx); err != nil {
		r.t.Fatal(err)
	}
	store, err := exportstate.Open(r.cfg.StateDir)
	if err != nil {
		r.t.Fatal(err)
	}
	vols, err := lvol.Open(ctx, lvol.Config{VolumeGroup: kernelVG, ThinPool: "pool", MaxOvercommit: 10}, r.run, lvol.NewBlockDevice())
	if err != nil {
		r.t.Fatal(err)
	}
	r.store = store
	svc := target.NewService(ctx, r.cfg, vols, store, lio.NewTree(lio.NewFS(lio.DefaultRoot)))
	if err := svc.Restore(ctx); err != nil {
		r.t.Fatal(err)
	}
	return svc
}

func (r *rig) stop(svc *target.Service) {
	r.t.Helper()
	svc.Close()
	if err := r.store.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// clearLIO removes everything of ours from the kernel, as a reboot would.
func (r *rig) clearLIO() {
	tree := lio.NewTree(lio.NewFS(lio.DefaultRoot))
	targets, err := tree.Targets("iqn.2026-11.io.nearflash:")
	if err != nil {
		r.t.Error(err)
	}
	for _, iqn := range targets {
		if err := tree.RemoveTarget(r.t.Context(), iqn); err != nil {
			r.t.Error(err)
		}
	}
	stores, err := tree.Backstores("")
	if err != nil {
		r.t.Error(err)
	}
	for _, b := range stores {
		if err := tree.RemoveBackstore(r.t.Context(), b); err != nil {
			r.t.Error(err)
		}
	}
}

// login logs in to c and returns the SCSI disk with the promised WWID.
func (r *rig) login(c target.Connection, iface, user, password string) (string, error) {
	r.t.Helper()
	node := []string{"-m", "node", "-T", c.IQN, "-p", c.Portals[0], "-I", iface}
	set := func(name, value string) {
		r.must("iscsiadm", append(node, "-o", "update", "-n", name, "-v", value)...)
	}
	r.must("iscsiadm", append(node, "-o", "new")...)
	set("node.session.auth.authmethod", "CHAP")
	set("node.session.auth.username", user)
	set("node.session.auth.password", password)
	set("node.session.timeo.replacement_timeout", "1")
	set("node.session.initial_login_retry_max", "1")
	set("node.conn[0].timeo.login_timeout", "5")
	if _, err := r.run.Run(r.t.Context(), hostexec.Command("iscsiadm", append(node, "--login")...)); err != nil {
		r.try("iscsiadm", append(node, "-o", "delete")...)
		return "", err
	}
	for range 100 {
		disks, err := filepath.Glob("/sys/block/sd*/device/wwid")
		if err != nil {
			r.t.Fatal(err)
		}
		for _, d := range disks {
			if b, err := os.ReadFile(d); err == nil && strings.TrimSpace(string(b)) == c.WWID {
				return strings.Split(d, "/")[3], nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.t.Fatalf("no disk with WWID %s", c.WWID)
	return "", nil
}

func (r *rig) logout(c target.Connection) {
	r.t.Helper()
	r.must("iscsiadm", "-m", "node", "-T", c.IQN, "--logout")
	r.must("iscsiadm", "-m", "node", "-T", c.IQN, "-o", "delete")
}

// openDirect passes by the page cache.
func openDirect(disk string, flag int) (*os.File, error) {
	return os.OpenFile("/dev/"+disk, flag|unix.O_DIRECT|unix.O_SYNC, 0)
}

func aligned(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func (r *rig) write(disk string, data []byte, at int64) {
	r.t.Helper()
	f, err := openDirect(disk, os.O_WRONLY)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteAt(data, at); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) read(disk string, size int, at int64) ([]byte, error) {
	r.t.Helper()
	f, err := openDirect(disk, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b := aligned(r.t, size)
	_, err = f.ReadAt(b, at)
	return b, err
}

func (r *rig) random(size int) []byte {
	r.t.Helper()
	b := aligned(r.t, size)
	if _, err := rand.Read(b); err != nil {
		r.t.Fatal(err)
	}
	return b
}

// wantZero expects the whole range to read as zeros.
func (r *rig) wantZero(what, disk string, from, to int64) {
	r.t.Helper()
	for at := from; at < to; at += 4 * mib {
		b, err := r.read(disk, int(min(4*mib, to-at)), at)
		if err != nil {
			r.t.Fatal(err)
		}
		if i := bytes.IndexFunc(b, func(c rune) bool { return c != 0 }); i >= 0 {
			r.t.Fatalf("%s: byte %d is %#x: somebody's data", what, at+int64(i), b[i])
		}
	}
}

func (r *rig) sysfs(path string) string {
	r.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (r *rig) export(svc *target.Service, volume string, gen int64) target.Connection {
	r.t.Helper()
	c, err := svc.ExportVolume(r.t.Context(), volume, r.node, account("a"), gen)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) mustLogin(c target.Connection) string {
	r.t.Helper()
	disk, err := r.login(c, "default", "user", "password-of-a")
	if err != nil {
		r.t.Fatal(err)
	}
	return disk
}

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
			r.checkUnexport(svc, c, disk)
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

func (r *rig) checkUnexport(svc *target.Service, c target.Connection, disk string) {
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
	r.export(svc, "v1", 7)
	if _, err := svc.ExportVolume(ctx, "v1", r.node, account("a"), 6); !errors.As(err, &stale) || stale.Stored != 7 {
		r.t.Fatalf("outdated generation: %v", err)
	}
	if err := svc.UnexportVolume(ctx, "v1", r.node); err != nil {
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
	if err := errors.Join(svc.UnexportVolume(ctx, "v1", ""), svc.DeleteVolume(ctx, "v1")); err != nil {
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
	r.logout(thin)
	r.stop(svc)

	r.clearLIO()
	r.must("vgchange", "--activate", "n", kernelVG)
	svc = r.start()
	defer r.stop(svc)
	if disk = r.mustLogin(thin); !r.holds(disk, data, 0) {
		t.Error("data is gone after the reboot")
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

// TestKernelReboot spans a real reboot: run it with NEARFLASH_TEST_PHASE=1, boot
// the machine again, and run it with 2. NEARFLASH_TEST_STATE has to survive.
func TestKernelReboot(t *testing.T) {
	phase, dir := os.Getenv("NEARFLASH_TEST_PHASE"), os.Getenv("NEARFLASH_TEST_STATE")
	if phase == "" {
		t.Skip("only with NEARFLASH_TEST_PHASE, around a reboot")
	}
	marker := bytes.Repeat([]byte("survives "), 4096)[:32768]
	data := aligned(t, len(marker))
	copy(data, marker)
	names := []string{"r-thin", "r-thick"}
	if phase == "1" {
		r := attachRig(t, dir)
		disk := testDisk(t)
		r.must("pvcreate", "--yes", "--force", "--force", disk)
		r.must("vgcreate", "--yes", kernelVG, disk)
		r.must("lvcreate", "--yes", "--type", "thin-pool", "--zero", "y", "--size", "400m", "--name", "pool", kernelVG)
		svc := r.start()
		for i, p := range []target.Provisioning{target.Thin, target.Thick} {
			if _, err := svc.CreateVolume(t.Context(), names[i], 16*mib, p); err != nil {
				t.Fatal(err)
			}
			r.write(r.mustLogin(r.export(svc, names[i], 4)), data, mib)
		}
		return // everything stays as it is; the machine goes down
	}
	r := attachRig(t, dir)
	svc := r.start()
	defer r.stop(svc)
	if problems := svc.Problems(t.Context()); len(problems) > 0 {
		t.Errorf("problems: %q", problems)
	}
	for _, name := range names {
		v, err := svc.GetVolume(t.Context(), name)
		if err != nil || v.Generation != 4 || len(v.Exports) != 1 {
			t.Fatalf("%s after the reboot: %+v, %v", name, v, err)
		}
		c := target.Connection{Portals: []string{kernelPortal}, IQN: "iqn.2026-11.io.nearflash:t1:" + name, WWID: v.WWID()}
		if disk := r.mustLogin(c); !r.holds(disk, data, mib) {
			t.Errorf("%s: data is gone", name)
		}
	}
}
