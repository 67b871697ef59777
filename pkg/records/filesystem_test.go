package records_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testFilesystem: the owner alone says how far a filesystem is, and only forwards.
func testFilesystem(t *testing.T, f *fixture) {
	ctx := t.Context()
	want := func(want volume.Formatted) {
		t.Helper()
		v, err := f.rec.Get(ctx, f.id)
		must(t, err)
		if v.Filesystem != want {
			t.Fatalf("the filesystem is %q, want %q", v.Filesystem, want)
		}
	}
	want(volume.FormatDone) // a record without the field
	wantError(t, f.rec.SetFormatted(ctx, f.id, f.fence, volume.FormatBegun), volume.ErrFenced)
	want(volume.FormatDone)

	must(t, records.UpdateStatus(ctx, f.api, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.Filesystem = v1alpha1.FilesystemNeverFormatted
		return nil
	}))
	want(volume.FormatNever)
	stale := f.fence
	stale.Generation++
	wantError(t, f.rec.SetFormatted(ctx, f.id, stale, volume.FormatBegun), volume.ErrFenced)
	f.own(t, nodeA, 1, v1alpha1.PublicationReleased)
	wantError(t, f.rec.SetFormatted(ctx, f.id, f.fence, volume.FormatBegun), volume.ErrFenced)
	want(volume.FormatNever)

	f.own(t, nodeA, 1, v1alpha1.PublicationPublished)
	for _, state := range []volume.Formatted{volume.FormatBegun, volume.FormatBegun, volume.FormatDone, volume.FormatDone} {
		must(t, f.rec.SetFormatted(ctx, f.id, f.fence, state))
		want(state)
	}
	if s := f.load(t).Status.Filesystem; s != v1alpha1.FilesystemFormatted {
		t.Errorf("the record says %q", s)
	}
	wantError(t, f.rec.SetFormatted(ctx, f.id, f.fence, volume.FormatBegun), volume.ErrFenced)
	want(volume.FormatDone)
	wantError(t, f.rec.SetFormatted(ctx, "no-such-volume", f.fence, volume.FormatBegun), volume.ErrFenced)
}
