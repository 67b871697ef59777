package provision

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// wantFilesystem looks at what a node is told.
func (f *fixture) wantFilesystem(t *testing.T, want volume.Formatted) {
	t.Helper()
	obj, err := records.Load(t.Context(), f.client, f.id)
	if err != nil {
		t.Fatal(err)
	}
	v, err := records.Volume(obj)
	if err != nil || v.Filesystem != want {
		t.Errorf("the filesystem is %q (%v), want %q", v.Filesystem, err, want)
	}
}

// testFilesystem: a volume that nobody ever had may be formatted, and no other. It stays
// so until its owner says otherwise.
func testFilesystem(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.wantFilesystem(t, volume.FormatDone) // nobody may have it yet
	f.publish(t, nodeA, 1)
	f.wantFilesystem(t, volume.FormatNever)
	f.unpublish(t, nodeA)
	f.publish(t, nodeB, 2) // node A never staged it
	f.wantFilesystem(t, volume.FormatNever)
	node := records.New(f.client, f.events, nil)
	if err := node.SetFormatted(t.Context(), f.id, volume.Fence{UID: f.uid(t), Generation: 2, Node: nodeB}, volume.FormatDone); err != nil {
		t.Fatal(err)
	}
	f.unpublish(t, nodeB)
	f.publish(t, nodeA, 3)
	f.wantFilesystem(t, volume.FormatDone)
}

// testFilesystemAdopted: the record was made anew, or comes from a backup of before the
// first publication. The storage server knows that the volume was in use.
func testFilesystemAdopted(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if _, err := f.storage.Export(t.Context(), f.id, backend.Grant{Initiator: iqnA, Credentials: *chap, Generation: 4}); err != nil {
		t.Fatal(err)
	}
	f.storage.Evict(f.id)
	f.publish(t, nodeA, 5)
	f.wantFilesystem(t, volume.FormatDone)
}

// testFilesystemOutdated: the record comes from a backup of the time when nobody had
// written. Whoever had the volume since may have.
func testFilesystemOutdated(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	f.wantFilesystem(t, volume.FormatNever)
	f.unpublish(t, nodeA)
	if _, err := f.storage.Export(t.Context(), f.id, backend.Grant{Initiator: iqnB, Credentials: *chap, Generation: 2}); err != nil {
		t.Fatal(err)
	}
	f.storage.Evict(f.id)
	f.publish(t, nodeA, 3)
	f.wantFilesystem(t, volume.FormatDone)
}

// testFilesystemStatic: nobody knows what a LUN of somebody else's holds, but who wrote
// the PersistentVolume, and only when it is published for the first time.
func testFilesystemStatic(t *testing.T, _ *rest.Config, f *fixture) {
	static := staticSpec()
	static.FormatBlank = true
	publish := func() {
		t.Helper()
		if _, err := f.svc.Publish(t.Context(), f.id, nodeA, static, nil); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	f.wantFilesystem(t, volume.FormatNever)
	node := records.New(f.client, f.events, nil)
	if err := node.SetFormatted(t.Context(), f.id, volume.Fence{UID: f.uid(t), Generation: 1, Node: nodeA}, volume.FormatDone); err != nil {
		t.Fatal(err)
	}
	publish()
	f.wantFilesystem(t, volume.FormatDone)
}

// testFilesystemForeign: without that word it counts as formatted, for ever.
func testFilesystemForeign(t *testing.T, _ *rest.Config, f *fixture) {
	static := staticSpec()
	for range 2 {
		if _, err := f.svc.Publish(t.Context(), f.id, nodeA, static, nil); err != nil {
			t.Fatal(err)
		}
		f.wantFilesystem(t, volume.FormatDone)
		static.FormatBlank = true // said too late
	}
}

func (f *fixture) uid(t *testing.T) string {
	t.Helper()
	obj, err := records.Load(t.Context(), f.client, f.id)
	if err != nil {
		t.Fatal(err)
	}
	return string(obj.UID)
}
