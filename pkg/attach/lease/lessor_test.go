package lease

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestExportable(t *testing.T) {
	move := volume.MoveID{Name: "v-5", UID: "m1"}
	request := volume.LeaseRequest{Move: move, Volume: "v", UID: "u1", Generation: 4, To: "b"}
	good := func() (*state.Entry, volume.Volume) {
		return &state.Entry{Fence: volume.Fence{UID: "u1", Generation: 4, Node: "a"}, State: state.Retained, Mode: volume.ModeWritethrough, Activated: true, Clean: true, Boot: "boot"},
			volume.Volume{Fence: volume.Fence{UID: "u1", Generation: 5, Node: "b"}, Published: true}
	}
	cases := map[string]struct {
		change func(*state.Entry, *volume.Volume)
		want   error
	}{
		"a clean retained cache": {func(*state.Entry, *volume.Volume) {}, nil},
		"asked again":            {func(e *state.Entry, _ *volume.Volume) { e.Exported = &move }, nil},
		"asked anew":             {func(e *state.Entry, _ *volume.Volume) { e.Exported, e.Boot = &volume.MoveID{UID: "m0"}, "earlier" }, nil},
		"lost by a restart":      {func(e *state.Entry, _ *volume.Volume) { e.Exported, e.Boot = &move, "earlier" }, volume.ErrUnavailable},
		"attached":               {func(e *state.Entry, _ *volume.Volume) { e.State = state.Staged }, volume.ErrNotFound},
		"not whole (I5)":         {func(e *state.Entry, _ *volume.Volume) { e.Hydration = &state.Hydration{} }, volume.ErrNotFound},
		"not clean (I4)":         {func(e *state.Entry, _ *volume.Volume) { e.Clean = false }, volume.ErrNotFound},
		"older generation":       {func(e *state.Entry, _ *volume.Volume) { e.Fence.Generation = 3 }, volume.ErrNotFound},
		"another volume":         {func(e *state.Entry, _ *volume.Volume) { e.Fence.UID = "u2" }, volume.ErrNotFound},
		"owner moved on":         {func(_ *state.Entry, v *volume.Volume) { v.Fence.Generation = 6 }, volume.ErrFenced},
		"another node owns it":   {func(_ *state.Entry, v *volume.Volume) { v.Fence.Node = "c" }, volume.ErrFenced},
		"nobody is entitled now": {func(_ *state.Entry, v *volume.Volume) { v.Published = false }, volume.ErrFenced},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e, rec := good()
			tc.change(e, &rec)
			if err := exportable(e, rec, request, "boot"); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if err := exportable(nil, volume.Volume{}, request, "boot"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("no entry: got %v", err)
	}
}

func TestExportableLive(t *testing.T) {
	staged := func(opts ...func(*state.Entry)) *state.Entry {
		e := &state.Entry{ID: "v", State: state.Staged, Mode: volume.ModeWritethrough, Activated: true, Fence: volume.Fence{UID: "u", Generation: 5, Node: "a"}}
		for _, o := range opts {
			o(e)
		}
		return e
	}
	cases := map[string]struct {
		entry  *state.Entry
		record volume.Volume
		want   string
	}{
		"asked":            {entry: staged(), record: requested()},
		"not here":         {record: requested(), want: "in use here"},
		"retained":         {entry: staged(func(e *state.Entry) { e.State = state.Retained }), record: requested(), want: "in use here"},
		"flushing":         {entry: staged(func(e *state.Entry) { e.State = state.Flushing }), record: requested(), want: "in use here"},
		"uncached":         {entry: staged(func(e *state.Entry) { e.Mode = volume.ModeNone }), record: requested(), want: "in use here"},
		"other generation": {entry: staged(func(e *state.Entry) { e.Fence.Generation = 4 }), record: requested(), want: "in use here"},
		"filling":          {entry: staged(func(e *state.Entry) { e.Hydration = &state.Hydration{} }), record: requested(), want: "itself being filled"},
		"moved on":         {entry: staged(), record: requested(func(v *volume.Volume) { v.Fence.Generation = 6 }), want: "at generation 6"},
		"released":         {entry: staged(), record: requested(func(v *volume.Volume) { v.Published = false }), want: "at generation 5"},
		"nobody asks":      {entry: staged(), record: requested(func(v *volume.Volume) { v.Prewarm = nil }), want: "nobody has asked"},
		"another node":     {entry: staged(), record: requested(func(v *volume.Volume) { v.Prewarm.Node = "c" }), want: "nobody has asked"},
		"another request":  {entry: staged(), record: requested(func(v *volume.Volume) { v.Prewarm.Request = "r2" }), want: "nobody has asked"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := volume.LeaseRequest{Volume: "v", UID: "u", Generation: 5, To: "b", Request: "r1", Purpose: volume.PurposePrewarm}
			err := exportableLive(tc.entry, tc.record, r, "a")
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// requested is the record of a volume that node a owns under generation 5, and whose
// cache is asked for on node b.
func requested(opts ...func(*volume.Volume)) volume.Volume {
	v := volume.Volume{
		ID: "v", Fence: volume.Fence{UID: "u", Generation: 5, Node: "a"}, Published: true,
		Spec:    volume.Spec{Mode: volume.ModeWritethrough, WarmStart: volume.WarmStart{From: volume.WarmPeer}},
		Prewarm: &volume.Prewarm{Node: "b", Request: "r1"},
	}
	for _, o := range opts {
		o(&v)
	}
	return v
}
