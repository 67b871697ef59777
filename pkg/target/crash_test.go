package target_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/target/lio"
)

// scenario is a volume's life with two owners, two readers and two epochs; every call of it is one a
// controller would repeat until it succeeds.
func scenario(t *testing.T, svc *target.Service) []func() error {
	t.Helper()
	const first, second = "epoch1epoch1epoch1", "epoch2epoch2epoch2"
	ctx, later := target.WithEpoch(t.Context(), first), target.WithEpoch(t.Context(), second)
	export := func(ctx context.Context, initiator, who string, gen int64) func() error {
		return func() error {
			_, err := svc.ExportVolume(ctx, "v1", initiator, account(who), gen)
			return err
		}
	}
	read := func(initiator, who string) func() error {
		return func() error {
			_, err := svc.ExportVolumeReadOnly(later, "v1", initiator, account(who), 5)
			return err
		}
	}
	return []func() error{
		func() error { return svc.SwapEpoch(ctx, "", first) },
		func() error { _, err := svc.CreateVolume(ctx, "v1", 8*mib, target.Thick); return err },
		export(ctx, nodeA, "a", 1),
		func() error { _, err := svc.ExpandVolume(ctx, "v1", 20*mib); return err },
		func() error {
			v, err := svc.GetVolume(ctx, "v1")
			if err != nil || len(v.Exports) == 0 {
				return err
			}
			return svc.UnexportVolume(ctx, "v1", nodeA, v.Exports[0].Admission)
		},
		func() error { return svc.SwapEpoch(ctx, first, second) },
		export(later, nodeB, "b", 2),
		func() error { return svc.UnexportVolume(later, "v1", "", "") },
		export(later, nodeA, "a", 3),
		export(later, nodeA, "a", 4), // one admission follows another
		func() error { return svc.UnexportVolume(later, "v1", "", "") },
		read(nodeA, "a"), read(nodeB, "b"), read(nodeA, "a"),
		func() error { return svc.UnexportVolume(later, "v1", nodeA, "") },
		func() error { return svc.UnexportVolume(later, "v1", "", "") },
		export(later, nodeB, "b", 6),
		func() error { return svc.UnexportVolume(later, "v1", "", "") },
		func() error { return svc.DeleteVolume(later, "v1") },
	}
}

// TestKillAnywhere ends the process before every single change it makes to disks,
// kernel and state directory in turn, once with the kernel going on and once with a
// reboot. After the next start the kernel lets in exactly who is recorded, no old
// data is visible, and the caller's retries reach the end with nothing left over.
func TestKillAnywhere(t *testing.T) {
	kill := errors.New("killed")
	for _, reboot := range []bool{false, true} {
		for stop := 0; ; stop++ {
			m := newMachine(t)
			svc, end := m.start(t)
			left := stop
			step := func(change string) error {
				if leaks := m.lvm.Leaks(); leaks != nil {
					t.Errorf("before %q: old data visible in %v", change, leaks)
				}
				if left <= 0 {
					return kill
				}
				left--
				return nil
			}
			m.lvm.Step, m.kernel.Step, m.storeStep = step, step, step
			calls := scenario(t, svc)
			at, err, twoRead := 0, error(nil), false
			for ; at < len(calls) && err == nil; at++ {
				err = calls[at]()
				a, b := m.login("v1", nodeA, "a") == nil, m.login("v1", nodeB, "b") == nil
				if writes := m.writable("v1", nodeA) || m.writable("v1", nodeB); a && b && writes {
					t.Errorf("stopped at %d: both initiators are let in, and one may write", stop)
				}
				twoRead = twoRead || a && b
				checkTargets(t, m, stop)
			}
			end()
			m.lvm.Step, m.kernel.Step, m.storeStep = nil, nil, nil
			if err != nil && !errors.Is(err, kill) {
				t.Fatalf("stopped at %d: call %d: %v", stop, at-1, err)
			}
			if err == nil {
				if stop < 60 || !twoRead {
					t.Errorf("only %d changes, two readers %v: the test did not see them", stop, twoRead)
				}
				break
			}
			if reboot {
				m.kernel.Reboot()
				m.lvm.Reboot()
			}
			checkRestart(t, m, stop, at-1)
		}
	}
}

func checkRestart(t *testing.T, m *machine, stop, at int) {
	t.Helper()
	svc, end := m.start(t)
	defer end()
	recorded := map[string]bool{}
	want := []string{}
	if v, err := svc.GetVolume(t.Context(), "v1"); err == nil {
		for _, e := range v.Exports {
			recorded[e.Initiator] = true
			want = append(want, fmt.Sprintf("v1:g%d", e.Generation))
		}
	} else if !errors.Is(err, target.ErrNotFound) {
		t.Errorf("stopped at %d: %v", stop, err)
	}
	checkTargets(t, m, stop, slices.Compact(want)...) // readers share one
	for initiator, who := range map[string]string{nodeA: "a", nodeB: "b"} {
		if err := m.login("v1", initiator, who); (err == nil) != recorded[initiator] {
			t.Errorf("stopped at %d: %s recorded: %v, login: %v", stop, initiator, recorded[initiator], err)
		}
	}
	for i, call := range scenario(t, svc)[at:] {
		if err := call(); err != nil {
			t.Errorf("stopped at %d: retry of call %d: %v", stop, at+i, err)
		}
		if leaks := m.lvm.Leaks(); leaks != nil {
			t.Errorf("stopped at %d: old data visible in %v", stop, leaks)
		}
	}
	tree := lio.NewTree(m.kernel)
	targets, terr := tree.Targets("iqn.")
	stores, serr := tree.Backstores("")
	if err := errors.Join(terr, serr); err != nil {
		t.Fatal(err)
	}
	if n := len(m.lvm.Names()) + len(targets) + len(stores); n > 0 {
		t.Errorf("stopped at %d: left over: LVs %v, targets %v, backstores %v", stop, m.lvm.Names(), targets, stores)
	}
}

// checkTargets: no volume has two targets, so that who knows that of an admission which is
// over finds it no more.
func checkTargets(t *testing.T, m *machine, stop int, want ...string) {
	t.Helper()
	if got := m.targets("v1"); len(got) > 1 || want != nil && !slices.Equal(got, want) {
		t.Errorf("stopped at %d: targets %q, want %q", stop, got, want)
	}
}
