package attach

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestMayPrestage(t *testing.T) {
	before := &volume.WarmSource{Node: "b", Generation: 4}
	record := func(change func(*volume.Volume)) volume.Volume {
		v := volume.Volume{ID: "v", Fence: fence5, Published: true, WarmSource: before, Spec: volume.Spec{CapacityBytes: 1 << 30}}
		if change != nil {
			change(&v)
		}
		return v
	}
	entry := func(f volume.Fence, s state.State) *state.Entry { return &state.Entry{Fence: f, State: s} }
	for name, tc := range map[string]struct {
		e    *state.Entry
		rec  volume.Volume
		want bool
	}{
		"nothing is here":                       {nil, record(nil), true},
		"a retained cache of long ago":          {entry(fence4, state.Retained), record(nil), true},
		"a retained cache of another volume":    {entry(otherID, state.Retained), record(nil), true},
		"its own retained cache":                {entry(fence5, state.Retained), record(nil), false},
		"a retained cache of a later ownership": {entry(fence6, state.Retained), record(nil), false},
		"begun":                                 {entry(fence5, state.Staging), record(nil), false},
		"attached":                              {entry(fence5, state.Staged), record(nil), false},
		"not flushed":                           {entry(fence4, state.Flushing), record(nil), false},
		"prewarmed":                             {entry(fence4, state.Prewarmed), record(nil), false},
		"released":                              {nil, record(func(v *volume.Volume) { v.Published = false }), false},
		"being deleted":                         {nil, record(func(v *volume.Volume) { v.Deleting = true }), false},
		"of another node":                       {nil, record(func(v *volume.Volume) { v.Fence.Node = "c" }), false},
		"without a source":                      {nil, record(func(v *volume.Volume) { v.WarmSource = nil }), false},
		"of unknown size":                       {nil, record(func(v *volume.Volume) { v.Spec.CapacityBytes = 0 }), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mayPrestage(tc.e, tc.rec, "a"); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}

func TestWorthPrestaging(t *testing.T) {
	peer := &warmPlan{Peer: &volume.WarmSource{Node: "b", Generation: 4}}
	for name, tc := range map[string]struct {
		plan stagePlan
		want bool
	}{
		"from a peer":      {stagePlan{Cache: planCreate, Warm: peer}, true},
		"what is old goes": {stagePlan{Cache: planCreate, Warm: peer, Wipe: true}, true},
		"from the hot set": {stagePlan{Cache: planCreate, Warm: &warmPlan{}}, false},
		"cold":             {stagePlan{Cache: planCreate}, false},
		"prewarmed":        {stagePlan{Cache: planCreate, Warm: peer, Keep: true}, false},
		"refused":          {stagePlan{Cache: planCreate, Warm: peer, Refuse: volume.ErrFenced}, false},
		"uncached":         {stagePlan{Cache: planUncached, Warm: peer}, false},
		"reused":           {stagePlan{Cache: planReuse}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.plan.worthPrestaging(); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}

type (
	countedLVs struct {
		lvm.Client
		asked int
	}
	oneRecord struct {
		volume.Records
		volume.Volume
	}
	anyMoves struct{ volume.Moves }
	anyTools struct{ MetadataTools }
	lostPool struct{}
)

func (lostPool) Deletions(context.Context) ([]volume.Deletion, error) { return nil, nil }

func (lostPool) View() pool.View { return pool.View{Problem: "no device is there"} }

func (l *countedLVs) LVs(context.Context, string) ([]lvm.LV, error) {
	l.asked++
	return nil, nil
}

func (r oneRecord) Get(context.Context, volume.ID) (volume.Volume, error) { return r.Volume, nil }

// TestPrestagedIsTaken: only the stage that it was prestaged for goes on with it, and that
// alone does without a look at the SSD.
func TestPrestagedIsTaken(t *testing.T) {
	peer := &volume.WarmSource{Node: "b", Generation: 4}
	prestaged := stagePlan{Cache: planCreate, Mode: volume.ModeWritethrough, Warm: &warmPlan{Peer: peer, Method: volume.MethodClone}}
	type world struct {
		fence volume.Fence
		rec   volume.Volume
		entry *state.Entry
		pool  PoolView
	}
	for name, tc := range map[string]struct {
		change func(w *world)
		taken  bool
		looks  int
	}{
		"the same":                          {func(*world) {}, true, 0},
		"of a later ownership":              {func(w *world) { w.fence, w.rec.Fence = fence6, fence6 }, false, 1},
		"the journal was written since":     {func(w *world) { w.entry.UpdatedAt = w.entry.UpdatedAt.Add(time.Second) }, false, 1},
		"the journal's entry is gone":       {func(w *world) { w.entry = nil }, false, 1},
		"it is being wiped":                 {func(w *world) { w.entry.State = state.Wiping }, false, 1},
		"it is to begin cold":               {func(w *world) { w.rec.Spec.WarmStart.From = volume.WarmOff }, false, 1},
		"from elsewhere":                    {func(w *world) { w.rec.WarmSource = &volume.WarmSource{Node: "c", Generation: 4} }, false, 1},
		"in another mode":                   {func(w *world) { w.rec.Spec.Mode = volume.ModeWriteback }, false, 1},
		"refused: the record is another's":  {func(w *world) { w.rec.Fence = fence6 }, false, 1},
		"the pool is gone":                  {func(w *world) { w.pool = lostPool{} }, false, 0},
		"only the volume's size is another": {func(w *world) { w.rec.Spec.CapacityBytes *= 2 }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			entries := newJournal(t)
			w := world{
				fence: fence5, pool: readyPool{}, entry: &state.Entry{ID: "v", Fence: fence5, Mode: volume.ModeWritethrough},
				rec: volume.Volume{ID: "v", Fence: fence5, Published: true, WarmSource: peer, Spec: volume.Spec{Mode: volume.ModeWritethrough, CapacityBytes: 1 << 30}},
			}
			config := Config{Node: fence5.Node, Warm: WarmConfig{Dir: t.TempDir()}}
			first := New(config, Deps{Journal: entries})
			if err := first.save(t.Context(), w.entry, state.Staging); err != nil {
				t.Fatal(err)
			}
			mine := *w.entry
			tc.change(&w)
			var err error
			if w.entry == nil {
				err = entries.Delete("v")
			} else {
				err = entries.Save("v", *w.entry)
			}
			if err != nil {
				t.Fatal(err)
			}
			ssd := &countedLVs{}
			a := New(config, Deps{
				Journal: entries, DM: noDevices{}, LVM: ssd, Records: oneRecord{Volume: w.rec}, Pool: w.pool, Moves: anyMoves{}, Tools: anyTools{},
				CacheProblem: func(context.Context) string { return "" },
			})
			a.prestages.put("v", &staging{plan: prestaged, entry: &mine, data: "253:7"})
			req := volume.StageRequest{ID: "v", Publication: volume.Publication{Fence: w.fence, Source: volume.Source{ISCSI: volume.ISCSI{IQN: "iqn.origin", Portals: []string{"10.0.0.1:3260"}}}}}
			_, s, p, err := a.gatherAndDecide(t.Context(), req)
			if err != nil || (p != nil) != tc.taken || ssd.asked != tc.looks {
				t.Fatalf("taken %t, %d looks at the SSD, %v; want %t, %d", p != nil, ssd.asked, err, tc.taken, tc.looks)
			}
			if _, _, again, err := a.gatherAndDecide(t.Context(), req); again != nil || err != nil {
				t.Errorf("taken twice, %v", err)
			}
			if p == nil {
				return
			}
			if err := a.resume(t.Context(), s, p); err != nil {
				t.Fatal(err)
			}
			if now, err := a.load("v"); err != nil || s.data != "253:7" || now.Source.IQN != "iqn.origin" {
				t.Errorf("data device %q, journal %+v, %v", s.data, now, err)
			}
		})
	}
}

// TestToPrestage: a volume that is to be prestaged is found once, and what was prestaged for
// one that is not owned any more is forgotten.
func TestToPrestage(t *testing.T) {
	entries := newJournal(t)
	rec := volume.Volume{ID: "v", Fence: fence5, Published: true, WarmSource: &volume.WarmSource{Node: "b", Generation: 4}, Spec: volume.Spec{CapacityBytes: 1 << 30}}
	cold := rec
	cold.ID, cold.WarmSource = "cold", nil
	a := New(Config{Node: "a"}, Deps{Journal: entries, Owned: watched{rec, cold}})
	if due := a.toPrestage(t.Context()); len(due) != 1 || due[0].ID != "v" {
		t.Errorf("to be prepared: %v", due)
	}
	begin := func(id volume.ID) bool {
		_, ok := a.prestages.begin(id)
		return ok
	}
	if !begin("v") || begin("v") {
		t.Error("a volume is prepared twice at the same time")
	}
	for i := range prestagesAtATime - 1 {
		if !begin(volume.ID(rune('a' + i))) {
			t.Errorf("only %d volumes are prepared at a time", i+1)
		}
	}
	if begin("one more") {
		t.Error("there is no bound of how many are prepared at a time")
	}
	if a.prestages.end("v"); !begin("one more") {
		t.Error("the end of one lets no other begin")
	}
	a.prestages.put("v", &staging{})
	a.prestages.put("left", &staging{})
	a.toPrestage(t.Context())
	if a.prestages.take("left") != nil || a.prestages.take("v") == nil {
		t.Error("what was prepared is kept for the wrong volume")
	}
	a.Owned = noWatch{}
	a.prestages.put("v", &staging{})
	if a.toPrestage(t.Context()) != nil || a.prestages.take("v") == nil {
		t.Error("a watch that does not answer takes away what was prepared")
	}
}

// TestAnnounce: only the stage of a volume that is being prestaged is heard of, and
// nobody who announces one waits.
func TestAnnounce(t *testing.T) {
	a := New(Config{Node: "a"}, Deps{})
	req := volume.StageRequest{ID: "v", FSType: "ext4"}
	a.Announce(req)
	announced, _ := a.prestages.begin("v")
	if len(announced) > 0 {
		t.Error("what was announced before it began is heard of")
	}
	for range 3 {
		a.Announce(req)
		a.Announce(volume.StageRequest{ID: "other"})
	}
	if got := <-announced; got.FSType != "ext4" || len(announced) > 0 {
		t.Errorf("announced: %+v, and %d more", got, len(announced))
	}
	a.prestages.end("v")
	a.Announce(req)
	if len(announced) > 0 {
		t.Error("what was announced after its end is heard of")
	}
}

type noWatch struct{ watched }

func (noWatch) List(context.Context) ([]volume.Volume, error) { return nil, errors.New("no watch") }
