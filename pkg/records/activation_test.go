package records_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testActivation: the published owner says which stage is about to be; it becomes the
// record's, and no disks of the past make their own of it.
func testActivation(t *testing.T, f *fixture) {
	ctx := t.Context()
	want := func(now, pending volume.Activation) {
		t.Helper()
		v, err := f.rec.Get(ctx, f.id)
		must(t, err)
		if v.Activation != now || v.Pending != pending {
			t.Fatalf("the record has %+v and %+v, want %+v and %+v", v.Activation, v.Pending, now, pending)
		}
	}
	pend := func(a volume.Activation) {
		t.Helper()
		held, err := f.rec.PendActivation(ctx, f.id, f.fence, a)
		must(t, err)
		if !held {
			t.Fatal("the record cannot hold an activation")
		}
	}
	none := volume.Activation{}
	want(none, none)
	must(t, f.rec.SetActivation(ctx, f.id, f.fence, none)) // of a version before
	want(none, none)
	x, y := volume.Activation{ID: "x", Generation: 1, Count: 1}, volume.Activation{ID: "y", Generation: 1, Count: 3}
	pend(x)
	pend(x)
	want(none, x)
	must(t, f.rec.SetActivation(ctx, f.id, f.fence, x))
	want(x, none)
	x.Count = 2
	must(t, f.rec.SetActivation(ctx, f.id, f.fence, x))
	pend(y)
	want(x, y)
	must(t, f.rec.SetActivation(ctx, f.id, f.fence, y))
	want(y, none)
	for name, past := range map[string]volume.Activation{
		"an image": x, "a version before": none, "a lower count": {ID: "y", Generation: 1, Count: 2}, "another machine": {ID: "z", Generation: 1, Count: 3},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, f.rec.SetActivation(ctx, f.id, f.fence, past), volume.ErrFenced) })
	}
	want(y, none)

	later := f.fence
	later.Generation++
	wantError(t, f.rec.SetActivation(ctx, f.id, later, y), volume.ErrFenced)
	f.own(t, nodeA, 1, v1alpha1.PublicationReleased)
	y.Count++
	must(t, f.rec.SetActivation(ctx, f.id, f.fence, y)) // it flushes when it was released
	_, err := f.rec.PendActivation(ctx, f.id, f.fence, x)
	wantError(t, err, volume.ErrFenced)
	want(y, none)
	must(t, f.rec.SetActivation(ctx, "no-such-volume", f.fence, y))
	_, err = f.rec.PendActivation(ctx, "no-such-volume", f.fence, y)
	wantError(t, err, volume.ErrFenced)
}
