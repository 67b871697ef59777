package target_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lvol"
	"github.com/nearflash/nearflash/pkg/target/lvol/lvoltest"
)

func epochNumber(c string) string { return strings.Repeat(c, 20) }

// TestEpochSurvives: epoch and fence outlive restarts, and exports go on under any.
func TestEpochSurvives(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thin)
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 1); err != nil {
		t.Fatal(err)
	}
	if err := svc.SwapEpoch(t.Context(), "", epochNumber("1")); err != nil {
		t.Fatal(err)
	}
	stop()
	m.kernel.Reboot()
	m.lvm.Reboot()
	svc, stop = m.start(t)
	defer func() { stop() }()
	if err := m.login("v1", nodeA, "a"); err != nil {
		t.Errorf("exports are not restored under an epoch: %v", err)
	}
	if e, err := svc.Epoch(t.Context()); err != nil || e != epochNumber("1") {
		t.Errorf("epoch %q, %v after a restart", e, err)
	}
	var other *target.EpochError
	if err := svc.UnexportVolume(t.Context(), "v1", "", ""); !errors.As(err, &other) || other.Server != epochNumber("1") || !strings.Contains(err.Error(), "kubectl nearflash takeover") {
		t.Errorf("a call without an epoch: %v, want a refusal that names the remedy", err)
	}
	if err := m.login("v1", nodeA, "a"); err != nil {
		t.Errorf("a refused call has ended an export: %v", err)
	}
	for _, bad := range []string{"", "short", epochNumber("-"), strings.Repeat("1", 65)} {
		var invalid *target.InvalidError
		if err := svc.SwapEpoch(t.Context(), epochNumber("1"), bad); !errors.As(err, &invalid) || invalid.Field != "next" {
			t.Errorf("next epoch %q: %v", bad, err)
		}
	}
	stop()
	// What cannot be read is not taken for "none": the server does not start.
	if err := os.WriteFile(filepath.Join(m.dir, "epoch"), []byte(`{"version":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := exportstate.Open(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	vols, err := lvol.Open(t.Context(), lvol.Config{VolumeGroup: m.cfg.VolumeGroup, ThinPool: lvoltest.Pool, MaxOvercommit: 2}, m.lvm, m.lvm)
	if err != nil {
		t.Fatal(err)
	}
	broken := target.NewService(t.Context(), m.cfg, vols, store, lio.NewTree(m.kernel))
	if err := broken.Restore(t.Context()); err == nil || !strings.Contains(err.Error(), filepath.Join(m.dir, "epoch")) {
		t.Errorf("start with an epoch that cannot be read: %v, want an error that names the file", err)
	}
	broken.Close()
	if err := errors.Join(store.Close(), os.Remove(filepath.Join(m.dir, "epoch"))); err != nil {
		t.Fatal(err)
	}
	_, stop = m.start(t)
}

// TestEpochIsSwappedOnce: of many who replace one epoch, one does.
func TestEpochIsSwappedOnce(t *testing.T) {
	svc, _ := started(t)
	var wg sync.WaitGroup
	swapped := make(chan string, 10)
	for _, c := range "0123456789" {
		wg.Go(func() {
			var other *target.EpochError
			err := svc.SwapEpoch(t.Context(), "", epochNumber(string(c)))
			if err == nil {
				swapped <- epochNumber(string(c))
			} else if !errors.As(err, &other) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(swapped)
	if e, err := svc.Epoch(t.Context()); err != nil || len(swapped) != 1 || <-swapped != e {
		t.Errorf("epoch %q, %v; %d more have swapped", e, err, len(swapped))
	}
}

// TestEpochOfAWaitingCall: a call that has waited for another one on its volume is judged
// when it is its turn.
func TestEpochOfAWaitingCall(t *testing.T) {
	svc, m := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	if err := svc.SwapEpoch(t.Context(), "", epochNumber("1")); err != nil {
		t.Fatal(err)
	}
	ctx := target.WithEpoch(t.Context(), epochNumber("1"))
	at, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.lvm.Step = func(string) error {
		once.Do(func() {
			close(at)
			<-gate
		})
		return nil
	}
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := svc.ExpandVolume(ctx, "v1", 16*mib); first <- err }()
	<-at
	go func() { second <- svc.DeleteVolume(ctx, "v1") }()
	time.Sleep(20 * time.Millisecond) // too short a sleep makes the test weaker, not wrong
	if err := svc.SwapEpoch(t.Context(), epochNumber("1"), epochNumber("2")); err != nil {
		t.Fatal(err)
	}
	close(gate)
	var other *target.EpochError
	if err := <-first; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	if err := <-second; !errors.As(err, &other) {
		t.Errorf("the call that waited: %v, want a refusal", err)
	}
	if _, err := svc.GetVolume(t.Context(), "v1"); err != nil {
		t.Errorf("the volume is gone: %v", err)
	}
}
