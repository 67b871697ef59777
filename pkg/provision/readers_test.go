package provision

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// written makes a volume that a node has written to and left, under generation 1.
func (f *fixture) written(t *testing.T) {
	t.Helper()
	f.create(t)
	fence := f.publish(t, nodeA, 1).Fence
	rec := records.New(f.client, f.events, f.svc.now)
	if err := rec.SetFormatted(t.Context(), f.id, fence, volume.FormatDone); err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, nodeA)
}

// read publishes the volume to one reader more.
func (f *fixture) readBy(t *testing.T, node string, wantGeneration int64) {
	t.Helper()
	p, err := f.svc.PublishReader(t.Context(), f.id, node, nil, chap)
	if err != nil || p.Fence.Node != node || p.Fence.Generation != wantGeneration || p.Fence.UID == "" {
		t.Fatalf("got %+v, %v; want generation %d for %s", p, err, wantGeneration, node)
	}
}

// wantReaders compares the record and what the server admits: nobody of them may write.
func (f *fixture) wantReaders(t *testing.T, published bool, nodes ...string) {
	t.Helper()
	v := f.record(t)
	if v.Fence.Node != volume.Readers || !slices.Equal(v.Readers, nodes) || v.Published != published {
		t.Errorf("the record shows owner %q, readers %q, published %v; want %q, %v", v.Fence.Node, v.Readers, v.Published, nodes, published)
	}
	have, _ := f.storage.Volume(f.id)
	for _, e := range have.Access.Exports {
		if !e.ReadOnly || e.Generation != v.Fence.Generation {
			t.Errorf("%+v is admitted beside readers of generation %d", e, v.Fence.Generation)
		}
	}
	if len(have.Access.Exports) != len(nodes) {
		t.Errorf("%d are admitted, want those of %q", len(have.Access.Exports), nodes)
	}
}

// testReadersOfLostRecord: a record that was made anew does not say that somebody has written; the storage
// server knows that the volume had an owner.
func testReadersOfLostRecord(t *testing.T, _ *rest.Config, f *fixture) {
	f.written(t)
	f.readBy(t, nodeA, 2)
	f.unpublish(t, nodeA)
	f.loseRecord(t)
	adopted := spec()
	adopted.Mode, adopted.AcceptNodeLoss = volume.ModeWritethrough, false
	if p, err := f.svc.PublishReader(t.Context(), f.id, nodeA, &adopted, chap); err != nil || p.Fence.Generation != 3 {
		t.Fatalf("got %+v, %v", p, err)
	}
	f.readBy(t, nodeB, 3)
	f.wantReaders(t, true, nodeA, nodeB)
}

// testReaders: a volume is written by one or read by many, and changes from one to the other while
// nobody has it. Readers have a generation in common, which stays as long as nobody writes.
func testReaders(t *testing.T, _ *rest.Config, f *fixture) {
	f.written(t)
	f.readBy(t, nodeA, 2)
	f.readBy(t, nodeB, 2)
	f.readBy(t, nodeA, 2)
	f.wantReaders(t, true, nodeA, nodeB)
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrInUse)
	if !strings.Contains(err.Error(), nodeA+", "+nodeB) {
		t.Errorf("the error does not name the readers: %v", err)
	}
	wantError(t, f.svc.Delete(t.Context(), f.id), volume.ErrInUse)
	_, err = f.svc.Expand(t.Context(), f.id, 2*gib)
	wantError(t, err, volume.ErrInUse)
	if _, err := f.snapshot(t, "readers-cut"); err != nil {
		t.Errorf("snapshot of what is only read: %v", err)
	}
	f.wantReaders(t, true, nodeA, nodeB)
	f.unpublish(t, nodeA)
	f.unpublish(t, nodeA)
	f.wantReaders(t, true, nodeB)
	f.wantExports(t, iqnB)
	f.unpublish(t, nodeB)
	f.wantReaders(t, false)
	f.readBy(t, nodeB, 2) // nobody has written since
	f.unpublish(t, "")
	f.wantReaders(t, false)
	f.publish(t, nodeB, 3)
	f.wantOwner(t, nodeB, 3, true)
	if v := f.record(t); v.Readers != nil {
		t.Errorf("a volume that is written has readers: %q", v.Readers)
	}
	f.wantExports(t, iqnB)
	if have, _ := f.storage.Volume(f.id); have.Access.Exports[0].ReadOnly {
		t.Error("the owner may not write")
	}
	_, err = f.svc.PublishReader(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrInUse)
	f.mark(t, true)
	f.unpublish(t, nodeB)
	_, err = f.svc.PublishReader(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrFenced)
	f.mark(t, false)
	f.readBy(t, nodeA, 4)
	f.unpublish(t, nodeA)
	defer func() {
		for _, node := range []string{nodeA, nodeB} { // also one whose cache the record does not list
			pool := &v1alpha1.CachePool{}
			if err := f.client.Get(t.Context(), client.ObjectKey{Name: node}, pool); err != nil || !slices.ContainsFunc(pool.Status.Deleted, func(d v1alpha1.DeletedVolume) bool { return d.VolumeName == string(f.id) }) {
				t.Errorf("node %s was not told of the deletion: %v", node, err)
			}
		}
	}()
	if err := f.svc.Delete(t.Context(), f.id); err != nil {
		t.Fatal(err)
	}
	f.wantGone(t)
}

// testReadersRefused: what many cannot read.
func testReadersRefused(t *testing.T, _ *rest.Config, f *fixture) {
	_, err := f.svc.PublishReader(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrNotFound)
	f.create(t)
	_, err = f.svc.PublishReader(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrInvalid) // empty
	f.publish(t, nodeA, 1)
	f.unpublish(t, nodeA)
	_, err = f.svc.PublishReader(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrInvalid) // not formatted
	_, err = f.svc.PublishReader(t.Context(), f.id, nodeA, staticSpec(), nil)
	wantError(t, err, volume.ErrInvalid)
	f.wantOwner(t, nodeA, 1, false)
}

// testReadersTwins: the server could not tell two readers of one initiator name apart.
func testReadersTwins(t *testing.T, _ *rest.Config, f *fixture) {
	f.written(t)
	f.readBy(t, nodeB, 2)
	f.readBy(t, nodeA, 2)
	_, err := f.svc.PublishReader(t.Context(), f.id, "node-a-twin", nil, chap)
	wantError(t, err, volume.ErrInvalid)
	f.wantReaders(t, true, nodeB, nodeA)
}

// testReadersConverge lets every step fail, before and after it took effect, on the way from a writer
// to readers and back: never is somebody who may write admitted beside anybody else, and nobody is
// admitted before the record names him.
func testReadersConverge(t *testing.T, _ *rest.Config, f *fixture) {
	f.written(t)
	f.storage.Admitted = func(_ volume.ID, g backend.Grant) {
		v := f.record(t)
		if v.Fence.Generation != g.Generation || !v.Published || g.ReadOnly != (v.Fence.Node == volume.Readers) {
			t.Errorf("%+v is admitted while the record shows %+v", g, v.Fence)
		}
	}
	generation := int64(1)
	for _, step := range []string{"unexport", "record", "export"} {
		for _, done := range []bool{false, true} {
			try := func(act func() error) {
				t.Helper()
				f.failOnce(step, done)
				_ = act() // not every act has every step
				f.failOnce("", false)
				have, _ := f.storage.Volume(f.id)
				for _, e := range have.Access.Exports {
					if !e.ReadOnly && len(have.Access.Exports) > 1 {
						t.Errorf("%s, done %v: one who may write is admitted beside others: %+v", step, done, have.Access.Exports)
					}
				}
			}
			generation++
			read := func(node string) func() error {
				return func() error {
					_, err := f.svc.PublishReader(t.Context(), f.id, node, nil, chap)
					return err
				}
			}
			try(read(nodeA))
			f.readBy(t, nodeA, generation)
			try(read(nodeB))
			f.readBy(t, nodeB, generation)
			f.wantReaders(t, true, nodeA, nodeB)
			try(func() error { return f.svc.Unpublish(t.Context(), f.id, nodeA) })
			f.unpublish(t, nodeA)
			f.wantReaders(t, true, nodeB)
			try(func() error { return f.svc.Unpublish(t.Context(), f.id, nodeB) })
			f.unpublish(t, nodeB)
			f.wantReaders(t, false)
			generation++
			try(func() error { _, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap); return err })
			f.publish(t, nodeA, generation)
			f.wantExports(t, iqnA)
			f.unpublish(t, nodeA)
		}
	}
}

// testReadersRestored: the record is older than the readers that the storage server admits. Nothing of
// them can be unflushed; who reads under a generation that is not on record keeps a writer out until it
// has logged out.
func testReadersRestored(t *testing.T, _ *rest.Config, f *fixture) {
	f.written(t)
	old := f.load(t)
	f.readBy(t, nodeB, 2)
	f.storage.Login(f.id, iqnB, true)
	f.restore(t, old)
	_, err := f.svc.Publish(t.Context(), f.id, nodeA, nil, chap)
	wantError(t, err, volume.ErrFenced)
	if v := f.record(t); v.PossiblyDirty {
		t.Errorf("a reader's record became dirty: %+v", v)
	}
	f.storage.Login(f.id, iqnB, false)
	f.publish(t, nodeA, 3)
	f.wantExports(t, iqnA)
}

// testReadersCutRestored: a record out of a backup shows readers, of whom nobody has anything to flush; the
// storage server admits one who writes since. What that one has not flushed is not left out of a snapshot.
func testReadersCutRestored(t *testing.T, _ *rest.Config, f *fixture) {
	f.written(t)
	f.readBy(t, nodeA, 2)
	old := f.load(t)
	f.unpublish(t, nodeA)
	f.publish(t, nodeB, 3)
	f.storage.Login(f.id, iqnB, true)
	f.restore(t, old)
	for range 2 {
		_, err := f.snapshot(t, "cut-restored")
		wantError(t, err, volume.ErrBusy)
		f.wantExports(t, iqnB)
	}
	f.unpublish(t, nodeB)
	if v := f.record(t); v.Fence.Node != nodeB || v.Fence.Generation != 3 || !v.PossiblyDirty {
		t.Errorf("the record shows %+v, want the one who may have to flush", v.Fence)
	}
}

// testReadersUnpublishedLate: an unpublish that has stalled since it read the record takes nothing from who
// reads after somebody has written.
func testReadersUnpublishedLate(t *testing.T, _ *rest.Config, f *fixture) {
	f.written(t)
	generation := int64(2)
	for _, node := range []string{nodeA, ""} {
		f.readBy(t, nodeA, generation)
		f.readBy(t, nodeB, generation)
		f.read = func() {
			f.read = nil
			f.unpublish(t, "")
			f.publish(t, nodeB, generation+1)
			f.unpublish(t, nodeB)
			f.readBy(t, nodeA, generation+2)
		}
		f.unpublish(t, node)
		f.wantReaders(t, true, nodeA)
		f.unpublish(t, nodeA)
		generation += 2 // who reads now reads under that
	}
}

// load and restore are a backup of the record's status.
func (f *fixture) load(t *testing.T) *v1alpha1.CachedVolume {
	t.Helper()
	obj, err := records.Load(t.Context(), f.client, f.id)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func (f *fixture) restore(t *testing.T, old *v1alpha1.CachedVolume) {
	t.Helper()
	now := f.load(t)
	if err := records.WriteStatus(t.Context(), f.client, now, func(s *v1alpha1.CachedVolumeStatus) { *s = old.Status }); err != nil {
		t.Fatal(err)
	}
}

// testReadersAccount: of two readers one has another key, and is admitted anew, to read.
func testReadersAccount(t *testing.T, _ *rest.Config, f *fixture) {
	k := withKeys(t, f)
	a, b := k.node("a"), k.node("b")
	rec := records.New(f.client, f.events, f.svc.now)
	if err := rec.SetFormatted(t.Context(), f.id, k.publishTo(t, a, nil).Fence, volume.FormatDone); err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, a)
	read := map[string]volume.Publication{}
	for _, node := range []string{a, b} {
		p, err := k.svc.PublishReader(t.Context(), k.id, node, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		k.agrees(t, node, node, p)
		read[node] = p
	}
	k.setKey(t, a, newKey(t))
	k.granted = volume.Credentials{}
	for _, node := range []string{b, a} {
		if wait, err := k.svc.RenewAccount(t.Context(), k.id, node); wait || err != nil || (k.granted.Username != "") != (node == a) {
			t.Errorf("%s: wait %v, %v, granted %q", node, wait, err, k.granted.Username)
		}
	}
	k.agrees(t, "admitted anew", a, read[a])
	f.wantReaders(t, true, a, b)
}
