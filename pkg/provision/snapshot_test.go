package provision

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// snapshot asks for a snapshot of the fixture's volume once.
func (f *fixture) snapshot(t *testing.T, id volume.SnapshotID) (volume.Snapshot, error) {
	t.Helper()
	return f.svc.CreateSnapshot(t.Context(), id, f.id, volume.SnapshotClass{})
}

// flushes is the node that has the volume: what is asked for is flushed, and reported.
func (f *fixture) flushes(t *testing.T) {
	t.Helper()
	v := f.record(t)
	rec := records.New(f.client, f.events, time.Now)
	if v.PossiblyDirty {
		f.mark(t, false)
	}
	if v.FlushRequest != "" {
		if err := rec.ReportFlushed(t.Context(), f.id, v.Fence, v.FlushRequest); err != nil {
			t.Fatal(err)
		}
	}
	f.takeSteps()
}

// wantHold fails unless the volume is held for a name, "" for none, and returns the token.
func (f *fixture) wantHold(t *testing.T, name volume.SnapshotID) (token string) {
	t.Helper()
	h := f.record(t).Hold
	switch {
	case h == nil && name == "":
		return ""
	case h == nil || h.Name != name:
		t.Fatalf("held by %+v, want %q", h, name)
	}
	return h.Token
}

// restart has another process of the controller go on.
func (f *fixture) restart() {
	f.svc = New(Config{
		Client: f.client, Servers: f.servers(), Events: f.events, Now: f.svc.now,
	})
}

// testSnapshot: a volume that is attached is held, flushed, cut, and let go.
func testSnapshot(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	_, err := f.snapshot(t, "s-1")
	if wantError(t, err, volume.ErrBusy); !strings.Contains(err.Error(), "flushes volume") {
		t.Errorf("it is not said what is waited for: %v", err)
	}
	token := f.wantHold(t, "s-1")
	if v := f.record(t); v.FlushRequest != token {
		t.Errorf("asked for flush %q, the hold is %q", v.FlushRequest, token)
	}
	wantError(t, records.New(f.client, f.events, nil).MarkPossiblyDirty(t.Context(), "none", volume.Fence{}), volume.ErrFenced)
	_, err = f.snapshot(t, "s-2") // another one waits
	wantError(t, err, volume.ErrBusy)
	f.mark(t, false)
	_, err = f.snapshot(t, "s-1") // clean, and the flush is not reported
	if wantError(t, err, volume.ErrBusy); !strings.Contains(err.Error(), "mounted") {
		t.Errorf("it is not said that it may have to be mounted: %v", err)
	}
	if _, err := f.storage.Find(t.Context(), "s-1"); !errors.Is(err, volume.ErrNotFound) {
		t.Fatalf("it was cut before its node had flushed: %v", err)
	}
	f.flushes(t)
	got, err := f.snapshot(t, "s-1")
	if err != nil {
		t.Fatal(err)
	}
	f.wantSteps(t, "cut", "find", "accept", "find", "change record")
	want := volume.Snapshot{Handle: volume.SnapshotHandle{Backend: "iscsi", ID: "s-1"}, Volume: f.id, SizeBytes: gib, Created: got.Created, Ready: true}
	if got != want {
		t.Errorf("snapshot %+v, want %+v", got, want)
	}
	f.wantHold(t, "")
	if c, err := f.storage.Find(t.Context(), "s-1"); err != nil || !c.Accepted || c.Hold != token || c.Filesystem != volume.FormatNever {
		t.Errorf("cut %+v, %v", c, err)
	}
	if again, err := f.snapshot(t, "s-1"); err != nil || again != got {
		t.Errorf("again: %+v, %v", again, err)
	}
	all, err := f.svc.Snapshots(t.Context())
	if err != nil || len(all) != 1 || all[0] != got {
		t.Errorf("snapshots %+v, %v", all, err)
	}
	if err := f.svc.DeleteSnapshot(t.Context(), got.Handle); err != nil {
		t.Fatal(err)
	}
	if all, err := f.svc.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("snapshots after deletion %+v, %v", all, err)
	}
}

// testSnapshotDetached: a volume that nobody has is cut at once; one with unflushed writes
// somewhere is not.
func testSnapshotDetached(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if _, err := f.snapshot(t, "detached-1"); err != nil {
		t.Fatal(err)
	}
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	f.unpublish(t, nodeA)
	_, err := f.snapshot(t, "detached-2")
	wantError(t, err, volume.ErrFenced)
	f.wantHold(t, "")
	f.mark(t, false)
	if _, err := f.snapshot(t, "detached-2"); err != nil { // who is still admitted is shut out first
		t.Fatal(err)
	}
	f.wantExports(t)
	f.wantHold(t, "")
	if err := f.svc.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	if s, err := f.snapshot(t, "detached-2"); err != nil || s.Volume != f.id { // it outlives its volume
		t.Errorf("snapshot of a deleted volume: %+v, %v", s, err)
	}
	_, err = f.snapshot(t, "detached-3")
	wantError(t, err, volume.ErrNotFound)
}

// testSnapshotLostNode: who has the unflushed writes, and does not answer, is not waited for.
func testSnapshotLostNode(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeB, 1)
	f.mark(t, true)
	node := &corev1.Node{}
	ready := func(s corev1.ConditionStatus) {
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeB}}
		_ = f.client.Delete(t.Context(), node)
		if s == "" {
			return
		}
		makeNode(t, f.client, nodeB, s)
	}
	for _, s := range []corev1.ConditionStatus{corev1.ConditionUnknown, corev1.ConditionFalse, ""} {
		ready(s)
		_, err := f.snapshot(t, "lost")
		wantError(t, err, volume.ErrFenced)
		f.wantHold(t, "")
	}
	ready(corev1.ConditionTrue)
	_, err := f.snapshot(t, "lost")
	wantError(t, err, volume.ErrBusy)
	f.wantHold(t, "lost")
}

// testSnapshotKilled: the controller is killed before and after each thing that it changes, and
// another process goes on. Whatever is accepted was cut under one hold, behind a flush.
func testSnapshotKilled(t *testing.T, cfg *rest.Config, _ *fixture) {
	for n := 1; ; n++ {
		f := newFixture(t, cfg, volume.ID(fmt.Sprint("snapshot-killed-", n)))
		f.create(t)
		f.publish(t, nodeA, 1)
		f.mark(t, true)
		left := n
		f.fail = func(string, bool) error {
			if left--; left == 0 {
				return errInjected
			}
			return nil
		}
		var got volume.Snapshot
		err := errInjected
		for tries := 0; err != nil && tries < 20; tries++ {
			if got, err = f.snapshot(t, "killed"); errors.Is(err, errInjected) {
				f.restart()
			} else if errors.Is(err, volume.ErrBusy) {
				keep := left
				left = 0 // the node is not killed here
				f.flushes(t)
				left = keep
			} else if err != nil {
				t.Fatalf("killed at step %d: %v", n, err)
			}
		}
		if err != nil {
			t.Fatalf("killed at step %d: it does not go on: %v", n, err)
		}
		f.fail = nil
		c, findErr := f.storage.Find(t.Context(), "killed")
		if findErr != nil || !c.Accepted || got.Volume != f.id {
			t.Fatalf("killed at step %d: %+v, %v", n, c, findErr)
		}
		f.wantHold(t, "")
		if left > 0 {
			t.Logf("killed at %d steps", n-1)
			return
		}
	}
}

// testSnapshotHoldOver: a cut whose hold did not last is not accepted, whoever has ended it and
// whatever came in between.
func testSnapshotHoldOver(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	over := func() {
		err := records.EndHold(t.Context(), f.client, f.id, func(volume.Hold) bool { return true })
		if err != nil {
			t.Error(err)
		}
	}
	var holds []string
	times := 2
	f.storage.Step = func(op string, done bool) error {
		if op == "cut" && done && times > 0 {
			times--
			holds = append(holds, f.wantHold(t, "over"))
			over()
		}
		return f.recordStep(op, done)
	}
	if _, err := f.snapshot(t, "over"); err != nil {
		t.Fatal(err)
	}
	c, err := f.storage.Find(t.Context(), "over")
	if err != nil || !c.Accepted || slices.Contains(holds, c.Hold) || len(holds) != 2 {
		t.Errorf("accepted %+v, %v; the holds that were over are %q", c, err, holds)
	}
}

// testSnapshotTwoControllers: another process replaces the hold between the cut and its
// acceptance; only what it has cut itself is accepted, by either.
func testSnapshotTwoControllers(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	first := f.svc
	f.restart()
	second, once := f.svc, true
	f.storage.Step = func(op string, done bool) error {
		if op == "cut" && done && once {
			once = false
			if _, err := second.CreateSnapshot(t.Context(), "two", f.id, volume.SnapshotClass{}); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	got, err := first.CreateSnapshot(t.Context(), "two", f.id, volume.SnapshotClass{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.storage.Find(t.Context(), "two")
	if err != nil || !c.Accepted || !c.Created.Equal(got.Created) {
		t.Errorf("the answer %+v, and what is there %+v, %v", got, c, err)
	}
	f.wantHold(t, "")
}

// testSnapshotOfBackup: a hold, and a flush that is done under it, may be out of a backup. They
// prove nothing to a process that has not put the hold there itself, nor behind a takeover.
func testSnapshotOfBackup(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	_, err := f.snapshot(t, "backup")
	wantError(t, err, volume.ErrBusy)
	f.flushes(t)
	before := f.wantHold(t, "backup")
	f.restart()
	_, err = f.snapshot(t, "backup")
	wantError(t, err, volume.ErrBusy)
	second := f.wantHold(t, "backup")
	f.flushes(t)
	f.taken = "epoch-of-before"
	_, err = f.snapshot(t, "backup")
	wantError(t, err, volume.ErrBusy)
	if third := f.wantHold(t, "backup"); second == before || third == second {
		t.Errorf("holds %q, %q, %q", before, second, third)
	}
	f.flushes(t)
	if _, err := f.snapshot(t, "backup"); err != nil {
		t.Fatal(err)
	}
}

// testSnapshotRaces: whatever happens to a volume that is held, what is accepted was cut clean.
func testSnapshotRaces(t *testing.T, cfg *rest.Config, _ *fixture) {
	n := 0
	for name, meanwhile := range map[string]func(*testing.T, *fixture){
		"publish": func(t *testing.T, f *fixture) { f.publish(t, nodeA, 1) },
		"publish and mark": func(t *testing.T, f *fixture) {
			f.publish(t, nodeA, 1)
			err := records.New(f.client, f.events, nil).MarkPossiblyDirty(t.Context(), f.id, f.record(t).Fence)
			wantError(t, err, volume.ErrBusy)
		},
		"mode": func(t *testing.T, f *fixture) {
			err := f.svc.Modify(t.Context(), f.id, func(s volume.Spec) (volume.Spec, error) {
				s.Mode, s.AcceptNodeLoss = volume.ModeWritethrough, false
				return s, nil
			})
			if err != nil {
				t.Error(err)
			}
		},
		"second snapshot": func(t *testing.T, f *fixture) {
			_, err := f.snapshot(t, "second")
			wantError(t, err, volume.ErrBusy)
		},
		"flush": func(t *testing.T, f *fixture) {
			err := records.UpdateObject(t.Context(), f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
				obj.Spec.FlushRequest = "somebody's"
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		},
	} {
		for _, at := range []string{"cut", "accept", "change record"} {
			for _, done := range []bool{false, true} {
				f := newFixture(t, cfg, volume.ID(fmt.Sprint("race-", n)))
				n++
				f.create(t)
				once := true
				f.fail = func(step string, d bool) error {
					if step != at || d != done || !once {
						return nil
					}
					once = false
					f.mu.Unlock()
					defer f.mu.Lock()
					if at == "change record" && f.record(t).Hold == nil && name != "mode" && name != "flush" && name != "publish" {
						return nil // there is nothing to race with yet
					}
					meanwhile(t, f)
					return nil
				}
				var err error
				for range 10 {
					if _, err = f.snapshot(t, "race"); !errors.Is(err, volume.ErrBusy) {
						break
					}
					f.flushes(t)
				}
				if err != nil {
					t.Errorf("%s at %s, done %t: %v", name, at, done, err)
					continue
				}
				f.wantHold(t, "")
				if c, err := f.storage.Find(t.Context(), "race"); err != nil || !c.Accepted {
					t.Errorf("%s at %s: %+v, %v", name, at, c, err)
				}
			}
		}
	}
}

// testSnapshotRefused: what cannot be cut is not held any longer.
func testSnapshotRefused(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	_, err := f.svc.CreateSnapshot(t.Context(), "class", f.id, volume.SnapshotClass{Origin: "ebs"})
	wantError(t, err, volume.ErrInvalid)
	_, err = f.snapshot(t, "clone-x")
	wantError(t, err, volume.ErrInvalid)
	for i, kind := range []error{volume.ErrInvalid, volume.ErrNoSpace} {
		f.fail = func(step string, done bool) error {
			if step == "cut" && !done {
				return kind
			}
			return nil
		}
		_, err = f.snapshot(t, volume.SnapshotID(fmt.Sprint("refused-", i)))
		wantError(t, err, kind)
		f.wantHold(t, "")
	}
	f.fail = nil
	static := staticSpec()
	if _, err := f.svc.Publish(t.Context(), "static-snapshot", nodeA, static, nil); err != nil {
		t.Fatal(err)
	}
	_, err = f.svc.CreateSnapshot(t.Context(), "static", "static-snapshot", volume.SnapshotClass{})
	wantError(t, err, volume.ErrInvalid)
	if _, err := f.snapshot(t, "taken"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.svc.Create(t.Context(), "refused-other", spec()); err != nil {
		t.Fatal(err)
	}
	_, err = f.svc.CreateSnapshot(t.Context(), "taken", "refused-other", volume.SnapshotClass{})
	wantError(t, err, volume.ErrExists)
}

// testSnapshotSlow: a cut that is in work is asked for again, under the same hold.
func testSnapshotSlow(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	done, ready := false, false
	f.storage.Progress = func(c *backend.Cut) { c.Done, c.Ready = done, ready }
	_, err := f.snapshot(t, "slow")
	wantError(t, err, volume.ErrBusy)
	token := f.wantHold(t, "slow")
	_, err = f.snapshot(t, "slow")
	wantError(t, err, volume.ErrBusy)
	if now := f.wantHold(t, "slow"); now != token {
		t.Errorf("the hold is another one: %q, %q", token, now)
	}
	done = true
	s, err := f.snapshot(t, "slow")
	if err != nil || s.Ready {
		t.Fatalf("%+v, %v", s, err)
	}
	f.wantHold(t, "") // before it is ready
	ready = true
	if s, err := f.snapshot(t, "slow"); err != nil || !s.Ready {
		t.Errorf("%+v, %v", s, err)
	}
}

// testSnapshotFormatted: what is cut while it is formatted counts as neither.
func testSnapshotFormatted(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	_, err := f.snapshot(t, "formatted")
	wantError(t, err, volume.ErrBusy)
	f.flushes(t)
	once := true
	f.storage.Step = func(op string, done bool) error {
		if op == "cut" && done && once {
			once = false
			rec := records.New(f.client, f.events, time.Now)
			if err := rec.SetFormatted(t.Context(), f.id, f.record(t).Fence, volume.FormatDone); err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	if _, err := f.snapshot(t, "formatted"); err != nil {
		t.Fatal(err)
	}
	if c, err := f.storage.Find(t.Context(), "formatted"); err != nil || c.Filesystem != volume.FormatDone || once {
		t.Errorf("%+v, %v", c, err)
	}
}
