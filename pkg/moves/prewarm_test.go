package moves_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testReaders: nodes that read a volume under one generation fill their caches at the same time, and one
// of them from another.
func testReaders(t *testing.T, f *fixture) {
	f.source()
	f.lessor.mu.Lock()
	f.lessor.retainedCaches[f.id] = 2
	f.lessor.mu.Unlock()
	alone := volume.MoveRequest{Volume: f.id, Purpose: volume.PurposeRead, Fence: f.fence, Method: volume.MethodPreload}
	alone.Fence.Node = "node-c"
	c, _, err := f.b.Begin(t.Context(), alone)
	must(t, err)
	r := f.streaming()
	r.Purpose, r.Source.Generation = volume.PurposeRead, 2
	m, lease, err := f.b.Begin(t.Context(), r)
	must(t, err)
	if m.Name != moves.ReadName(f.id, 2, f.nodeB) || c.Name == m.Name || lease.Stream == nil {
		t.Errorf("moves %s and %s, lease %+v", m.Name, c.Name, lease)
	}
	if asked, _ := f.lessor.lease(f.id); asked.Purpose != volume.PurposeRead || asked.Generation != 2 || asked.To != f.nodeB {
		t.Errorf("request %+v", asked)
	}
	f.load(c) // is still there
	must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	f.wantState(m, v1alpha1.ExportStateReleased)
}

// testPrewarm: the record of writes goes from node to node, and a request is carried out
// once.
func testPrewarm(t *testing.T, f *fixture) {
	f.source()
	f.lessor.tracked = &volume.Tracked{ID: "t1", AreaBytes: 1 << 20}
	r := f.streaming()
	r.Purpose, r.Request, r.Fence.Generation = volume.PurposePrewarm, "r1", 1
	wantEnded := func(r volume.MoveRequest, want bool) {
		t.Helper()
		ended, err := f.b.Ended(t.Context(), r)
		must(t, err)
		if ended != want {
			t.Errorf("request %q has ended: %t, want %t", r.Request, ended, want)
		}
	}
	wantEnded(r, false)
	m, lease, err := f.b.Begin(t.Context(), r)
	must(t, err)
	if diff := cmp.Diff(f.lessor.tracked, lease.Tracked); diff != "" {
		t.Errorf("record of writes (-want +got):\n%s", diff)
	}
	asked, _ := f.lessor.lease(f.id)
	if asked.Purpose != volume.PurposePrewarm || asked.Request != "r1" || asked.Generation != 1 || asked.Method != volume.MethodStream {
		t.Errorf("request %+v", asked)
	}
	if m.Name != moves.PrewarmName(f.id, 1) {
		t.Errorf("name %s", m.Name)
	}
	wantEnded(r, false)
	must(t, f.b.Finish(t.Context(), m, volume.MoveCompleted, ""))
	f.wantState(m, v1alpha1.ExportStateReleased)
	wantEnded(r, true)
	other := r
	other.Request = "r2"
	wantEnded(other, false)
	other = r
	other.Fence.UID = "another volume"
	wantEnded(other, false)
	other = r
	other.Fence.Node = "node-c" // what another node has made in its name
	wantEnded(other, false)

	// The move itself, beside the object of the copy.
	f.lessor.mu.Lock()
	f.lessor.retainedCaches[f.id] = 1
	f.lessor.tracked = &volume.Tracked{ID: "t1", AreaBytes: 1 << 20, Changed: bytes.Repeat([]byte{0x81}, 1024)}
	f.lessor.mu.Unlock()
	_, lease = f.mustBegin()
	if diff := cmp.Diff(f.lessor.tracked, lease.Tracked); diff != "" {
		t.Errorf("record of writes (-want +got):\n%s", diff)
	}
}

// testPrewarmRefused: a node that cannot carry a request out says so, once, and no lease is left.
func testPrewarmRefused(t *testing.T, f *fixture) {
	f.source()
	r := f.streaming()
	r.Purpose, r.Request, r.Fence.Generation = volume.PurposePrewarm, "r1", 1
	must(t, f.b.Refuse(t.Context(), r, "streams are not configured"))
	obj := &v1alpha1.CacheMigration{}
	must(t, f.api.Get(t.Context(), types.NamespacedName{Name: moves.PrewarmName(f.id, 1)}, obj))
	if obj.Status.Outcome != v1alpha1.MigrationFailed || obj.Status.OutcomeMessage != "streams are not configured" || obj.Spec.Method != v1alpha1.MigrationStream {
		t.Errorf("object %+v, %+v", obj.Spec, obj.Status)
	}
	if ended, err := f.b.Ended(t.Context(), r); err != nil || !ended {
		t.Errorf("the request has ended: %t, %v", ended, err)
	}
	f.eventually("there is no lease", func() bool { _, leased, err := f.lessor.Lease(t.Context(), f.id); return err == nil && !leased })
}
