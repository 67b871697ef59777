package backendtest

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Store is a backend that makes snapshots.
type Store interface {
	backend.Backend
	backend.Snapshots
}

// SnapshotConformance is what every Store must do, beside Conformance. open returns an empty
// server with room for about 256 MiB, whose volumes are thin if nothing else is asked for.
// What a kind of server does not have is named in without: "thick", "space", "epoch".
func SnapshotConformance(t *testing.T, open func(t *testing.T) Store, without ...string) {
	for name, test := range map[string]func(*testing.T, Store){
		"cut":     conformCut,
		"names":   conformCutNames,
		"list":    conformCuts,
		"restore": conformRestore,
		"clone":   conformParentGone,
		"drop":    conformDrop,
		"thick":   conformThick,
		"space":   conformCutSpace,
		"epoch":   conformCutEpoch,
	} {
		if !slices.Contains(without, name) {
			t.Run(name, func(t *testing.T) { test(t, open(t)) })
		}
	}
}

// patience is how long a cut, or a volume that is made of it, may take.
const patience = time.Minute

// eventually asks again while a server is at it.
func eventually(t *testing.T, what string, ask func() (done bool, err error)) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		done, err := ask()
		if err != nil && !errors.Is(err, volume.ErrBusy) {
			t.Fatalf("%s: %v", what, err)
		}
		if done && err == nil {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%s: not done in %v: %v", what, patience, err)
		}
	}
}

// cut asks for a cut until it is ready.
func cut(t *testing.T, b Store, id volume.SnapshotID, of volume.ID, hold string) backend.Cut {
	t.Helper()
	var out backend.Cut
	eventually(t, "cut "+string(id), func() (bool, error) {
		c, err := b.Cut(t.Context(), id, of, backend.CutRequest{Hold: hold, Filesystem: volume.FormatBegun})
		out = c
		return c.Done && c.Ready, err
	})
	return out
}

// snapshot is cut, and the cut is accepted.
func snapshot(t *testing.T, b Store, id volume.SnapshotID, of volume.ID) {
	t.Helper()
	must(t, b.Accept(t.Context(), id, cut(t, b, id, of, "hold-of-"+string(id)).Hold))
}

// begin makes a volume of a cut.
func begin(t *testing.T, b Store, id volume.ID, req backend.Request) {
	t.Helper()
	eventually(t, "create "+string(id), func() (bool, error) { return true, b.Create(t.Context(), id, req) })
}

func conformCut(t *testing.T, b Store) {
	ctx := t.Context()
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib}))
	_, err := b.Find(ctx, "s")
	want(t, "find without a cut", err, volume.ErrNotFound)
	want(t, "accept without a cut", b.Accept(ctx, "s", "h"), volume.ErrNotFound)
	must(t, b.DeleteCut(ctx, "s"))
	_, err = b.Cut(ctx, "s", "none", backend.CutRequest{Hold: "h"})
	want(t, "cut without a volume", err, volume.ErrNotFound)
	_, err = b.Find(ctx, "s")
	want(t, "cut that was refused", err, volume.ErrNotFound)

	first := cut(t, b, "s", "v", "hold-1")
	if first.ID != "s" || first.Volume != "v" || first.SizeBytes != 8*mib || first.Hold != "hold-1" ||
		first.Filesystem != volume.FormatBegun || first.Created.IsZero() || first.Accepted {
		t.Errorf("cut: %+v", first)
	}
	if again := cut(t, b, "s", "v", "hold-2"); !same(again, first) {
		t.Errorf("again under another hold: %+v, want %+v", again, first)
	}
	must(t, b.Create(ctx, "w", backend.Request{SizeBytes: 8 * mib}))
	_, err = b.Cut(ctx, "s", "w", backend.CutRequest{Hold: "hold-1"})
	want(t, "cut of another volume", err, volume.ErrExists)
	want(t, "accept under another hold", b.Accept(ctx, "s", "hold-2"), volume.ErrNotFound)
	if c, err := b.Find(ctx, "s"); err != nil || c.Accepted {
		t.Errorf("accepted under another hold: %+v, %v", c, err)
	}
	for range 2 {
		must(t, b.Accept(ctx, "s", "hold-1"))
	}
	first.Accepted = true
	for what, ask := range map[string]func() (backend.Cut, error){
		"find": func() (backend.Cut, error) { return b.Find(ctx, "s") },
		"cut": func() (backend.Cut, error) {
			return b.Cut(ctx, "s", "v", backend.CutRequest{Hold: "hold-1"})
		},
	} {
		if got, err := ask(); err != nil || !same(got, first) {
			t.Errorf("%s of what was accepted: %+v, %v; want %+v", what, got, err, first)
		}
	}
	for range 2 {
		eventually(t, "delete", func() (bool, error) { return true, b.DeleteCut(ctx, "s") })
	}
	_, err = b.Find(ctx, "s")
	want(t, "find of what was deleted", err, volume.ErrNotFound)
	if later := cut(t, b, "s", "v", "hold-3"); later.Hold != "hold-3" || later.Accepted {
		t.Errorf("a later cut of the name: %+v", later)
	}
}

func same(a, b backend.Cut) bool {
	at := a.Created.Equal(b.Created)
	a.Created, b.Created = time.Time{}, time.Time{}
	return at && a == b
}

// conformCutNames: cuts and volumes have names of their own.
func conformCutNames(t *testing.T, b Store) {
	ctx := t.Context()
	for _, id := range []volume.SnapshotID{"", "A", "a/b", "../v"} {
		_, err := b.Cut(ctx, id, "v", backend.CutRequest{Hold: "h"})
		want(t, "cut "+string(id), err, volume.ErrInvalid)
	}
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib}))
	snapshot(t, b, "v", "v")
	snapshot(t, b, "s", "v")
	_, err := b.Access(ctx, "s")
	want(t, "access to a cut", err, volume.ErrNotFound)
	_, err = b.Export(ctx, "s", Grant(initiatorA, 1))
	want(t, "export of a cut", err, volume.ErrNotFound)
	_, err = b.Expand(ctx, "s", 16*mib)
	want(t, "expansion of a cut", err, volume.ErrNotFound)
	must(t, b.Delete(ctx, "s"))
	_, err = b.Find(ctx, "s")
	must(t, err)
	eventually(t, "delete", func() (bool, error) { return true, b.DeleteCut(ctx, "v") })
	_, err = b.Access(ctx, "v")
	must(t, err)
}

// conformDrop: only what was never accepted is dropped, and only under its own hold.
func conformDrop(t *testing.T, b Store) {
	ctx := t.Context()
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib}))
	_, err := b.Cut(ctx, "s", "v", backend.CutRequest{})
	want(t, "cut without a hold", err, volume.ErrInvalid)
	want(t, "accept without a hold", b.Accept(ctx, "s", ""), volume.ErrInvalid)
	want(t, "drop without a hold", b.DropCut(ctx, "s", ""), volume.ErrInvalid)
	must(t, b.DropCut(ctx, "s", "hold-1"))
	cut(t, b, "s", "v", "hold-1")
	drop := func(hold string) {
		t.Helper()
		for range 2 {
			eventually(t, "drop", func() (bool, error) { return true, b.DropCut(ctx, "s", hold) })
		}
	}
	drop("hold-2")
	_, err = b.Find(ctx, "s")
	must(t, err)
	drop("hold-1")
	_, err = b.Find(ctx, "s")
	want(t, "find of what was dropped", err, volume.ErrNotFound)
	cut(t, b, "s", "v", "hold-2")
	drop("hold-1") // of one who has stalled
	must(t, b.Accept(ctx, "s", "hold-2"))
	drop("hold-2")
	if c, err := b.Find(ctx, "s"); err != nil || !c.Accepted {
		t.Errorf("what was accepted, after it was to be dropped: %+v, %v", c, err)
	}
}

func conformCuts(t *testing.T, b Store) {
	ctx := t.Context()
	if all, err := b.Cuts(ctx); err != nil || len(all) > 0 {
		t.Errorf("cuts of a new server: %+v, %v", all, err)
	}
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib}))
	for _, id := range []volume.SnapshotID{"b", "c", "a"} {
		cut(t, b, id, "v", "hold-of-"+string(id))
	}
	must(t, b.Accept(ctx, "b", "hold-of-b"))
	all, err := b.Cuts(ctx)
	must(t, err)
	if len(all) != 3 || !slices.IsSortedFunc(all, func(x, y backend.Cut) int { return cmp.Compare(x.ID, y.ID) }) {
		t.Fatalf("cuts: %+v", all)
	}
	for _, c := range all {
		found, err := b.Find(ctx, c.ID)
		if err != nil || !same(found, c) || c.Accepted != (c.ID == "b") || c.Hold != "hold-of-"+string(c.ID) {
			t.Errorf("listed %+v, found %+v, %v", c, found, err)
		}
	}
}

func conformRestore(t *testing.T, b Store) {
	ctx := t.Context()
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib}))
	snapshot(t, b, "s", "v")
	snapshot(t, b, "other", "v")
	cut(t, b, "open", "v", "h")
	for what, tc := range map[string]struct {
		req  backend.Request
		kind error
	}{
		"without the cut":          {backend.Request{SizeBytes: 8 * mib, From: "none"}, volume.ErrNotFound},
		"cut that is not accepted": {backend.Request{SizeBytes: 8 * mib, From: "open"}, volume.ErrNotFound},
		"less than the cut":        {backend.Request{SizeBytes: 4 * mib, From: "s"}, volume.ErrInvalid},
	} {
		want(t, what, b.Create(ctx, "w", tc.req), tc.kind)
		_, err := b.Access(ctx, "w")
		want(t, what+": the volume", err, volume.ErrNotFound)
	}
	for range 2 {
		begin(t, b, "w", backend.Request{SizeBytes: 16 * mib, From: "s"})
	}
	begin(t, b, "equal", backend.Request{SizeBytes: 8 * mib, From: "s"})
	for id, size := range map[volume.ID]int64{"w": 16 * mib, "equal": 8 * mib} {
		if a, err := b.Access(ctx, id); err != nil || a.SizeBytes != size || a.Generation != 0 || len(a.Exports) > 0 {
			t.Errorf("access to %s: %+v, %v", id, a, err)
		}
	}
	want(t, "of another cut", b.Create(ctx, "w", backend.Request{SizeBytes: 16 * mib, From: "other"}), volume.ErrExists)
	want(t, "of no cut", b.Create(ctx, "w", backend.Request{SizeBytes: 16 * mib}), volume.ErrExists)
	want(t, "other size", b.Create(ctx, "w", backend.Request{SizeBytes: 32 * mib, From: "s"}), volume.ErrExists)
	want(t, "empty one of a cut", b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib, From: "s"}), volume.ErrExists)
	_, err := b.Export(ctx, "w", Grant(initiatorB, 1))
	must(t, err)
}

// conformParentGone: a cut outlives its volume, and what was made of it outlives the cut.
func conformParentGone(t *testing.T, b Store) {
	ctx := t.Context()
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib}))
	_, err := b.Export(ctx, "v", Grant(initiatorA, 3))
	must(t, err)
	snapshot(t, b, "s", "v")
	shutOut(t, b)
	must(t, b.Delete(ctx, "v"))
	if c, err := b.Find(ctx, "s"); err != nil || c.Volume != "v" || c.SizeBytes != 8*mib || !c.Accepted {
		t.Errorf("the cut of a volume that is gone: %+v, %v", c, err)
	}
	begin(t, b, "w", backend.Request{SizeBytes: 8 * mib, From: "s"})
	snapshot(t, b, "t", "w")
	if err := b.DeleteCut(ctx, "s"); errors.Is(err, volume.ErrInUse) {
		return // it must go last, and says so
	} else if !errors.Is(err, volume.ErrBusy) {
		must(t, err)
	}
	eventually(t, "delete", func() (bool, error) { return true, b.DeleteCut(ctx, "s") })
	must(t, b.Create(ctx, "w", backend.Request{SizeBytes: 8 * mib, From: "s"}))
	if a, err := b.Access(ctx, "w"); err != nil || a.SizeBytes != 8*mib {
		t.Errorf("what was made of a cut that is gone: %+v, %v", a, err)
	}
	want(t, "another one of it", b.Create(ctx, "x", backend.Request{SizeBytes: 8 * mib, From: "s"}), volume.ErrNotFound)
	_, err = b.Find(ctx, "t")
	must(t, err)
}

func conformThick(t *testing.T, b Store) {
	ctx := t.Context()
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: 8 * mib, Provisioning: thick}))
	_, err := b.Cut(ctx, "s", "v", backend.CutRequest{Hold: "h"})
	want(t, "cut of a thick volume", err, volume.ErrInvalid)
	want(t, "whether it can be cut", b.CanCut(ctx, "v", ""), volume.ErrInvalid)
	must(t, b.Create(ctx, "w", backend.Request{SizeBytes: 8 * mib, Provisioning: "thin"}))
	must(t, b.CanCut(ctx, "w", ""))
	want(t, "whether a thick one can begin so", b.CanBegin(ctx, "x", "w", backend.Request{SizeBytes: 8 * mib, Provisioning: thick}), volume.ErrInvalid)
	must(t, b.CanBegin(ctx, "x", "w", backend.Request{SizeBytes: 8 * mib}))
	snapshot(t, b, "s", "w")
	want(t, "thick volume of a cut", b.Create(ctx, "x", backend.Request{SizeBytes: 8 * mib, Provisioning: thick, From: "s"}), volume.ErrInvalid)
}

// conformCutSpace: a cut counts as its volume does.
func conformCutSpace(t *testing.T, b Store) {
	ctx := t.Context()
	room := func() int64 {
		n, err := b.Capacity(ctx)
		must(t, err)
		return n
	}
	size := room() / 3 / Extent * Extent
	must(t, b.Create(ctx, "v", backend.Request{SizeBytes: size}))
	before := room()
	snapshot(t, b, "s", "v")
	if after := room(); after != before-size {
		t.Errorf("capacity was %d and is %d with a cut of %d bytes", before, after, size)
	}
	must(t, b.Create(ctx, "w", backend.Request{SizeBytes: size}))
	_, err := b.Cut(ctx, "t", "v", backend.CutRequest{Hold: "h"})
	want(t, "cut without room", err, volume.ErrNoSpace)
	_, err = b.Find(ctx, "t")
	want(t, "cut that was refused", err, volume.ErrNotFound)
	want(t, "volume without room", b.Create(ctx, "x", backend.Request{SizeBytes: size, From: "s"}), volume.ErrNoSpace)
	must(t, b.Delete(ctx, "w"))
	want(t, "growth without room", b.Create(ctx, "x", backend.Request{SizeBytes: 2 * size, From: "s"}), volume.ErrNoSpace)
	_, err = b.Access(ctx, "x")
	want(t, "volume that was refused", err, volume.ErrNotFound)
}

func conformCutEpoch(t *testing.T, b Store) {
	const mine, other = "epoch1epoch1epoch1", "epoch2epoch2epoch2"
	must(t, b.Create(t.Context(), "v", backend.Request{SizeBytes: 8 * mib}))
	snapshot(t, b, "s", "v")
	cut(t, b, "open", "v", "h")
	must(t, b.SwapEpoch(t.Context(), "", mine))
	for _, epoch := range []string{"", other} {
		ctx := backend.WithEpoch(t.Context(), epoch)
		_, cutErr := b.Cut(ctx, "t", "v", backend.CutRequest{Hold: "h"})
		_, foundErr := b.Cut(ctx, "s", "v", backend.CutRequest{Hold: "h"})
		for what, err := range map[string]error{
			"cut": cutErr, "cut that is there": foundErr, "accept": b.Accept(ctx, "open", "h"), "delete": b.DeleteCut(ctx, "s"),
			"drop":   b.DropCut(ctx, "open", "h"),
			"create": b.Create(ctx, "w", backend.Request{SizeBytes: 8 * mib, From: "s"}),
		} {
			var refused *backend.EpochError
			if !errors.As(err, &refused) || refused.Server != mine || refused.Given != epoch {
				t.Errorf("%s with epoch %q: %v", what, epoch, err)
			}
		}
		all, err := b.Cuts(ctx)
		if err != nil || len(all) != 2 || all[0].ID != "open" || all[0].Accepted {
			t.Errorf("cuts after calls that were refused: %+v, %v", all, err)
		}
		_, err = b.Access(ctx, "w")
		want(t, "volume of a refused call", err, volume.ErrNotFound)
	}
	ctx := backend.WithEpoch(t.Context(), mine)
	must(t, errors.Join(b.Accept(ctx, "open", "h"), b.Create(ctx, "w", backend.Request{SizeBytes: 8 * mib, From: "s"}), b.DeleteCut(ctx, "s")))
}
