//go:build kernel

package target_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
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
	disk := guest.Disk("b")
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
	svc.CleanUp(ctx)
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
	return r.mustFind(c), nil
}

// mustFind returns the SCSI disk of a session that is there.
func (r *rig) mustFind(c target.Connection) string {
	r.t.Helper()
	for range 1200 {
		disks, err := filepath.Glob("/sys/block/sd*/device/wwid")
		if err != nil {
			r.t.Fatal(err)
		}
		for _, d := range disks {
			if b, err := os.ReadFile(d); err != nil || strings.TrimSpace(string(b)) != c.WWID {
				continue
			}
			// With several processors it may be that of the session before, or not ready yet.
			name := strings.Split(d, "/")[3]
			if f, err := os.Open("/dev/" + name); err == nil {
				_ = f.Close()
				return name
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.t.Fatalf("no disk with WWID %s", c.WWID)
	return ""
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

// awaitDisk waits until a session that was given up has come back: iscsid logs in again and again,
// and until then the disk is offline and cannot be opened.
func (r *rig) awaitDisk(disk string) {
	r.t.Helper()
	for began := time.Now(); r.sysfs("/sys/block/"+disk+"/device/state") != "running"; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			r.t.Fatalf("disk %s is %s: the session does not come back", disk, r.sysfs("/sys/block/"+disk+"/device/state"))
		}
	}
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
