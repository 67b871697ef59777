//go:build kernel

package kernel

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/reservation/reservationtest"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// path is a path to a LUN that is also written by.
type path struct {
	reservation.LUN
	disk string
}

// Write implements reservationtest.Writer.
func (p path) Write(context.Context) error {
	f, err := os.OpenFile(p.disk, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(aligned(4096), 0)
	return errors.Join(err, f.Close())
}

// paths connects an initiator with a LUN, and returns a path for each portal.
func (l *lun) paths(i *iscsi.Initiator, portals ...string) []path {
	l.m.t.Helper()
	at := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: portals, IQN: l.iqn}}}
	o, err := i.Connect(l.m.t.Context(), at, nil)
	mustPass(l.m.t, "connect", err)
	l.m.t.Cleanup(func() {
		if err := i.Disconnect(context.Background(), at); err != nil {
			l.m.t.Errorf("disconnect: %v", err)
		}
	})
	if len(o.Paths) != len(portals) {
		l.m.t.Fatalf("paths %v", o.Paths)
	}
	var disks reservation.Disks
	var out []path
	for _, p := range o.Paths {
		out = append(out, path{disks.LUN(p), p})
	}
	return out
}

func asPaths(list []path) []reservation.Path {
	var out []reservation.Path
	for _, p := range list {
		out = append(out, reservation.Path{Name: p.disk, LUN: p.LUN})
	}
	return out
}

// TestKernelReservations: the kernel's own target does what the LUN in memory does that
// ring 1 knows.
func TestKernelReservations(t *testing.T) {
	m := newMachine(t)
	l := m.newLUN("reserved", 16*mib, []string{portalA, portalB}, []string{portalB2})
	a := l.paths(m.initiatorAs(initiatorA), portalA)
	b := l.paths(m.initiatorAs(initiatorB), portalB, portalB2)
	reservationtest.Run(t, a[0], b[0], b[1])
}

// TestKernelReservationsInOneGroup: either every path is taken for a registrant, or the
// LUN counts as one without reservations. Some kernels' target takes a second session of
// the holder's host within one portal group for a foreign host.
func TestKernelReservationsInOneGroup(t *testing.T) {
	m := newMachine(t)
	l := m.newLUN("group", 16*mib, []string{portalA, portalB, portalB2})
	b := l.paths(m.initiatorAs(initiatorB), portalB, portalB2)
	key := reservation.KeyOf("group", 1)
	_, err := reservation.Take(t.Context(), asPaths(b), key)
	t.Logf("take: %v", err)
	if err != nil && !errors.Is(err, reservation.ErrUnsupported) {
		t.Fatal(err)
	}
	for _, p := range b {
		mustPass(t, "write", p.Write(t.Context()))
	}
	mustPass(t, "give", reservation.Give(t.Context(), asPaths(b), key))
	keys, err := b[0].Keys(t.Context())
	if err != nil || len(keys) > 0 {
		t.Errorf("keys %v, %v", keys, err)
	}
}

// TestKernelReservationsUnsupported: a LUN without them says so.
func TestKernelReservationsUnsupported(t *testing.T) {
	m := newMachine(t)
	l := m.newLUN("bare", 16*mib, []string{portalA})
	l.support(false)
	a := l.paths(m.initiatorAs(initiatorA), portalA)
	if _, err := reservation.Take(t.Context(), asPaths(a), reservation.KeyOf("bare", 1)); !errors.Is(err, reservation.ErrUnsupported) {
		t.Errorf("%v, want ErrUnsupported", err)
	}
}

// TestKernelReservationsRestart: a target that keeps its registrations has them after a
// restart, for the sessions that come back; one that forgot them is told again.
func TestKernelReservationsRestart(t *testing.T) {
	m := newMachine(t)
	l := m.newLUN("again", 16*mib, []string{portalA, portalB})
	a := l.paths(m.initiatorAs(initiatorA), portalA)
	b := l.paths(m.initiatorAs(initiatorB), portalB)
	key := reservation.KeyOf("again", 1)
	mustTake(t, asPaths(a), key)
	look := func() (f reservation.Facts) {
		for until := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
			_, _, err := reservation.Inspect(t.Context(), asPaths(b), key)
			if err == nil {
				f, _, err = reservation.Inspect(t.Context(), asPaths(a), key)
			}
			if err == nil {
				return f
			}
			if time.Now().After(until) {
				t.Fatalf("the paths do not come back: %v", err)
			}
		}
	}
	l.restart(true)
	if f := look(); !f.Found || f.Held.Key != key || len(f.Keys) != 1 {
		t.Errorf("after a restart: %+v", f)
	}
	mustPass(t, "write by the holder", a[0].Write(t.Context()))
	if err := b[0].Write(t.Context()); err == nil {
		t.Error("a foreign host writes after the restart")
	}
	l.restart(false)
	f := look()
	if f.Found || len(f.Keys) > 0 {
		t.Errorf("the target has forgotten nothing: %+v", f)
	}
	step, who := reservation.DecideWatch(f, reservation.EntitledYes)
	mustPass(t, "restore", reservation.Restore(t.Context(), asPaths(a), key, step, who))
	if err := b[0].Write(t.Context()); err == nil {
		t.Error("a foreign host writes after the restoration")
	}
	mustPass(t, "give", reservation.Give(t.Context(), asPaths(a), key))
}
