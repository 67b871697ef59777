package target_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lio/liotest"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/lvol/lvoltest"
)

const (
	mib    = 1 << 20
	nodeA  = "iqn.1993-08.org.debian:01:a"
	nodeB  = "iqn.1993-08.org.debian:01:b"
	portal = "192.0.2.1:3260"

	iqnBase = "iqn.2026-11.io.nearflash:s1:"
)

func testConfig() target.Config {
	return target.Config{
		ServerID: "s1", VolumeGroup: lvoltest.VG, ThinPool: lvoltest.Pool,
		DefaultProvisioning: target.Thin, MaxOvercommit: 2, Portals: []string{portal},
	}
}

// machine is what survives the server process: disks, kernel, state directory.
type machine struct {
	cfg    target.Config
	lvm    *lvoltest.LVM
	kernel *liotest.Kernel
	dir    string
	// storeStep is called before each change of the state directory.
	storeStep func(string) error
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	return &machine{cfg: testConfig(), lvm: lvoltest.New(64), kernel: liotest.New(), dir: filepath.Join(t.TempDir(), "state")}
}

// stoppable lets a test end the process before a change of the store.
type stoppable struct {
	*exportstate.Store

	m *machine
}

func (s stoppable) Save(r exportstate.Record) error {
	if s.m.storeStep != nil {
		if err := s.m.storeStep("save " + r.Volume); err != nil {
			return err
		}
	}
	return s.Store.Save(r)
}

func (s stoppable) Delete(volume string) error {
	if s.m.storeStep != nil {
		if err := s.m.storeStep("forget " + volume); err != nil {
			return err
		}
	}
	return s.Store.Delete(volume)
}

func (s stoppable) SetEpoch(epoch string) error {
	if s.m.storeStep != nil {
		if err := s.m.storeStep("epoch " + epoch); err != nil {
			return err
		}
	}
	return s.Store.SetEpoch(epoch)
}

// start starts the server, and waits until it has cleaned up; stop is what a kill would do,
// plus giving the lock free.
func (m *machine) start(t *testing.T) (svc *target.Service, stop func()) {
	t.Helper()
	svc, stop = m.restore(t)
	svc.CleanUp(t.Context())
	return svc, stop
}

// restore starts the server, which has cleaned nothing up yet.
func (m *machine) restore(t *testing.T) (svc *target.Service, stop func()) {
	t.Helper()
	store, err := exportstate.Open(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	vols, err := lvol.Open(t.Context(), lvol.Config{
		VolumeGroup: m.cfg.VolumeGroup, ThinPool: m.cfg.ThinPool, MaxOvercommit: m.cfg.MaxOvercommit,
	}, m.lvm, m.lvm)
	if err != nil {
		t.Fatal(err)
	}
	svc = target.NewService(t.Context(), m.cfg, vols, stoppable{store, m}, lio.NewTree(m.kernel))
	if err := svc.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	return svc, func() {
		svc.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func started(t *testing.T) (*target.Service, *machine) {
	t.Helper()
	m := newMachine(t)
	svc, stop := m.start(t)
	t.Cleanup(stop)
	return svc, m
}

func account(who string) target.Account {
	return target.Account{Username: "user", Password: exportstate.Secret("password-of-" + who)}
}

// targets are the names of the volume's targets in the kernel, without what they have in
// common.
func (m *machine) targets(volume string) []string {
	all, err := lio.NewTree(m.kernel).Targets("iqn.")
	if err != nil {
		panic(err)
	}
	var out []string
	for _, iqn := range all {
		if name, ours := strings.CutPrefix(iqn, iqnBase); ours && (name == volume || strings.HasPrefix(name, volume+":")) {
			out = append(out, name)
		}
	}
	return out
}

// login logs in to the volume's target, whatever its name.
func (m *machine) login(volume, initiator, who string) error {
	err := errors.New("no target")
	for _, name := range m.targets(volume) {
		if err = m.loginTo(name, initiator, who); err == nil {
			return nil
		}
	}
	return err
}

// writable reports whether the kernel lets an initiator write to the volume.
func (m *machine) writable(volume, initiator string) bool {
	for _, name := range m.targets(volume) {
		if m.kernel.Writable(iqnBase+name, initiator) {
			return true
		}
	}
	return false
}

// loginTo logs in to a target by its name, as a session of before does for ever.
func (m *machine) loginTo(name, initiator, who string) error {
	dev, err := m.kernel.Login(iqnBase+name, portal, initiator, "user", "password-of-"+who)
	if volume, _, _ := strings.Cut(name, ":"); err == nil && dev != "/dev/vg0/nf-"+volume {
		return fmt.Errorf("logged in to %s", dev)
	}
	return err
}
