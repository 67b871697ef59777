//go:build kernel

// Tests on a real kernel: device mapper, LIO and the open-iscsi initiator over
// loopback. They need root, a running iscsid, tc(8) with netem, and a
// disk (package guest) of at least 64 MiB whose content they DESTROY. Run them in a
// throwaway machine.
package peerexport_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/peerexport"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	exportedName = "nf-pvc-1.exported"
	exported     = "pvc-1"
	port         = 13260
	size         = 8 << 20
	password     = "a-password-of-16"
)

func TestMain(m *testing.M) { os.Exit(guest.Main(m)) }

// rig is a node that exports a device, and the initiator of another one.
type rig struct {
	t       *testing.T
	run     hostexec.Runner
	dm      devmapper.Client
	e       *peerexport.Exporter
	i       *iscsi.Initiator
	own     string // this machine's initiator name
	device  string
	content []byte
}

func newRig(t *testing.T) *rig {
	t.Helper()
	disk := guest.Disk("b")
	if _, err := os.Stat(disk); err != nil || os.Geteuid() != 0 {
		t.Fatalf("run as root in a throwaway guest that has %s (its content is destroyed): %v", disk, err)
	}
	run := hostexec.New()
	r := &rig{
		t: t, run: run, dm: devmapper.New(run), i: iscsi.New(run, iscsi.Config{}), content: aligned(t, size),
		e: &peerexport.Exporter{
			Tree: lio.NewTree(lio.NewFS(lio.DefaultRoot)), Prepare: lio.NewHost(run).Prepare, Node: "node-a", NodeIP: "127.0.0.1", Port: port,
		},
	}
	if _, err := rand.Read(r.content); err != nil {
		t.Fatal(err)
	}
	if err := access(disk, os.O_WRONLY, func(f *os.File) error { _, err := f.WriteAt(r.content, 0); return err }); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(disk, &st); err != nil {
		t.Fatal(err)
	}
	info, err := r.dm.Create(t.Context(), exportedName, "NEARFLASH-test-exported", devmapper.Table{{Length: size / 512, Target: devmapper.LinearTarget{
		Device: fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r.device = info.DevPath()
	b, err := os.ReadFile("/etc/iscsi/initiatorname.iscsi")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "InitiatorName="); ok {
			r.own = name
		}
	}
	t.Cleanup(r.clear)
	return r
}

func (r *rig) clear() {
	ctx := context.WithoutCancel(r.t.Context())
	r.network(true)
	_, _ = r.run.Run(ctx, hostexec.Command("iscsiadm", "-m", "session", "-u"))
	if err := errors.Join(r.e.Unexport(ctx, exported), r.dm.Remove(ctx, exportedName)); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) export(password string) transport.Target {
	r.t.Helper()
	at, err := r.e.Export(r.t.Context(), exported, r.device, r.own, account(password))
	if err != nil {
		r.t.Fatal(err)
	}
	return transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: at.Portals, IQN: at.IQN, LUN: at.LUN}}, FailFast: true}
}

func (r *rig) connect(t transport.Target, password string) (string, error) {
	r.t.Helper()
	o, err := r.i.Connect(r.t.Context(), t, &volume.Credentials{Username: "pvc-1-3", Password: password})
	if err != nil {
		return "", err
	}
	if o.SizeBytes != size {
		r.t.Errorf("%d bytes, want %d", o.SizeBytes, size)
	}
	return o.Paths[0], nil
}

func (r *rig) mustConnect(t transport.Target, password string) string {
	r.t.Helper()
	disk, err := r.connect(t, password)
	if err != nil {
		r.t.Fatal(err)
	}
	return disk
}

// network drops, or lets through, everything on the loopback device: as if the
// machine at the other end had lost power.
func (r *rig) network(up bool) {
	r.t.Helper()
	ctx := context.WithoutCancel(r.t.Context())
	_, _ = r.run.Run(ctx, hostexec.Command("tc", "qdisc", "delete", "dev", "lo", "root"))
	if up {
		return
	}
	_, _ = r.run.Run(ctx, hostexec.Command("modprobe", "sch_netem")) // it may be built in
	if _, err := r.run.Run(ctx, hostexec.Command("tc", "qdisc", "add", "dev", "lo", "root", "netem", "loss", "100%")); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wantContent(disk string) {
	r.t.Helper()
	got := aligned(r.t, size)
	if err := access(disk, os.O_RDONLY, func(f *os.File) error { _, err := f.ReadAt(got, 0); return err }); err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Equal(got, r.content) {
		r.t.Error("the initiator reads something else")
	}
}

// access opens a device past the page cache.
func access(disk string, flag int, do func(*os.File) error) error {
	f, err := os.OpenFile(disk, flag|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

func aligned(t *testing.T, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func (r *rig) readOne(disk string) error {
	b := aligned(r.t, 4096)
	return access(disk, os.O_RDONLY, func(f *os.File) error { _, err := f.ReadAt(b, 0); return err })
}

// wantInUse asks the kernel whether the initiator has a session.
func (r *rig) wantInUse(want bool) {
	r.t.Helper()
	if got, err := r.e.InUse(r.t.Context(), exported); err != nil || got != want {
		r.t.Errorf("in use: %v, %v, want %v", got, err, want)
	}
}

func TestKernelExport(t *testing.T) {
	r := newRig(t)
	to := r.export(password)
	r.within("wrong password", 5*time.Second, func() {
		if _, err := r.connect(to, "not-the-password"); !errors.Is(err, transport.ErrAuth) {
			t.Errorf("a wrong password: %v", err)
		}
	})
	r.wantInUse(false)
	var disk string
	r.within("connect", 5*time.Second, func() { disk = r.mustConnect(to, password) })
	r.wantInUse(true)
	r.within("disconnect", 5*time.Second, func() { r.disconnect(to) })
	r.wantInUse(false)
	r.within("connect again", 5*time.Second, func() { disk = r.mustConnect(to, password) })
	r.wantContent(disk)
	if ro, err := os.ReadFile("/sys/block/" + strings.TrimPrefix(disk, "/dev/") + "/ro"); err != nil || strings.TrimSpace(string(ro)) != "1" {
		t.Errorf("the disk is not read-only: %q, %v", ro, err)
	}
	r.wantNoWrite(disk)

	// The same again does not disturb the session; nor does a new password.
	r.export(password)
	r.export("another-password")
	r.wantContent(disk)

	if err := r.e.Unexport(t.Context(), exported); err != nil {
		t.Fatal(err)
	}
	r.within("read", 5*time.Second, func() {
		if err := r.readOne(disk); err == nil {
			t.Error("the initiator reads after the end of the export")
		}
	})
	r.within("disconnect", 5*time.Second, func() { r.disconnect(to) })
	if names, err := r.e.List(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
	if err := r.dm.Remove(t.Context(), exportedName); err != nil {
		t.Errorf("the device is still held: %v", err)
	}
	if _, err := r.connect(to, "another-password"); err == nil {
		t.Error("login after the end of the export")
	}
}

// wantNoWrite tries in three ways, the last two past the initiator's own opinion.
func (r *rig) wantNoWrite(disk string) {
	r.t.Helper()
	b := aligned(r.t, 4096)
	write := func(f *os.File) error { _, err := f.WriteAt(b, 0); return err }
	if err := access(disk, os.O_WRONLY, write); err == nil {
		r.t.Error("the initiator wrote")
	}
	if _, err := r.run.Run(r.t.Context(), hostexec.Command("blockdev", "--setrw", disk)); err != nil {
		r.t.Logf("blockdev --setrw: %v", err)
	}
	if err := access(disk, os.O_WRONLY, write); err == nil {
		r.t.Error("the initiator wrote after setrw")
	}
	if _, err := r.run.Run(r.t.Context(), hostexec.Command("blkdiscard", "--force", disk)); err == nil {
		r.t.Error("the initiator discarded")
	}
	r.wantContent(disk)
}

// TestKernelSecondLease: the same volume is exported again later, with another password,
// to an initiator that still has the dead session of the first time.
func TestKernelSecondLease(t *testing.T) {
	r := newRig(t)
	to := r.export(password)
	r.mustConnect(to, password)
	if err := r.e.Unexport(t.Context(), exported); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // the initiator tries again to log in, in vain
	to = r.export("another-password")
	r.wantContent(r.mustConnect(to, "another-password"))
}

// TestKernelPeerDies: packets vanish. I/O fails soon, the session can be ended soon,
// and while there is no portal a login fails soon.
func TestKernelPeerDies(t *testing.T) {
	// A login waits five seconds (node.conn[0].timeo.login_timeout). iscsid's timers tick in
	// seconds, and one that has just ended a session begins with the login a tick later.
	const ioBound, endBound, loginBound = 5 * time.Second, 4 * time.Second, 8 * time.Second
	cases := map[string]func(r *rig, disk string){
		"at once": func(*rig, string) {},
		"after an error": func(r *rig, disk string) {
			r.within("read", ioBound, func() {
				if err := r.readOne(disk); err == nil {
					r.t.Error("read from a peer that is cut off")
				}
			})
		},
		"while something reads": func(r *rig, disk string) {
			for range 4 {
				b := aligned(r.t, 4096)
				r.background(func() { _ = access(disk, os.O_RDONLY, func(f *os.File) error { _, err := f.ReadAt(b, 0); return err }) })
			}
			time.Sleep(100 * time.Millisecond)
		},
		"long after": func(*rig, string) { time.Sleep(10 * time.Second) },
	}
	for name, before := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			to := r.export(password)
			disk := r.mustConnect(to, password)
			r.wantContent(disk)
			r.network(false)
			before(r, disk)
			r.within("disconnect", endBound, func() { r.disconnect(to) })
			if _, found, err := r.i.Lookup(t.Context(), to); found || err != nil {
				t.Errorf("the session is still there: %v", err)
			}
			r.within("login", loginBound, func() {
				if _, err := r.connect(to, password); !errors.Is(err, transport.ErrUnreachable) {
					t.Errorf("login at a portal that is cut off: %v", err)
				}
			})
			r.network(true)
			for range 5 {
				r.wantContent(r.mustConnect(to, password))
				r.disconnect(to)
			}
		})
	}
}

// background runs f beside the test, which ends after it.
func (r *rig) background(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	r.t.Cleanup(func() { <-done })
}

func (r *rig) disconnect(to transport.Target) {
	r.t.Helper()
	if err := r.i.Disconnect(r.t.Context(), to); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) within(what string, bound time.Duration, do func()) {
	r.t.Helper()
	command := min(r.oneCommand(), r.oneCommand())
	start := time.Now()
	do()
	took := time.Since(start)
	command = max(command, r.oneCommand())
	r.t.Logf("%s: %v, one command %v", what, took.Round(10*time.Millisecond), command.Round(time.Millisecond))
	if bound += withinCommands * command; took > bound {
		r.t.Errorf("%s took %v, want at most %v", what, took, bound)
	}
}

// withinCommands is how many commands a connect runs, and the tries of a disconnect.
const withinCommands = 12

// oneCommand is what a command takes on this machine now.
func (r *rig) oneCommand() time.Duration {
	r.t.Helper()
	start := time.Now()
	if _, err := r.run.Run(r.t.Context(), hostexec.Command("iscsiadm", "--version")); err != nil {
		r.t.Fatal(err)
	}
	return time.Since(start)
}

// TestKernelPeerReturns: a session that was lost for some seconds is used again.
func TestKernelPeerReturns(t *testing.T) {
	r := newRig(t)
	disk := r.mustConnect(r.export(password), password)
	r.network(false)
	if err := r.readOne(disk); err == nil {
		t.Error("read from a peer that is cut off")
	}
	r.network(true)
	deadline := time.Now().Add(2 * time.Minute)
	for r.readOne(disk) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the session did not come back")
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.wantContent(disk)
}
