package attach

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// asked is volume.Records that counts the questions and knows what the watch knows.
type asked struct {
	volume.Records
	known map[volume.ID]volume.Volume
	n     int
	clean []volume.ID
}

func (a *asked) MarkClean(_ context.Context, id volume.ID, f volume.Fence) error {
	if v := a.known[id]; v.Fence == f {
		a.clean = append(a.clean, id)
	}
	return nil
}

func (a *asked) Get(_ context.Context, id volume.ID) (volume.Volume, error) {
	a.n++
	v, found := a.known[id]
	if !found {
		return v, volume.ErrNotFound
	}
	return v, nil
}

// watched is OwnedRecords.
type watched []volume.Volume

func (w watched) List(context.Context) ([]volume.Volume, error) { return w, nil }

func (w watched) Changed() <-chan struct{} { return nil }

// withoutPool is a node without SSDs.
type withoutPool struct{}

func (withoutPool) Deletions(context.Context) ([]volume.Deletion, error) { return nil, nil }

func (withoutPool) View() pool.View { return pool.View{} }

// TestRepairAsks: retained caches that the watch shows to be of use are not asked for, be
// there one or many; of others the API server itself has the word.
func TestRepairAsks(t *testing.T) {
	const node = "node-a"
	retainedCache := func(id volume.ID) state.Entry {
		return state.Entry{
			ID: id, State: state.Retained, Mode: volume.ModeWritethrough, Clean: true, UpdatedAt: time.Now(),
			Fence: volume.Fence{UID: "uid-" + string(id), Generation: 1, Node: node},
		}
	}
	record := func(e state.Entry) volume.Volume {
		return volume.Volume{ID: e.ID, Fence: e.Fence, Spec: volume.Spec{Mode: volume.ModeWritethrough}}
	}
	for _, n := range []int{1, 50} {
		entries := newJournal(t)
		var own watched
		rec := &asked{known: map[volume.ID]volume.Volume{}}
		save := func(e state.Entry) {
			if err := entries.Save(string(e.ID), e); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			e := retainedCache(volume.ID("vol-" + string(rune('a'+i%26)) + string(rune('a'+i/26))))
			save(e)
			own = append(own, record(e))
		}
		exported := retainedCache("exported") // the volume has another owner, who may ask for it
		save(exported)
		v := record(exported)
		v.Fence.Generation, v.Fence.Node = 2, "node-b"
		v.WarmSource = &volume.WarmSource{Node: node, Generation: 1}
		rec.known["exported"] = v
		a := New(Config{Node: node}, Deps{Journal: entries, Records: rec, Owned: own, Pool: withoutPool{}, DM: noDevices{}, Locks: &keylock.Set{}})
		if err := a.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rec.n != 1 {
			t.Errorf("%d retained caches: %d records were asked for, want that of the volume with another owner alone", n+1, rec.n)
		}
		if list, err := entries.List(); err != nil || len(list) != n+1 {
			t.Errorf("%d retained caches of %d are left, %v", len(list), n+1, err)
		}
	}
}

// TestRepairTakesBackMark: a record that was restored says that a flushed volume may be
// dirty; the retained cache is the proof that it is not, also while a watch shows all records.
func TestRepairTakesBackMark(t *testing.T) {
	entries := newJournal(t)
	f := volume.Fence{UID: "u", Generation: 4, Node: "node-a"}
	known := map[volume.ID]volume.Volume{}
	var own watched
	for id, clean := range map[volume.ID]bool{"flushed": true, "not": false} {
		e := state.Entry{ID: id, State: state.Retained, Mode: volume.ModeWriteback, Clean: clean, Fence: f, UpdatedAt: time.Now()}
		if err := entries.Save(string(id), e); err != nil {
			t.Fatal(err)
		}
		v := volume.Volume{ID: id, Fence: f, PossiblyDirty: true, Spec: volume.Spec{Mode: volume.ModeWriteback}}
		known[id], own = v, append(own, v)
	}
	for _, o := range []OwnedRecords{own, nil} {
		rec := &asked{known: known}
		a := New(Config{Node: "node-a"}, Deps{Journal: entries, Records: rec, Owned: o, Pool: withoutPool{}, DM: noDevices{}, Locks: &keylock.Set{}})
		if err := a.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(rec.clean, []volume.ID{"flushed"}) {
			t.Errorf("reported clean: %v", rec.clean)
		}
	}
}

// TestRetainedOrder: the retained cache that its volume left first is the first to go, also
// if something was noted about it later.
func TestRetainedOrder(t *testing.T) {
	entries := newJournal(t)
	now := time.Now()
	a := New(Config{Node: "node-a"},
		Deps{Journal: entries, Pool: withoutPool{}, DM: noDevices{}, Locks: &keylock.Set{}, Now: func() time.Time { return now }})
	// An older version wrote this one, before all others.
	if err := entries.Save("ancient", state.Entry{ID: "ancient", State: state.Retained, Mode: volume.ModeWritethrough, Clean: true, UpdatedAt: now.Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	step := func(id volume.ID, from state.State) {
		t.Helper()
		now = now.Add(time.Minute)
		e := &state.Entry{ID: id, State: from, Mode: volume.ModeWritethrough, Clean: true}
		if from == state.Retained {
			var err error
			if e, err = a.load(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.save(t.Context(), e, state.Retained); err != nil {
			t.Fatal(err)
		}
	}
	order := func() (ids []volume.ID) {
		all, err := a.retained("")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			ids = append(ids, e.ID)
		}
		return ids
	}
	step("first", state.Releasing)
	step("second", state.Releasing)
	step("first", state.Retained) // its hot set is recorded
	step("ancient", state.Retained)
	if got, want := order(), []volume.ID{"ancient", "first", "second"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	step("first", state.Releasing) // used again
	if got, want := order(), []volume.ID{"ancient", "second", "first"}; !slices.Equal(got, want) {
		t.Errorf("order after another use %v, want %v", got, want)
	}
}

// told is volume.Records that takes every report.
type told struct{ volume.Records }

func (told) SetRetainedCache(context.Context, volume.ID, string, *volume.RetainedCache) error {
	return nil
}

func (told) ReportApplied(context.Context, volume.ID, string, volume.AppliedReport) error { return nil }

func (told) Report(context.Context, volume.ID, volume.CacheReport) error { return nil }

// TestReportForgets: what is told of a cache that was wiped before its retained cache was reported
// does not bring its entry back.
func TestReportForgets(t *testing.T) {
	a := New(Config{Node: "node-a"}, Deps{Journal: newJournal(t), Records: told{}})
	e := &state.Entry{ID: "pvc-1", State: state.Wiping, Mode: volume.ModeWritethrough, RetainedCacheDue: true}
	a.reportDown(t.Context(), e, nil)
	if entries, err := a.Journal.List(); err != nil || len(entries) > 0 {
		t.Errorf("entries %+v, %v", entries, err)
	}
	a.reportDown(t.Context(), e, retainedCacheOf(e))
	if e.RetainedCacheDue {
		t.Error("what was reported is still due")
	}
}
