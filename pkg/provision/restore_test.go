package provision

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testRestoredRecord: the record is older than the storage server's knowledge. What
// cannot be dirty waits for the end of the session alone.
func testRestoredRecord(t *testing.T, _ *rest.Config, f *fixture) {
	s := spec()
	s.Mode, s.AcceptNodeLoss = volume.ModeWritethrough, false
	if _, err := f.svc.Create(t.Context(), f.id, s); err != nil {
		t.Fatal(err)
	}
	f.admitUnknown(t, iqnB, 5)
	f.storage.Login(f.id, iqnB, true)
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrFenced)
	if !strings.Contains(err.Error(), iqnB) || !strings.Contains(err.Error(), "generation 5") {
		t.Errorf("the error names neither user nor generation: %v", err)
	}
	f.wantExports(t, iqnB)
	f.storage.Login(f.id, iqnB, false)
	f.publish(t, nodeA, 6)
	f.wantExports(t, iqnA)
}

// admitUnknown lets an initiator in behind the record's back, as it looks when the
// record comes from an old backup.
func (f *fixture) admitUnknown(t *testing.T, initiator string, generation int64) {
	t.Helper()
	if _, err := f.storage.Export(t.Context(), f.id, backend.Grant{Initiator: initiator, Credentials: *chap, Generation: generation}); err != nil {
		t.Fatal(err)
	}
}

// testRestoredDirty: the owner that a restored record has forgotten may hold
// unflushed writes, logged in or not. It becomes the owner again, as one that was lost.
func testRestoredDirty(t *testing.T, _ *rest.Config, f *fixture) {
	for i, loggedIn := range []bool{false, true} {
		base := int64(10 * (i + 1))
		f.create(t)
		f.publish(t, nodeA, 1) // the backup is of now, the mark included
		f.mark(t, true)
		f.report(t)
		f.storage.Evict(f.id)
		f.admitUnknown(t, iqnB, base)
		f.storage.Login(f.id, iqnB, loggedIn)
		_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
		wantError(t, err, volume.ErrFenced)
		if !strings.Contains(err.Error(), nodeB) || !strings.Contains(err.Error(), "abandon") {
			t.Errorf("the error names neither the node nor the remedy: %v", err)
		}
		f.wantOwner(t, nodeB, base, false)
		f.wantExports(t, iqnB)
		f.wantNoReport(t)
		if got := <-f.events.Events; !strings.Contains(got, "Warning "+ReasonRecordRestored) {
			t.Errorf("event %q", got)
		}
		<-f.events.Events // the same on the claim
		f.publish(t, nodeB, base)
		f.unpublish(t, nodeB)
		<-f.events.Events
		<-f.events.Events
		f.storage.Login(f.id, iqnB, false)
		f.report(t)
		f.mark(t, false)
		f.publish(t, nodeA, base+1)
		f.wantNoReport(t)
		f.wantExports(t, iqnA)
		f.unpublish(t, nodeA)
		if err := f.svc.Delete(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
	}
}

// testRestoredSettle: the same is found without anybody who wants the volume.
func testRestoredSettle(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	f.admitUnknown(t, iqnB, 4)
	for range 2 {
		if err := f.svc.Settle(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
		f.wantOwner(t, nodeB, 4, false)
		f.wantExports(t, iqnB)
	}
	f.mark(t, false)
	if err := f.svc.Settle(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantExports(t)
	f.admitUnknown(t, "iqn.1993-08.org.debian:01:unknown", 6)
	wantError(t, f.svc.Settle(t.Context(), f.id), volume.ErrFenced)
	f.storage.Evict(f.id)
	f.admitUnknown(t, iqnA, 8) // the name of two nodes: nobody is guessed
	wantError(t, f.svc.Settle(t.Context(), f.id), volume.ErrFenced)
	f.wantOwner(t, nodeB, 4, false)
	f.wantExports(t, iqnA)

	// The cluster was lost, and a node with it: somebody says which one it was.
	const gone = "iqn.1993-08.org.debian:01:gone"
	f.storage.Evict(f.id)
	f.admitUnknown(t, gone, 9)
	wantError(t, f.svc.Settle(t.Context(), f.id), volume.ErrFenced)
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "node-gone"}}
	if err := f.client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	pool.Status.InitiatorIQN = gone
	if err := errors.Join(f.client.Status().Update(t.Context(), pool), f.svc.Settle(t.Context(), f.id)); err != nil {
		t.Fatal(err)
	}
	f.wantOwner(t, "node-gone", 9, false)
}

// testRestoredMark: a mark of an ownership before the last one says nothing.
func testRestoredMark(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	f.unpublish(t, nodeA)
	f.storage.Evict(f.id)
	f.admitUnknown(t, iqnB, 3)
	f.storage.Evict(f.id)
	f.publish(t, nodeB, 4)
}

// setBack makes the record what it was, as a backup of etcd does.
func (f *fixture) setBack(t *testing.T, to v1alpha1.CachedVolumeStatus) {
	t.Helper()
	obj, err := records.Load(t.Context(), f.client, f.id)
	if err != nil {
		t.Fatal(err)
	}
	obj.Status = to
	if err := f.client.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	f.takeSteps()
}

func (f *fixture) status(t *testing.T) v1alpha1.CachedVolumeStatus {
	t.Helper()
	obj, err := records.Load(t.Context(), f.client, f.id)
	if err != nil {
		t.Fatal(err)
	}
	return obj.Status
}

// testRestoredReleased: the record is of a moment when the volume was released and clean,
// and its owner has it again since, under the same generation, with unflushed writes.
// Nobody ends its access, and nobody else gets the volume, until it has flushed.
func testRestoredReleased(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	released := f.status(t)
	f.publish(t, nodeA, 1)
	f.mark(t, true)
	f.taken = "first"
	for _, loggedIn := range []bool{true, false} {
		f.setBack(t, released)
		f.storage.Login(f.id, iqnA, loggedIn)
		if err := f.svc.Settle(t.Context(), f.id); err != nil {
			t.Fatal(err)
		}
		f.wantExports(t, iqnA)
		if got := <-f.events.Events; !strings.Contains(got, "Warning "+ReasonRecordRestored) || !strings.Contains(got, "that generation 1") {
			t.Errorf("event %q", got)
		}
		<-f.events.Events // the same on the claim
		f.setBack(t, released)
		_, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
		wantError(t, err, volume.ErrFenced)
		f.wantExports(t, iqnA)
		f.wantOwner(t, nodeA, 1, false)
		<-f.events.Events
		<-f.events.Events
	}
	// The owner says that it has flushed: its access ends, once.
	f.mark(t, false)
	if err := f.svc.Settle(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantExports(t)

	// To the owner it may come back at once. That proves nothing of what it had before.
	f.publish(t, nodeA, 1)
	f.setBack(t, released)
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	f.wantOwner(t, nodeA, 1, false)
	f.wantExports(t, iqnA)
	<-f.events.Events
	<-f.events.Events
	f.mark(t, false)
	f.publish(t, nodeA, 1)
	f.failOnce("unexport", false)
	wantError(t, f.svc.Unpublish(t.Context(), f.id, nodeA), errInjected)
	f.wantExports(t, iqnA)
	f.publish(t, nodeB, 2)
	f.wantExports(t, iqnB)

	// Who was made the owner since the takeover leaves it as always.
	f.unpublish(t, nodeB)
	f.wantExports(t)
	f.publish(t, nodeA, 3)
}

// testRestoredPublished: the record is of a moment when its owner had the volume and was
// clean. It may have unflushed writes since, under the same generation: neither its release
// nor a publication to it again proves anything.
func testRestoredPublished(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	published := f.status(t)
	f.mark(t, true)
	for _, taken := range []string{"first", "second"} {
		f.taken = taken
		f.setBack(t, published)
		if taken == "second" {
			f.publish(t, nodeA, 1)
		}
		f.unpublish(t, nodeA)
		f.wantExports(t, iqnA)
		if got := <-f.events.Events; !strings.Contains(got, "Warning "+ReasonRecordRestored) {
			t.Errorf("event %q", got)
		}
		<-f.events.Events // the same on the claim
		_, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
		wantError(t, err, volume.ErrFenced)
		f.wantOwner(t, nodeA, 1, false)
		f.wantExports(t, iqnA)
	}
	// The owner says that it has flushed: it has said so of a record of now.
	f.mark(t, false)
	f.publish(t, nodeB, 2)
	f.wantExports(t, iqnB)
}

// testRestoredReleasedClean: of a volume that never is dirty the owner keeps its access
// while it is logged in.
func testRestoredReleasedClean(t *testing.T, _ *rest.Config, f *fixture) {
	s := spec()
	s.Mode, s.AcceptNodeLoss = volume.ModeWritethrough, false
	if _, err := f.svc.Create(t.Context(), f.id, s); err != nil {
		t.Fatal(err)
	}
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	released := f.status(t)
	f.publish(t, nodeA, 1)
	f.storage.Login(f.id, iqnA, true)
	f.taken = "first"
	f.setBack(t, released)
	wantError(t, f.svc.Settle(t.Context(), f.id), volume.ErrFenced)
	_, err := f.svc.Publish(t.Context(), f.id, nodeB, nil, chap)
	wantError(t, err, volume.ErrFenced)
	f.wantExports(t, iqnA)
	f.storage.Login(f.id, iqnA, false)
	f.publish(t, nodeB, 2)
	f.wantExports(t, iqnB)
}

func TestUnknownExport(t *testing.T) {
	one := func(generation int64) backend.Access {
		return backend.Access{Exports: []backend.Export{{Initiator: iqnA, Generation: generation}}}
	}
	for name, tc := range map[string]struct {
		v      volume.Volume
		old    bool
		access backend.Access
		want   bool
	}{
		"nobody":                         {old: true},
		"a later generation":             {access: one(6), want: true},
		"an earlier generation":          {access: one(4), old: true},
		"its own, a record of now":       {access: one(5)},
		"its own, an old record":         {access: one(5), old: true, want: true},
		"its own, an old one, published": {v: volume.Volume{Published: true}, access: one(5), old: true},
		"its own, an old one, dirty":     {v: volume.Volume{PossiblyDirty: true}, access: one(5), old: true},
	} {
		tc.v.Fence.Generation = 5
		if e, unknown := unknownExport(tc.v, tc.access, tc.old); unknown != tc.want || unknown != (e != backend.Export{}) {
			t.Errorf("%s: %+v, %v, want %v", name, e, unknown, tc.want)
		}
	}
	readers := backend.Access{Exports: []backend.Export{{Initiator: iqnA, Generation: 6, ReadOnly: true}, {Initiator: iqnB, Generation: 6, ReadOnly: true, LoggedIn: true}}}
	if e, _ := unknownExport(volume.Volume{}, readers, false); e.Initiator != iqnB {
		t.Errorf("of readers that the record does not know, %s stands for all, want the one that is logged in", e.Initiator)
	}
}
