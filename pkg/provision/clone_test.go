package provision

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/volume"
)

// createChild asks for the child as the CSI layer does: what is there, and is as large as is
// asked for, is asked for with its own size.
func (f *fixture) createChild(t *testing.T, s volume.Spec) (volume.Volume, error) {
	t.Helper()
	have, err := f.svc.Get(t.Context(), f.child())
	if err == nil && have.Spec.CapacityBytes >= s.CapacityBytes && (s.LimitBytes == 0 || have.Spec.CapacityBytes <= s.LimitBytes) {
		s.CapacityBytes = have.Spec.CapacityBytes
	}
	return f.svc.Create(t.Context(), f.child(), s)
}

// testCloneGrown: the record of a parent is behind its volume, as it is between the expansion and
// the word of it. A clone has the size of what it is made of, and whoever asks again is answered
// the same, wherever the controller was killed.
func testCloneGrown(t *testing.T, cfg *rest.Config, _ *fixture) {
	for n := 1; ; n++ {
		f := newFixture(t, cfg, volume.ID(fmt.Sprint("clone-grown-", n)))
		f.create(t)
		if _, err := f.storage.Expand(t.Context(), f.id, 2*gib); err != nil {
			t.Fatal(err)
		}
		few := ofVolume(f.id)
		few.LimitBytes = 2*gib - 1
		_, err := f.createChild(t, few)
		wantError(t, err, volume.ErrOutOfRange)
		f.wantNoRecord(t)
		left := n
		f.fail = func(string, bool) error {
			if left--; left == 0 {
				return errInjected
			}
			return nil
		}
		for _, err = f.createChild(t, ofVolume(f.id)); errors.Is(err, errInjected); _, err = f.createChild(t, ofVolume(f.id)) {
			f.restart()
		}
		f.fail = nil
		if err != nil {
			t.Fatalf("killed at step %d: %v", n, err)
		}
		v, err := f.createChild(t, ofVolume(f.id))
		if made, _ := f.storage.Volume(f.child()); err != nil || v.Spec.CapacityBytes != 2*gib || made.Size != 2*gib {
			t.Fatalf("killed at step %d: %+v, made is %+v, %v", n, v.Spec, made, err)
		}
		more := ofVolume(f.id)
		more.CapacityBytes = 3 * gib
		_, err = f.createChild(t, more)
		wantError(t, err, volume.ErrExists)
		if left > 0 {
			t.Logf("killed at %d steps", n-1)
			return
		}
	}
}

// stalledClone has a controller stall before it cuts for a clone, and the clone deleted meanwhile;
// then it goes on, and is killed when it has accepted the cut.
func (f *fixture) stalledClone(t *testing.T) {
	t.Helper()
	second := New(Config{Client: f.client, Servers: one(f.storage), Events: f.events, Now: f.svc.now})
	once := true
	f.storage.Step = func(op string, done bool) error {
		if op == "cut" && !done && once {
			once = false
			return second.Delete(t.Context(), f.child())
		}
		if op == "accept" && done {
			return errInjected
		}
		return nil
	}
	_, stalled := f.svc.Create(t.Context(), f.child(), ofVolume(f.id))
	wantError(t, stalled, errInjected)
	f.wantNoRecord(t)
	if c, err := f.storage.Find(t.Context(), volume.CloneCut(f.child())); err != nil || !c.Accepted {
		t.Fatalf("nothing is left of the stalled call, which said %v: %+v, %v", stalled, c, err)
	}
}

// testCloneStalled: what was accepted for a clone that is gone is swept, and nothing that a clone
// may be made from.
func testCloneStalled(t *testing.T, _ *rest.Config, f *fixture) {
	now := time.Unix(0, 0)
	f.svc.now = func() time.Time { return now }
	f.create(t)
	f.stalledClone(t)
	f.storage.Step = f.recordStep
	if err := f.svc.endHold(t.Context(), f.id, volume.CloneCut(f.child())); err != nil {
		t.Fatal(err)
	}
	f.failOnce("create", false)
	other := f.child() + "-2"
	_, err := f.svc.Create(t.Context(), other, ofVolume(f.id))
	wantError(t, err, errInjected)
	if _, err := f.snapshot(t, "mine"); err != nil {
		t.Fatal(err)
	}
	sweep := func(locked bool, want int) {
		t.Helper()
		err := f.svc.SweepCuts(t.Context(), func(string) (func(), bool) { return func() {}, !locked })
		all, listErr := f.storage.Cuts(t.Context())
		if err := errors.Join(err, listErr); err != nil || len(all) != want {
			t.Fatalf("left are %+v, want %d; %v", all, want, err)
		}
	}
	sweep(false, 3) // it is young
	now = now.Add(time.Hour)
	sweep(true, 3)
	sweep(false, 2)
	if _, err := f.svc.Create(t.Context(), other, ofVolume(f.id)); err != nil {
		t.Errorf("a clone that was begun: %v", err)
	}
	sweep(false, 1)
}

// testCloneAnew: a clone is not made of what was cut for an earlier one of its name.
func testCloneAnew(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.stalledClone(t)
	f.storage.Step = nil
	before, err := f.storage.Find(t.Context(), volume.CloneCut(f.child()))
	if err != nil {
		t.Fatal(err)
	}
	f.storage.Step = func(op string, done bool) error {
		if op != "create" || done {
			return nil
		}
		if c, err := f.storage.Find(t.Context(), volume.CloneCut(f.child())); err != nil || c.Hold == before.Hold {
			t.Errorf("made of what was cut for an earlier clone: %+v, %v", c, err)
		}
		return nil
	}
	if _, err := f.svc.Create(t.Context(), f.child(), ofVolume(f.id)); err != nil {
		t.Fatal(err)
	}
	f.storage.Step = nil
	// A cut that vanishes below a call is made anew by the next.
	again := f.child() + "-again"
	f.storage.Step = func(op string, done bool) error {
		if op == "create" && !done {
			f.storage.Step = nil
			return f.storage.DeleteCut(t.Context(), volume.CloneCut(again))
		}
		return nil
	}
	_, err = f.svc.Create(t.Context(), again, ofVolume(f.id))
	wantError(t, err, volume.ErrBusy)
	if _, err := f.svc.Create(t.Context(), again, ofVolume(f.id)); err != nil {
		t.Error(err)
	}
}

// testSnapshotRefusedLate: what the storage refuses once the volume is drained is refused without
// another drain for a while; what can be known before is refused before.
func testSnapshotRefusedLate(t *testing.T, _ *rest.Config, f *fixture) {
	now := time.Unix(0, 0)
	f.svc.now = func() time.Time { return now }
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	full := true
	f.fail = func(step string, done bool) error {
		if step == "cut" && !done && full {
			return volume.ErrNoSpace
		}
		return nil
	}
	drain := func() error {
		t.Helper()
		_, err := f.snapshot(t, "full")
		wantError(t, err, volume.ErrBusy)
		f.wantHold(t, "full")
		for errors.Is(err, volume.ErrBusy) {
			f.flushes(t)
			_, err = f.snapshot(t, "full")
		}
		return err
	}
	wantError(t, drain(), volume.ErrNoSpace)
	f.wantHold(t, "")
	now = now.Add(refusalPause - time.Second)
	_, err := f.snapshot(t, "full")
	wantError(t, err, volume.ErrNoSpace)
	f.wantHold(t, "")
	full = false
	if _, err := f.snapshot(t, "another"); !errors.Is(err, volume.ErrBusy) {
		t.Errorf("another snapshot: %v", err)
	}
	if err := f.svc.DeleteSnapshot(t.Context(), volume.SnapshotHandle{Backend: "iscsi", ID: "another"}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second)
	f.mark(t, true)
	if err := drain(); err != nil {
		t.Errorf("the storage has room again: %v", err)
	}
	thick := spec()
	thick.Provisioning = "thick"
	if _, err := f.svc.Create(t.Context(), f.child(), thick); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Publish(t.Context(), f.child(), nodeA, nil, chap); err != nil {
		t.Fatal(err)
	}
	_, err = f.svc.CreateSnapshot(t.Context(), "thick", f.child(), volume.SnapshotClass{})
	wantError(t, err, volume.ErrInvalid)
	if v, err := f.svc.Get(t.Context(), f.child()); err != nil || v.Hold != nil || v.FlushRequest != "" {
		t.Errorf("it was held for what is refused: %+v, %v", v.Hold, err)
	}
}

// testHoldsForgotten: what this process knows of a hold ends with it, and not that of another
// snapshot.
func testHoldsForgotten(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if _, err := f.snapshot(t, "first"); err != nil {
		t.Fatal(err)
	}
	f.publish(t, nodeA, 1)
	_, err := f.snapshot(t, "second")
	wantError(t, err, volume.ErrBusy)
	token := f.wantHold(t, "second")
	if _, err := f.snapshot(t, "first"); err != nil { // found
		t.Fatal(err)
	}
	f.flushes(t)
	if _, err := f.snapshot(t, "second"); err != nil {
		t.Fatalf("the hold was forgotten with that of another snapshot: %v", err)
	}
	if c, err := f.storage.Find(t.Context(), "second"); err != nil || c.Hold != token {
		t.Errorf("cut %+v, %v, want hold %q", c, err, token)
	}
	for name, end := range map[string]func() error{
		"expired": func() error {
			f.svc.now = func() time.Time { return time.Now().Add(time.Hour) }
			defer func() { f.svc.now = time.Now }()
			return f.svc.ExpireHold(t.Context(), f.id)
		},
		"deleted": func() error {
			return f.svc.DeleteSnapshot(t.Context(), volume.SnapshotHandle{Backend: "iscsi", ID: "third"})
		},
		"conflict": func() error {
			f.failOnce("change record", false)
			_, err := f.snapshot(t, "third")
			if !errors.Is(err, errInjected) {
				return fmt.Errorf("nothing failed: %w", err)
			}
			return nil
		},
	} {
		if name != "conflict" {
			_, err = f.snapshot(t, "third")
			wantError(t, err, volume.ErrBusy)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if len(f.svc.holds.last) > 0 {
			t.Errorf("%s: kept are %+v", name, f.svc.holds.last)
		}
	}
	f.unpublish(t, nodeA)
	_, err = f.snapshot(t, "first")
	if err := errors.Join(err, f.svc.Delete(t.Context(), f.id)); err != nil || len(f.svc.holds.last) > 0 {
		t.Errorf("kept are %+v, %v", f.svc.holds.last, err)
	}
}
