//go:build kernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lvol"
)

const (
	mib = int64(1) << 20

	storageVG = "storage"
	serverID  = "k1"
	// overcommit lets a volume be far larger than what is written to it.
	overcommit = 100
	portal     = "127.0.0.1:3260"
	// The loopback interface has all of 127.0.0.0/8.
	secondPortal = "127.0.0.2:3260"
	nodeName     = "guest"
	chapUser     = "nearflash"
	chapWord     = "a-long-password"
)

var ssdOne, ssdTwo, storageDisk = guest.Disk("b"), guest.Disk("c"), guest.Disk("d")

// TestMain lets the test binary be its own victim: with childEnv set it is a
// node plugin that does one thing and is killed at a fault point.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == freeze.Command {
		os.Exit(freeze.Guard(os.Args[2:], os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == scrub.Command {
		os.Exit(scrub.Guard(os.Args[2:], os.Stdout, os.Stderr))
	}
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	if !faultpoint.Enabled {
		fmt.Fprintln(os.Stderr, "build with -tags kernel,faultpoints")
		os.Exit(2)
	}
	os.Exit(guest.Main(m))
}

// machine is the storage server of the guest and what is said about its node.
type machine struct {
	t         *testing.T
	run       hostexec.Runner
	initiator string
	portals   []string
	// state is the folder of the storage server's service.
	state string
	// storage is the disk of the storage server.
	storage string
	svc     *target.Service
	store   *exportstate.Store
}

// newMachine makes empty disks and starts a storage server. At the end of the
// test everything is removed, and anything left over fails the test. Without
// portals it has one.
func newMachine(t *testing.T, portals ...string) *machine {
	t.Helper()
	return newMachineOn(t, storageDisk, portals...)
}

// newMachineOn is newMachine with another disk for the storage server.
func newMachineOn(t *testing.T, storage string, portals ...string) *machine {
	t.Helper()
	if len(portals) == 0 {
		portals = []string{portal}
	}
	m := &machine{t: t, run: hostexec.New(), portals: portals, storage: storage}
	for _, d := range []string{ssdOne, ssdTwo, storage} {
		if _, err := os.Stat(d); err != nil || os.Geteuid() != 0 {
			t.Fatalf("run as root in a throw-away guest with %s, whose content is destroyed: %v", d, err)
		}
		m.must("wipefs", "--all", d)
	}
	if m.initiator = guestInitiator(); m.initiator == "" {
		t.Fatal("the guest has no initiator name")
	}
	m.must("vgcreate", storageVG, storage)
	m.must("lvcreate", "--yes", "--type", "thin-pool", "--zero", "y", "--size", "900m", "--name", "pool", storageVG)
	t.Cleanup(m.tearDown)
	m.state = filepath.Join(t.TempDir(), "target")
	m.start(m.state)
	return m
}

// guestInitiator is the guest's initiator name, "" if it has none.
func guestInitiator() string {
	b, err := os.ReadFile("/etc/iscsi/initiatorname.iscsi")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "InitiatorName="); ok {
			return name
		}
	}
	return ""
}

func (m *machine) start(state string) {
	m.t.Helper()
	ctx := context.Background() // the service outlives the test's own context until tearDown
	cfg := target.Config{
		ServerID: serverID, VolumeGroup: storageVG, ThinPool: "pool", DefaultProvisioning: target.Thin, MaxOvercommit: overcommit,
		Portals: m.portals, StateDir: state, LVMDevices: []string{m.storage},
	}
	if err := target.NewHost(m.run).Preflight(ctx); err != nil {
		m.t.Fatal(err)
	}
	var err error
	if m.store, err = exportstate.Open(state); err != nil {
		m.t.Fatal(err)
	}
	vols, err := lvol.Open(ctx, lvol.Config{VolumeGroup: storageVG, ThinPool: "pool", Devices: cfg.LVMDevices, MaxOvercommit: overcommit}, m.run, lvol.NewBlockDevice())
	if err != nil {
		m.t.Fatal(err)
	}
	m.svc = target.NewService(ctx, cfg, vols, m.store, lio.NewTree(lio.NewFS(lio.DefaultRoot)))
}

func (m *machine) tearDown() {
	left := m.leaks()
	if len(left) > 0 {
		m.t.Errorf("left behind on the node: %s", strings.Join(left, ", "))
		m.try("iscsiadm", "--mode", "session", "--logout")
		m.try("dmsetup", "remove_all", "--force")
	}
	m.stop()
	m.clearLIO()
	m.must("vgremove", "--yes", "--force", storageVG)
	m.must("pvremove", "--yes", m.storage)
	for _, d := range []string{ssdOne, ssdTwo} {
		m.must("wipefs", "--all", "--force", d)
	}
}

// stop ends the storage server's service; the kernel goes on serving.
func (m *machine) stop() {
	m.svc.Close()
	if err := m.store.Close(); err != nil {
		m.t.Error(err)
	}
}

// leaks lists devices, mounts, sessions and initiator records of volumes. What
// is left of a pool (its volume group) is not among them.
func (m *machine) leaks() []string {
	var out []string
	for _, line := range strings.Fields(m.must("dmsetup", "info", "--columns", "--noheadings", "--options", "name")) {
		if strings.HasPrefix(line, "nf-") || strings.HasPrefix(line, "nearflash") {
			out = append(out, "device "+line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/nf-") || strings.Contains(line, "/staging") || strings.Contains(line, "/published") {
			out = append(out, "mount "+strings.Fields(line)[4])
		}
	}
	for _, pattern := range []string{"/sys/class/iscsi_session/session*", "/var/lib/iscsi/nodes/iqn.2026-11.io.nearflash:" + serverID + ":*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			m.t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

func (m *machine) clearLIO() {
	tree := lio.NewTree(lio.NewFS(lio.DefaultRoot))
	ctx := context.Background()
	targets, err := tree.Targets("iqn.2026-11.io.nearflash:")
	errs := []error{err}
	for _, iqn := range targets {
		errs = append(errs, tree.RemoveTarget(ctx, iqn))
	}
	stores, err := tree.Backstores("")
	errs = append(errs, err)
	for _, b := range stores {
		errs = append(errs, tree.RemoveBackstore(ctx, b))
	}
	if err := errors.Join(errs...); err != nil {
		m.t.Error(err)
	}
}

func (m *machine) must(name string, args ...string) string {
	m.t.Helper()
	res, err := m.run.Run(context.Background(), hostexec.Command(name, args...))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(res.Stdout)
}

func (m *machine) try(name string, args ...string) {
	_, _ = m.run.Run(context.Background(), hostexec.Command(name, args...)) // best effort after a failure
}
