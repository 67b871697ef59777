package target_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/nearflash/nearflash/pkg/target"
)

// interrupted is a machine whose server was killed while it deleted v1, and which exports
// v2. The discard of v1 tells begun that it is under way, and goes on when it is let.
func interrupted(t *testing.T) (m *machine, begun chan struct{}, letOn func()) {
	t.Helper()
	m = newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thick)
	mustCreate(t, svc, "v2", target.Thick)
	mustExport(t, svc, "v2", nodeA, "a", 1)
	kill := errors.New("killed")
	m.lvm.Step = func(change string) error {
		if strings.HasPrefix(change, "lvremove") {
			return kill
		}
		return nil
	}
	if err := svc.DeleteVolume(t.Context(), "v1"); !errors.Is(err, kill) {
		t.Fatalf("delete: %v", err)
	}
	stop()
	m.kernel.Reboot()
	begun = make(chan struct{}, 1)
	gate := make(chan struct{})
	letOn = sync.OnceFunc(func() { close(gate) })
	late := time.AfterFunc(30*time.Second, func() {
		t.Error("the test waits for the discard")
		letOn()
	})
	t.Cleanup(func() { late.Stop() })
	m.lvm.Step = func(change string) error {
		if strings.HasPrefix(change, "discard ") {
			begun <- struct{}{}
			<-gate
		}
		return nil
	}
	return m, begun, letOn
}

// run serves as Run does once the exports are back, until stop.
func (m *machine) run(t *testing.T) (svc *target.Service, stop func()) {
	t.Helper()
	svc, end := m.restore(t)
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- target.Serve(ctx, svc, grpc.NewServer(), lis) }()
	return svc, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		end()
	}
}

// TestInterruptedDeletion: a deletion that was interrupted, and whose discard never seems to
// end, keeps no other volume from being exported. Calls for its own name wait for it.
func TestInterruptedDeletion(t *testing.T) {
	m, begun, letOn := interrupted(t)
	svc, stop := m.run(t)
	<-begun
	if err := m.login("v2", nodeA, "a"); err != nil {
		t.Errorf("v2 while v1 is being deleted: %v", err)
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, createErr := svc.CreateVolume(short(), "v1", 8*mib, target.Thick)
	_, exportErr := svc.ExportVolume(short(), "v1", nodeA, account("a"), 1)
	for _, err := range []error{createErr, exportErr, svc.DeleteVolume(short(), "v1")} {
		if !errors.Is(err, target.ErrInProgress) {
			t.Errorf("a call for v1: got %v, want in progress", err)
		}
	}
	letOn()
	mustCreate(t, svc, "v1", target.Thick)
	if problems := svc.Problems(t.Context()); len(problems) > 0 {
		t.Errorf("problems %q", problems)
	}
	stop()
	if names := m.lvm.Names(); len(names) != 2 {
		t.Errorf("logical volumes %q", names)
	}
}

// TestStopWhileCleaning: a server that stops waits for the step of its cleaning up that is at
// work, and calls what is left no problem.
func TestStopWhileCleaning(t *testing.T) {
	m, begun, letOn := interrupted(t)
	svc, stop := m.run(t)
	<-begun
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Error("the server did not wait for the discard")
	case <-time.After(20 * time.Millisecond):
	}
	letOn()
	<-stopped
	if problems := svc.Problems(t.Context()); len(problems) > 0 {
		t.Errorf("problems %q", problems)
	}
	m.lvm.Step = nil
	_, stop = m.start(t)
	defer stop()
	if names := m.lvm.Names(); len(names) != 1 {
		t.Errorf("logical volumes %q after the next start", names)
	}
}

// TestUnfinishedIsNotExported: whatever is stored of a volume that is being deleted, nobody
// is let in.
func TestUnfinishedIsNotExported(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thick)
	mustExport(t, svc, "v1", nodeA, "a", 1)
	stop()
	m.kernel.Reboot()
	m.lvm.Tag("nf-v1", "nearflash.deleting")
	_, stop = m.restore(t)
	defer stop()
	m.wantTargets(t, "v1")
}
