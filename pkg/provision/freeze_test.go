package provision

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecideFreeze is the table "A freeze" of states.md.
func TestDecideFreeze(t *testing.T) {
	const asked, over = volume.FreezeAsked, volume.FreezeOver
	const frozen, held, failed, raw = volume.FreezeFrozen, volume.FreezeHeld, volume.FreezeFailed, volume.FreezeNoFilesystem
	type facts = cutFacts
	base := func(freeze volume.FreezeRequest, said volume.FreezeState, change ...func(*facts)) facts {
		f := facts{Name: "s", Volume: "v", Ours: true, Freeze: true, Record: &volume.Volume{
			ID: "v", Fence: volume.Fence{Node: "a"}, Published: true, FlushRequest: "t", FlushDone: "t",
			Hold: &volume.Hold{Name: "s", Token: "t", Freeze: freeze}, Freeze: volume.FreezeReport{Token: "t", State: said},
		}}
		if said == "" {
			f.Record.Freeze = volume.FreezeReport{Token: "before", State: held}
		}
		for _, c := range change {
			c(&f)
		}
		return f
	}
	made := func(f *facts) { f.Cut = &backend.Cut{ID: "s", Volume: "v", Hold: "t", Done: true} }
	undone := func(f *facts) { f.Cut = &backend.Cut{ID: "s", Volume: "v", Hold: "t"} }
	foreign := func(f *facts) { f.Cut = &backend.Cut{ID: "s", Volume: "v", Hold: "u", Done: true} }
	formatted := func(f *facts) { f.Filesystem = volume.FormatNever }
	draining := func(f *facts) { f.Record.FlushDone = "" }
	detached := func(f *facts) { f.Record.Published = false }
	unwanted := func(f *facts) { f.Freeze = false }
	for name, tc := range map[string]struct {
		f    facts
		want cutStep
	}{
		"nothing is asked of the class":           {base("", "", unwanted), cutCut},
		"ready":                                   {base("", ""), cutFreeze},
		"ready, a report of another hold":         {base("", ""), cutFreeze},
		"draining":                                {base("", "", draining), cutWait},
		"attached nowhere":                        {base("", "", detached), cutCut},
		"cut while it was attached nowhere":       {base("", "", detached, made), cutAccept},
		"cut before it was attached":              {base("", "", made), cutUnfrozen},
		"being cut before it was attached":        {base("", "", undone), cutUnfrozen},
		"cut, attached and detached meanwhile":    {base("", failed, detached, made), cutUnfrozen},
		"attached meanwhile, not frozen":          {base("", failed, made, unwanted), cutAccept},
		"attached meanwhile, nothing cut":         {base("", failed), cutUnfrozen},
		"cut under another hold":                  {base("", "", foreign), cutDrop},
		"cut under another hold, frozen":          {base(asked, frozen, foreign), cutDrop},
		"asked":                                   {base(asked, ""), cutAwaitFreeze},
		"asked, cut":                              {base(asked, "", made), cutUnfrozen},
		"asked, detached":                         {base(asked, "", detached), cutUnfrozen},
		"frozen":                                  {base(asked, frozen), cutCut},
		"frozen, being cut":                       {base(asked, frozen, undone), cutCut},
		"frozen, cut":                             {base(asked, frozen, made), cutThaw},
		"frozen, cut, formatted meanwhile":        {base(asked, frozen, made, formatted), cutUnfrozen},
		"frozen, cut, detached":                   {base(asked, frozen, made, detached), cutUnfrozen},
		"held while it is asked":                  {base(asked, held, made), cutUnfrozen},
		"failed":                                  {base(asked, failed), cutUnfrozen},
		"failed, cut":                             {base(asked, failed, made), cutUnfrozen},
		"failed, being cut":                       {base(asked, failed, undone), cutUnfrozen},
		"failed, detached":                        {base(asked, failed, made, detached), cutUnfrozen},
		"to be thawed, not yet":                   {base(over, frozen, made), cutAwaitFreeze},
		"to be thawed, held":                      {base(over, held, made), cutAccept},
		"to be thawed, held, another call":        {base(over, held, made, unwanted), cutAccept},
		"to be thawed, failed":                    {base(over, failed, made), cutUnfrozen},
		"to be thawed, failed, unasked this time": {base(over, failed, made, unwanted), cutUnfrozen},
		"to be thawed, nothing said":              {base(over, "", made), cutUnfrozen},
		"to be thawed, held, the cut is gone":     {base(over, held), cutUnfrozen},
		"to be thawed, held, cut not done":        {base(over, held, undone), cutUnfrozen},
		"to be thawed, held, formatted":           {base(over, held, made, formatted), cutUnfrozen},
		"to be thawed, held, detached":            {base(over, held, made, detached), cutUnfrozen},
		"raw":                                     {base(asked, raw), cutCut},
		"raw, being cut":                          {base(asked, raw, undone), cutCut},
		"raw, cut":                                {base(asked, raw, made), cutAccept},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decideCut(tc.f)
			if err != nil || got != tc.want {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// freezes is the node that has the volume: it answers what is asked of its filesystem with the
// next of the answers, and says Frozen before an answer of Held or Failed if thawed is called at
// all. It ends with the test.
func (f *fixture) freezes(t *testing.T, first volume.FreezeState, then volume.FreezeState) {
	t.Helper()
	ctx, rec := t.Context(), records.New(f.client, f.events, time.Now)
	go follow(ctx, f.client, f.id, func() {
		v, err := f.svc.Get(ctx, f.id)
		if err != nil || v.Hold == nil || v.Hold.Freeze == "" {
			return
		}
		said := v.Freeze
		if said.Token != v.Hold.Token {
			said = volume.FreezeReport{}
		}
		next := volume.FreezeReport{Token: v.Hold.Token}
		switch {
		case said.State == "":
			next.State = first
		case said.State == volume.FreezeFrozen && (v.Hold.Freeze == volume.FreezeOver || then == volume.FreezeFailed):
			next.State = then
		default:
			return
		}
		if next.State == volume.FreezeFailed {
			next.Message = "because"
		}
		_ = rec.ReportFreeze(ctx, f.id, v.Fence, next) // asked again
	})
}

func (f *fixture) frozen(t *testing.T, id volume.SnapshotID) error {
	t.Helper()
	_, err := f.svc.CreateSnapshot(t.Context(), id, f.id, volume.SnapshotClass{Freeze: true})
	return err
}

// testFrozenSnapshot: a volume is cut while its filesystem is frozen, and accepted once it is
// known to have been.
func testFrozenSnapshot(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	wantError(t, f.frozen(t, "frozen"), volume.ErrBusy)
	f.flushes(t)
	f.storage.Step = func(op string, done bool) error {
		if op == "cut" && !done {
			if v := f.record(t); v.Freeze.State != volume.FreezeFrozen || v.Freeze.Token != v.Hold.Token || v.Hold.Freeze != volume.FreezeAsked {
				t.Errorf("cut when the record says %+v, %+v", v.Hold, v.Freeze)
			}
		}
		if op == "accept" && !done {
			if v := f.record(t); v.Freeze.State != volume.FreezeHeld || v.Freeze.Token != v.Hold.Token {
				t.Errorf("accepted when the record says %+v, %+v", v.Hold, v.Freeze)
			}
		}
		return nil
	}
	f.freezes(t, volume.FreezeFrozen, volume.FreezeHeld)
	if err := f.frozen(t, "frozen"); err != nil {
		t.Fatal(err)
	}
	f.wantHold(t, "")
	if c, err := f.storage.Find(t.Context(), "frozen"); err != nil || !c.Accepted {
		t.Errorf("cut %+v, %v", c, err)
	}
}

// testUnfrozenSnapshot: what could not be frozen, or was thawed too early, is no snapshot, and
// does not keep the volume held.
func testUnfrozenSnapshot(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.publish(t, nodeA, 1)
	for i, said := range [][2]volume.FreezeState{{volume.FreezeFailed}, {volume.FreezeFrozen, volume.FreezeFailed}} {
		id := volume.SnapshotID(fmt.Sprint("unfrozen-", i))
		wantError(t, f.frozen(t, id), volume.ErrBusy)
		f.flushes(t)
		ctx, cancel := context.WithCancel(t.Context())
		f.storage.Step = func(op string, done bool) error { // the node says so before the cut is seen done
			for op == "cut" && done && f.record(t).Freeze.State == volume.FreezeFrozen && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			return nil
		}
		t.Run(string(id), func(t *testing.T) {
			f.freezes(t, said[0], said[1])
			err := f.frozen(t, id)
			wantError(t, err, volume.ErrBusy)
			if err == nil || !strings.Contains(err.Error(), "not frozen") || !strings.Contains(err.Error(), "because") {
				t.Errorf("%v does not say why", err)
			}
		})
		cancel()
		f.wantHold(t, "")
		if c, err := f.storage.Find(t.Context(), id); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("cut %+v, %v", c, err)
		}
	}
}

// testFreezeNothing: a volume that is attached nowhere, or raw, is cut as without a freeze.
func testFreezeNothing(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	if err := f.frozen(t, "nowhere"); err != nil {
		t.Fatal(err)
	}
	f.publish(t, nodeA, 1)
	wantError(t, f.frozen(t, "raw"), volume.ErrBusy)
	f.flushes(t)
	f.freezes(t, volume.FreezeNoFilesystem, "")
	if err := f.frozen(t, "raw"); err != nil {
		t.Fatal(err)
	}
}

// testFreezeVisited: a pod has a volume while the storage cuts it, which nobody had when the cut
// was ordered, and has left when the controller looks again.
func testFreezeVisited(t *testing.T, _ *rest.Config, f *fixture) {
	f.create(t)
	f.storage.Step = func(op string, done bool) error {
		if op == "cut" && !done {
			f.storage.Step = nil
			f.publish(t, nodeA, 1)
			f.unpublish(t, nodeA)
		}
		return nil
	}
	err := f.frozen(t, "visited")
	wantError(t, err, volume.ErrBusy)
	if err == nil || !strings.Contains(err.Error(), "attached meanwhile") {
		t.Errorf("%v does not say why", err)
	}
	f.wantHold(t, "")
	if c, err := f.storage.Find(t.Context(), "visited"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("cut %+v, %v", c, err)
	}
	if err := f.frozen(t, "visited"); err != nil {
		t.Fatal(err)
	}
}
