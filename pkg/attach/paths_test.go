package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestPathsOver(t *testing.T) {
	here := volume.Fence{UID: "u", Node: "a", Generation: 2}
	later := volume.Fence{UID: "u", Node: "b", Generation: 3}
	before := volume.Fence{UID: "u", Node: "b", Generation: 1}
	anew := volume.Fence{UID: "v", Node: "b", Generation: 9}
	clean := state.Entry{Fence: here, State: state.Staged, Mode: volume.ModeWritethrough, Activated: true}
	dirty := state.Entry{Fence: here, State: state.Staged, Mode: volume.ModeWriteback, Activated: true, Marked: true}
	marked := clean
	marked.Marked = true
	for name, tc := range map[string]struct {
		entry state.Entry
		rec   volume.Volume
		want  bool
	}{
		"attached":                    {clean, volume.Volume{Fence: here, Published: true}, false},
		"attached, dirty":             {dirty, volume.Volume{Fence: here, Published: true}, false},
		"unpublished":                 {clean, volume.Volume{Fence: here}, true},
		"unpublished, dirty":          {dirty, volume.Volume{Fence: here}, false},
		"unpublished, marked":         {marked, volume.Volume{Fence: here}, false},
		"a later owner":               {clean, volume.Volume{Fence: later, Published: true}, true},
		"given up for a later owner":  {dirty, volume.Volume{Fence: later, Published: true}, true},
		"a record made anew":          {clean, volume.Volume{Fence: anew, Published: true}, false},
		"a record made anew, dirty":   {dirty, volume.Volume{Fence: anew, Published: true}, false},
		"a record out of a backup":    {clean, volume.Volume{Fence: before}, false},
		"the same, of a dirty volume": {dirty, volume.Volume{Fence: before}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pathsOver(&tc.entry, tc.rec); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

// Who is asked about a volume without paths, and what becomes of what waits for them.
func TestTendPaths(t *testing.T) {
	here := volume.Fence{UID: "u", Node: "a", Generation: 2}
	attached := volume.Volume{ID: "v", Fence: here, Published: true}
	left := volume.Volume{ID: "v", Fence: here}
	entry := state.Entry{ID: "v", Fence: here, State: state.Staged, Mode: volume.ModeWritethrough, Activated: true, Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"a:1", "b:1"}}}}
	queue, fail := "nf-v.origin queue_if_no_path", "nf-v.origin fail_if_no_path"
	retained, lost, one := entry, entry, entry
	retained.State, lost.Lost, one.Source.Portals = state.Retained, &state.Lost{}, []string{"a:1"}
	for name, tc := range map[string]struct {
		entry   state.Entry
		watched []volume.Volume
		record  volume.Volume
		err     error
		asked   int // in two looks
		said    []string
	}{
		"attached here":           {entry, []volume.Volume{attached}, attached, nil, 0, []string{queue}},
		"the watch is behind":     {entry, nil, attached, nil, 2, nil},
		"it has left":             {entry, nil, left, nil, 1, []string{fail}},
		"no record":               {entry, nil, left, volume.ErrNotFound, 2, nil},
		"nobody answers":          {entry, nil, left, errors.New("timeout"), 2, nil},
		"the reservation is lost": {lost, []volume.Volume{attached}, attached, nil, 2, nil},
		"one portal":              {one, nil, left, nil, 0, nil},
		"a retained cache":        {retained, nil, left, nil, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			entries := newJournal(t)
			if err := entries.Save("v", tc.entry); err != nil {
				t.Fatal(err)
			}
			dm := &pathDevices{paths: map[string]bool{"nf-v.origin": false}}
			rec := &answering{v: tc.record, err: tc.err}
			a := New(Config{Node: "a", Sysfs: t.TempDir()}, Deps{Pool: withoutPool{}, DM: dm, Journal: entries, Owned: watchedRecords(tc.watched), Records: rec})
			var err error
			for range 2 {
				err = a.TendPaths(t.Context())
			}
			if unknown := tc.err != nil && !errors.Is(tc.err, volume.ErrNotFound); (err != nil) != unknown {
				t.Errorf("error %v", err)
			}
			if rec.asked != tc.asked || !slices.Equal(dm.said, tc.said) {
				t.Errorf("asked %d times, want %d; said %v, want %v", rec.asked, tc.asked, dm.said, tc.said)
			}
		})
	}

	// Attached again without a stage: it waits again.
	entries := newJournal(t)
	if err := entries.Save("v", entry); err != nil {
		t.Fatal(err)
	}
	dm := &pathDevices{paths: map[string]bool{"nf-v.origin": false}}
	a := New(Config{Node: "a", Sysfs: t.TempDir()}, Deps{Pool: withoutPool{}, DM: dm, Journal: entries, Owned: watchedRecords{}, Records: &answering{v: left}})
	err := a.TendPaths(t.Context())
	a.Owned = watchedRecords{attached}
	if err := errors.Join(err, a.TendPaths(t.Context())); err != nil || !slices.Equal(dm.said, []string{fail, queue}) {
		t.Errorf("said %v, %v", dm.said, err)
	}
}

// A device that could not be told to fail what waits is told again.
func TestFailPathsAgain(t *testing.T) {
	here := volume.Fence{UID: "u", Node: "a", Generation: 2}
	entries := newJournal(t)
	if err := entries.Save("v", state.Entry{ID: "v", Fence: here, State: state.Staged, Mode: volume.ModeNone, Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"a:1", "b:1"}}}}); err != nil {
		t.Fatal(err)
	}
	dm := &pathDevices{paths: map[string]bool{"nf-v.origin": false, "nf-v.source": false}, deaf: "nf-v.source"}
	a := New(Config{Node: "a", Sysfs: t.TempDir()}, Deps{Pool: withoutPool{}, DM: dm, Journal: entries, Owned: watchedRecords{}, Records: &answering{v: volume.Volume{ID: "v", Fence: here}}})
	if err := a.TendPaths(t.Context()); !errors.Is(err, devmapper.ErrBusy) {
		t.Errorf("a message that is refused: %v", err)
	}
	dm.said, dm.deaf = nil, ""
	want := []string{"nf-v.origin fail_if_no_path", "nf-v.source fail_if_no_path"}
	if err := a.TendPaths(t.Context()); err != nil || !slices.Equal(dm.said, want) {
		t.Errorf("said %v, %v, want %v", dm.said, err, want)
	}
}

// Of two devices one loses its paths first: what waits at the other one later fails too, also
// if one that was adopted meanwhile could not be told to wait.
func TestFailPathsOfBoth(t *testing.T) {
	here := volume.Fence{UID: "u", Node: "a", Generation: 2}
	for _, first := range stack.PathParts {
		entries := newJournal(t)
		if err := entries.Save("v", state.Entry{ID: "v", Fence: here, State: state.Staged, Mode: volume.ModeWritethrough, Hydration: &state.Hydration{}}); err != nil {
			t.Fatal(err)
		}
		dm := &pathDevices{paths: map[string]bool{"nf-v.origin": true, "nf-v.source": true}}
		a := New(Config{Node: "a", Sysfs: t.TempDir()}, Deps{Pool: withoutPool{}, DM: dm, Journal: entries, Owned: watchedRecords{}, Records: &answering{v: volume.Volume{ID: "v", Fence: here}}})
		tend := func(what string, want ...string) {
			t.Helper()
			dm.said = nil
			if err := a.TendPaths(t.Context()); err != nil || !slices.Equal(dm.said, want) {
				t.Errorf("%s first, %s: said %v, %v, want %v", first, what, dm.said, err, want)
			}
		}
		fail := []string{"nf-v.origin fail_if_no_path", "nf-v.source fail_if_no_path"}
		tend("all paths are there")
		dm.paths[layout.Device("v", first)] = false
		tend("one has lost its paths", fail...)
		dm.paths["nf-v.origin"], dm.paths["nf-v.source"] = false, false
		tend("the other one too") // it was told

		dm.deaf = "nf-v.source"
		if err := a.stack.QueuePaths(t.Context(), "v"); !errors.Is(err, devmapper.ErrBusy) {
			t.Errorf("a message that is refused: %v", err)
		}
		dm.deaf = ""
		tend("one of them was told to wait", fail...)
	}
}

// watchedRecords are what the watch shows.
type watchedRecords []volume.Volume

func (w watchedRecords) List(context.Context) ([]volume.Volume, error) { return w, nil }

func (watchedRecords) Changed() <-chan struct{} { return nil }

// answering is an API server with one record, or an error.
type answering struct {
	volume.Records
	v     volume.Volume
	err   error
	asked int
}

func (r *answering) Get(context.Context, volume.ID) (volume.Volume, error) {
	r.asked++
	return r.v, r.err
}

// What waits for lost paths is told to fail: the origin, and what a hydration copies from, which
// waits for an origin without paths once that is in the peer's place; and to wait again.
func TestFailPaths(t *testing.T) {
	for name, tc := range map[string]struct {
		paths map[layout.Part]bool // multipath devices, and whether they have a path
		fail  []string
		queue []string
	}{
		"one portal":                           {map[layout.Part]bool{}, nil, nil},
		"several, all lost":                    {map[layout.Part]bool{layout.Origin: false}, []string{"nf-v.origin fail_if_no_path"}, []string{"nf-v.origin queue_if_no_path"}},
		"one of several":                       {map[layout.Part]bool{layout.Origin: true}, nil, []string{"nf-v.origin queue_if_no_path"}},
		"one portal, a hydration":              {map[layout.Part]bool{layout.Source: false}, []string{"nf-v.source fail_if_no_path"}, []string{"nf-v.source queue_if_no_path"}},
		"a hydration that its peer serves":     {map[layout.Part]bool{layout.Origin: false, layout.Source: true}, []string{"nf-v.origin fail_if_no_path", "nf-v.source fail_if_no_path"}, []string{"nf-v.origin queue_if_no_path", "nf-v.source queue_if_no_path"}},
		"a hydration from an origin, all lost": {map[layout.Part]bool{layout.Origin: false, layout.Source: false}, []string{"nf-v.origin fail_if_no_path", "nf-v.source fail_if_no_path"}, []string{"nf-v.origin queue_if_no_path", "nf-v.source queue_if_no_path"}},
	} {
		t.Run(name, func(t *testing.T) {
			dm := &pathDevices{paths: map[string]bool{}}
			for part, has := range tc.paths {
				dm.paths[layout.Device("v", part)] = has
			}
			a := New(Config{}, Deps{Pool: withoutPool{}, DM: dm})
			if err := a.stack.FailPaths(t.Context(), "v"); err != nil || !slices.Equal(dm.said, tc.fail) {
				t.Errorf("fail: %v, %v, want %v", dm.said, err, tc.fail)
			}
			dm.said = nil
			if err := a.stack.QueuePaths(t.Context(), "v"); err != nil || !slices.Equal(dm.said, tc.queue) {
				t.Errorf("queue: %v, %v, want %v", dm.said, err, tc.queue)
			}
		})
	}
}

// pathDevices are multipath devices, which may have a path.
type pathDevices struct {
	devmapper.Client
	paths map[string]bool
	said  []string
	// deaf refuses messages.
	deaf string
}

func (d *pathDevices) Table(_ context.Context, name string) (devmapper.Table, error) {
	if _, found := d.paths[name]; !found {
		return nil, devmapper.ErrNotExist
	}
	return devmapper.Table{{Length: 8, Target: devmapper.MultipathTarget{Paths: []string{"8:0"}}}}, nil
}

func (d *pathDevices) MultipathStatus(_ context.Context, name string) (devmapper.MultipathStatus, error) {
	return devmapper.MultipathStatus{Paths: []devmapper.PathStatus{{Device: "8:0", Active: d.paths[name]}}}, nil
}

func (d *pathDevices) Message(_ context.Context, name string, _ uint64, args ...string) error {
	if name == d.deaf {
		return devmapper.ErrBusy
	}
	d.said = append(d.said, fmt.Sprint(name, " ", args[0]))
	return nil
}
