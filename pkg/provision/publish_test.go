package provision

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testGeneration is the table of states.md: the generation grows with every
// change of owner and with nothing else.
func testGeneration(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.wantOwner(t, "", 0, false)
	f.publish(t, nodeA, 1)
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	f.wantOwner(t, nodeA, 1, false)
	f.wantExports(t)
	f.publish(t, nodeA, 1) // back to its warm cache
	f.unpublish(t, nodeA)
	f.unpublish(t, nodeA)
	f.publish(t, nodeB, 2)
	f.wantExports(t, iqnB)
	f.unpublish(t, "") // whoever the owner is
	f.wantOwner(t, nodeB, 2, false)
	f.publish(t, nodeA, 3)
	if v, _ := f.storage.Volume(f.id); v.Access.Generation != 3 {
		t.Errorf("the storage server stores generation %d, want 3", v.Access.Generation)
	}
}

// testPublishOrder: the former owner out, then the record, then the new one in.
func testPublishOrder(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.wantSteps(t, "record", "export")
	f.unpublish(t, nodeA)
	f.wantSteps(t, "record", "unexport")
	// The server admits A still, as after a crash in the middle of Unpublish.
	if _, err := f.storage.Export(t.Context(), f.id, backend.Grant{Initiator: iqnA, Credentials: *chap, Generation: 1}); err != nil {
		t.Fatal(err)
	}
	f.takeSteps()
	f.storage.Admitted = func(_ volume.ID, g backend.Grant) {
		v, err := f.svc.Get(context.WithoutCancel(t.Context()), f.id)
		if err != nil || v.Fence.Node != nodeB || v.Fence.Generation != 2 || !v.Published || g.Generation != 2 {
			t.Errorf("B is admitted with generation %d while the record shows %+v (%v)", g.Generation, v.Fence, err)
		}
	}
	p := f.publish(t, nodeB, 2)
	f.wantSteps(t, "unexport", "record", "export")
	f.wantExports(t, iqnB)
	if len(p.Source.Portals) == 0 || p.Source.IQN == "" {
		t.Errorf("publication without an address: %+v", p.Source)
	}
}

// testPublishConverges lets every step fail, before and after it took effect.
// Never may both nodes be admitted, and never B before the record names it.
func testPublishConverges(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.storage.Admitted = func(_ volume.ID, g backend.Grant) {
		v, err := f.svc.Get(context.WithoutCancel(t.Context()), f.id)
		if err != nil || v.Fence.Generation != g.Generation || !v.Published {
			t.Errorf("%s is admitted with generation %d while the record shows %+v (%v)", g.Initiator, g.Generation, v.Fence, err)
		}
	}
	generation := int64(0)
	for _, step := range []string{"unexport", "record", "export"} {
		for _, done := range []bool{false, true} {
			generation++
			f.publish(t, nodeA, generation)
			f.failOnce("unexport", false) // A stays admitted, there is something to end
			wantError(t, f.svc.Unpublish(t.Context(), f.id, nodeA), errInjected)
			f.wantExports(t, iqnA)

			f.failOnce(step, done)
			_, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
			if err == nil || f.pending() {
				t.Fatalf("%s, done %v: got %v, want a failure", step, done, err)
			}
			if got := f.storage.Exported(f.id); len(got) > 1 {
				t.Fatalf("%s, done %v: admitted are %q", step, done, got)
			}
			generation++
			f.publish(t, nodeB, generation)
			f.wantExports(t, iqnB)
			f.unpublish(t, nodeB)
		}
	}
}

func testPublishRefused(t *testing.T, _ *rest.Config, f *fixture) {
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrNotFound)
	f.create(t)
	_, err = f.svc.Publish(t.Context(), f.id, "node-unknown", nil, chap)
	wantError(t, err, volume.ErrNodeNotFound)
	_, err = f.svc.Publish(t.Context(), f.id, "node-new", nil, chap)
	wantError(t, err, volume.ErrNodeNotFound)
	_, err = f.svc.Publish(t.Context(), f.id, nodeA, nil, nil)
	wantError(t, err, volume.ErrInvalid)
	f.wantOwner(t, "", 0, false)
	f.publish(t, nodeA, 1)
	_, err = f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
	wantError(t, err, volume.ErrInUse)
	if !strings.Contains(err.Error(), nodeA) {
		t.Errorf("the error does not name the owner: %v", err)
	}
	f.wantOwner(t, nodeA, 1, true)
	f.wantExports(t, iqnA)
}

// testDirtyRelease: only A can flush, so it keeps its access, and nobody else
// gets the volume before A has.
func testDirtyRelease(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	_, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
	wantError(t, err, volume.ErrInUse)
	f.unpublish(t, nodeA)
	f.wantSteps(t, "record")
	f.wantOwner(t, nodeA, 1, false)
	f.wantExports(t, iqnA)
	if got := <-f.events.Events; !strings.Contains(got, "Warning UnflushedWrites Node node-a") {
		t.Errorf("event %q", got)
	}
	if got := <-f.events.Events; !strings.Contains(got, "UnflushedWrites") {
		t.Errorf("event on the claim %q", got)
	}
	_, err = f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
	wantError(t, err, volume.ErrFenced)
	for _, want := range []string{nodeA, "bring the node back", "kubectl nearflash abandon", string(f.id)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	f.unpublish(t, nodeA)
	if err := f.svc.Settle(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantExports(t, iqnA)

	f.publish(t, nodeA, 1) // A is back and goes on where it was
	f.unpublish(t, nodeA)
	f.mark(t, false)
	f.wantExports(t, iqnA)
	for range 2 {
		if err := f.svc.Settle(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
		f.wantExports(t)
	}
	f.publish(t, nodeB, 2)
}

// testAcceptNodeLoss: the consent to lose writes with the node is not the word
// that the node is lost. Only an administrator gives that, in the record.
func testAcceptNodeLoss(t *testing.T, cfg *rest.Config, f *fixture) {
	for _, accept := range []bool{false, true} {
		s := spec()
		s.AcceptNodeLoss = accept
		if !accept {
			s.Mode = volume.ModeWritethrough // it may have been writeback before
		}
		if _, err := f.svc.Create(t.Context(), f.id, s); err != nil {
			t.Fatal(err)
		}
		if f.record(t).Spec.AcceptNodeLoss != accept {
			t.Errorf("the record does not show the consent %v", accept)
		}
		f.publish(t, nodeA, 1)
		f.mark(t, true)
		f.unpublish(t, nodeA)
		_, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
		wantError(t, err, volume.ErrFenced)

		err = records.UpdateStatus(t.Context(), apiserver.Client(t, cfg), f.id, func(obj *v1alpha1.CachedVolume) error {
			obj.Status.DirtyState = v1alpha1.DirtyStateClean // the remedy that the error names
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		f.publish(t, nodeB, 2)
		f.wantExports(t, iqnB)
		f.unpublish(t, nodeB)
		if err := f.svc.Delete(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
	}
}

func testUnpublishConverges(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	for _, step := range []string{"record", "unexport"} {
		for _, done := range []bool{false, true} {
			f.publish(t, nodeA, 1)
			f.failOnce(step, done)
			if err := f.svc.Unpublish(t.Context(), f.id, nodeA); err == nil || f.pending() {
				t.Fatalf("%s, done %v: got %v, want a failure", step, done, err)
			}
			f.unpublish(t, nodeA)
			f.wantOwner(t, nodeA, 1, false)
			f.wantExports(t)
		}
	}
}

func testUnpublishOthers(t *testing.T, _ *rest.Config, f *fixture) {
	f.unpublish(t, nodeA) // no such volume
	f.unpublish(t, "node-unknown")
	f.create(t)
	f.unpublish(t, nodeA)
	f.unpublish(t, "")
	f.publish(t, nodeA, 1)
	for _, other := range []string{nodeB, "node-unknown", "node-a-twin"} {
		f.unpublish(t, other)
		f.wantOwner(t, nodeA, 1, true)
		f.wantExports(t, iqnA)
	}
}

// testTwoWriters: of two controllers that decide on the same version of the
// record, one writes and the other learns of it.
func testTwoWriters(t *testing.T, cfg *rest.Config, f *fixture) {
	f.create(t)
	other := newFixture(t, cfg, f.id)
	other.storage = f.storage
	other.svc = New(Config{Client: other.client, Servers: one(f.storage), Events: other.events})
	// The other one publishes to B while this one is about to write A.
	f.fail = func(step string, done bool) error {
		if step != "record" || done {
			return nil
		}
		f.fail = nil
		f.storage.Step = nil // f is busy in this very step
		_, err := other.svc.Publish(context.WithoutCancel(t.Context()), f.id, nodeB, nil, chap)
		return err
	}
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrBusy)
	f.wantOwner(t, nodeB, 1, true)
	f.wantExports(t, iqnB)
	_, err = f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrInUse)
}

// testLateAnswer: another controller, which has taken over, gives the volume away just
// after this one has read the record. This one decides by what it has read, and must
// not touch whom it did not read of.
func testLateAnswer(t *testing.T, cfg *rest.Config, f *fixture) {
	// Never dirty, so that nobody is spared for what he might have to flush.
	never := spec()
	never.Mode, never.AcceptNodeLoss = volume.ModeWritethrough, false
	if _, err := f.svc.Create(t.Context(), f.id, never); err != nil {
		t.Fatal(err)
	}
	other := newFixture(t, cfg, f.id)
	other.storage = f.storage
	other.svc = New(Config{Client: other.client, Servers: one(f.storage), Events: other.events})
	for i, tc := range []struct {
		// before are the reads before that by which is decided: they say where the volume lies.
		before int
		act    func() error
	}{
		{1, func() error { return f.svc.Settle(t.Context(), f.id) }},
		{0, func() error { return f.svc.Unpublish(t.Context(), f.id, nodeA) }},
		{1, func() error {
			_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
			return err
		}},
		{0, func() error { return f.svc.Unpublish(t.Context(), f.id, nodeB) }},
	} {
		generation := int64(2*i + 1)
		f.publish(t, nodeA, generation)
		f.failOnce("unexport", false)
		if err := f.svc.Unpublish(t.Context(), f.id, nodeA); err == nil {
			t.Fatal("nothing failed")
		}
		f.wantExports(t, iqnA)
		f.read = func() {
			if tc.before--; tc.before >= 0 {
				return
			}
			f.read = nil
			other.publish(t, nodeB, generation+1)
		}
		if err := tc.act(); err != nil && !errors.Is(err, volume.ErrBusy) || f.read != nil {
			t.Errorf("%d: %v", i, err)
		}
		f.wantOwner(t, nodeB, generation+1, true)
		f.wantExports(t, iqnB)
		f.unpublish(t, nodeB)
	}
}

// testUnpublishDirty: a node that may hold unflushed writes keeps its access, so that its
// volume is released also while the storage server does not answer.
func testUnpublishDirty(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	f.storage.Step = func(string, bool) error { return errInjected }
	f.unpublish(t, nodeA)
	f.storage.Step = f.recordStep
	f.wantOwner(t, nodeA, 1, false)
	f.wantExports(t, iqnA)
}

// testStaleGeneration: somebody was admitted between the question and the export.
func testStaleGeneration(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.fail = func(step string, done bool) error {
		if step != "export" || done {
			return nil
		}
		f.fail = nil
		f.storage.Step = nil
		_, err := f.storage.Export(context.WithoutCancel(t.Context()), f.id, backend.Grant{Initiator: iqnB, Credentials: *chap, Generation: 7})
		f.storage.Evict(f.id)
		return err
	}
	p, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	if err != nil || p.Fence.Generation != 8 {
		t.Fatalf("got %+v, %v; want generation 8", p, err)
	}
	f.wantOwner(t, nodeA, 8, true)
	f.wantExports(t, iqnA)
}

func testTwins(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	_, err := f.svc.Publish(t.Context(), f.id, "node-a-twin", nil, chap)
	wantError(t, err, volume.ErrInvalid)
	if !strings.Contains(err.Error(), "/etc/iscsi/initiatorname.iscsi") {
		t.Errorf("the error names no remedy: %v", err)
	}
}

// testStatic: the record alone is the fence of a volume whose server nearflash
// does not control.
func testStatic(t *testing.T, _ *rest.Config, f *fixture) {
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, &volume.Spec{}, nil)
	wantError(t, err, volume.ErrNotFound)
	publish := func(node string, want int64) {
		t.Helper()
		p, err := f.svc.Publish(t.Context(), f.id, node, staticSpec(), nil)
		if err != nil || p.Fence.Generation != want || p.Fence.Node != node || p.Source.IQN != staticSpec().Static.IQN ||
			p.Source.LUN != 3 || !slices.Equal(p.Source.Portals, staticSpec().Static.Portals) {
			t.Fatalf("got %+v, %v; want generation %d of the given source", p, err, want)
		}
	}
	publish(nodeA, 1)
	publish(nodeA, 1)
	_, err = f.svc.Publish(t.Context(), f.id, nodeB, staticSpec(), nil)
	wantError(t, err, volume.ErrInUse)
	other := staticSpec()
	other.Static.LUN = 4
	_, err = f.svc.Publish(t.Context(), f.id, nodeA, other, nil)
	wantError(t, err, volume.ErrInvalid)
	f.unpublish(t, nodeB)
	f.wantOwner(t, nodeA, 1, true)
	f.mark(t, true)
	f.unpublish(t, nodeA)
	_, err = f.svc.Publish(t.Context(), f.id, nodeB, staticSpec(), nil)
	wantError(t, err, volume.ErrFenced)
	f.mark(t, false)
	publish(nodeB, 2)
	if size, err := f.svc.Expand(t.Context(), f.id, 5*gib); err != nil || size != 5*gib {
		t.Errorf("expand: %d, %v", size, err)
	}
	f.unpublish(t, nodeB)
	if err := f.svc.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantGone(t)
	if calls := f.storage.Calls(); len(calls) > 0 {
		t.Errorf("the storage server was asked for %q", calls)
	}
}

func testRetire(t *testing.T, _ *rest.Config, f *fixture) {
	retire := func() {
		t.Helper()
		if err := f.svc.Retire(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
	}
	retire() // nothing there
	if _, err := f.svc.Publish(t.Context(), f.id, nodeA, staticSpec(), nil); err != nil {
		t.Fatal(err)
	}
	retire()
	f.wantOwner(t, nodeA, 1, true)
	f.mark(t, true)
	f.unpublish(t, nodeA)
	retire()
	f.wantOwner(t, nodeA, 1, false)
	f.mark(t, false)
	f.failOnce("change record", false)
	wantError(t, f.svc.Retire(t.Context(), f.id), errInjected)
	before := f.record(t).Fence
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, staticSpec(), nil)
	wantError(t, err, volume.ErrBusy)
	retire()
	f.wantGone(t)
	after, err := f.svc.Publish(t.Context(), f.id, nodeA, staticSpec(), nil)
	if err != nil || after.Fence.UID == before.UID || after.Fence.Generation != 1 {
		t.Errorf("published as %+v, %v after %+v", after.Fence, err, before)
	}
	f.unpublish(t, nodeA)
	retire()
	f.wantGone(t)
}

// testRetireFinishesDeletion: a volume that nearflash made is never deleted by
// Retire, but a record whose volume is gone goes.
func testRetireFinishesDeletion(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if err := f.svc.Retire(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.failOnce("delete", false)
	wantError(t, f.svc.Delete(t.Context(), f.id), errInjected)
	if err := f.svc.Retire(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.storage.Volume(f.id); !ok || !f.record(t).Deleting {
		t.Fatal("Retire deleted a volume")
	}
	f.failOnce("delete", true)
	wantError(t, f.svc.Delete(t.Context(), f.id), errInjected)
	if err := f.svc.Retire(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantGone(t)
}

// testForgetPublished: another controller publishes a static volume between the
// two steps that remove its record; one of before knows no record that waits for its end.
func testForgetPublished(t *testing.T, cfg *rest.Config, f *fixture) {
	other := newFixture(t, cfg, f.id)
	if _, err := f.svc.Publish(t.Context(), f.id, nodeA, staticSpec(), nil); err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, nodeA)
	f.fail = func(step string, done bool) error {
		if step != "delete record" || !done {
			return nil
		}
		f.fail = nil
		_, err := other.svc.Publish(context.WithoutCancel(t.Context()), f.id, nodeB, staticSpec(), nil)
		wantError(t, err, volume.ErrBusy)
		return records.UpdateStatus(context.WithoutCancel(t.Context()), other.client, f.id, func(obj *v1alpha1.CachedVolume) error {
			obj.Status.OwnerNode, obj.Status.Generation = nodeB, ptr.To(int64(2))
			obj.Status.Publication = v1alpha1.PublicationPublished
			return nil
		})
	}
	err := f.svc.Retire(t.Context(), f.id)
	wantError(t, err, volume.ErrInUse)
	f.wantOwner(t, nodeB, 2, true)
	f.unpublish(t, nodeB)
	if err := f.svc.Retire(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantGone(t)
}
