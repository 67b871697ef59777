package attach

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestMayPrepare(t *testing.T) {
	before := &volume.WarmSource{Node: "b", Generation: 4}
	record := func(change func(*volume.Volume)) volume.Volume {
		v := volume.Volume{ID: "v", Fence: fence5, Published: true, WarmSource: before, Spec: volume.Spec{CapacityBytes: 1 << 30}}
		if change != nil {
			change(&v)
		}
		return v
	}
	entry := func(f volume.Fence, s State) *Entry { return &Entry{Fence: f, State: s} }
	for name, tc := range map[string]struct {
		e    *Entry
		rec  volume.Volume
		want bool
	}{
		"nothing is here":                  {nil, record(nil), true},
		"a residency of long ago":          {entry(fence4, StateResident), record(nil), true},
		"a residency of another volume":    {entry(otherID, StateResident), record(nil), true},
		"its own residency":                {entry(fence5, StateResident), record(nil), false},
		"a residency of a later ownership": {entry(fence6, StateResident), record(nil), false},
		"begun":                            {entry(fence5, StateStaging), record(nil), false},
		"attached":                         {entry(fence5, StateStaged), record(nil), false},
		"not flushed":                      {entry(fence4, StateFlushing), record(nil), false},
		"copied beforehand":                {entry(fence4, StatePrewarm), record(nil), false},
		"released":                         {nil, record(func(v *volume.Volume) { v.Published = false }), false},
		"being deleted":                    {nil, record(func(v *volume.Volume) { v.Deleting = true }), false},
		"of another node":                  {nil, record(func(v *volume.Volume) { v.Fence.Node = "c" }), false},
		"without a source":                 {nil, record(func(v *volume.Volume) { v.WarmSource = nil }), false},
		"of unknown size":                  {nil, record(func(v *volume.Volume) { v.Spec.CapacityBytes = 0 }), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mayPrepare(tc.e, tc.rec, "a"); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}

func TestWorthPreparing(t *testing.T) {
	peer := &warmPlan{Peer: &volume.WarmSource{Node: "b", Generation: 4}}
	for name, tc := range map[string]struct {
		plan stagePlan
		want bool
	}{
		"from a peer":       {stagePlan{Cache: planCreate, Warm: peer}, true},
		"what is old goes":  {stagePlan{Cache: planCreate, Warm: peer, Wipe: true}, true},
		"from the hot set":  {stagePlan{Cache: planCreate, Warm: &warmPlan{}}, false},
		"cold":              {stagePlan{Cache: planCreate}, false},
		"copied beforehand": {stagePlan{Cache: planCreate, Warm: peer, Keep: true}, false},
		"refused":           {stagePlan{Cache: planCreate, Warm: peer, Refuse: volume.ErrFenced}, false},
		"uncached":          {stagePlan{Cache: planUncached, Warm: peer}, false},
		"reused":            {stagePlan{Cache: planReuse}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.plan.worthPreparing(); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}

// TestTakePrepared: what was prepared is taken only by the stage that it is for.
func TestTakePrepared(t *testing.T) {
	plan := stagePlan{Cache: planCreate, Mode: volume.ModeWritethrough, Warm: &warmPlan{Peer: &volume.WarmSource{Node: "b", Generation: 4}}}
	cold := plan
	cold.Warm = nil
	elsewhere := plan
	elsewhere.Warm = &warmPlan{Peer: &volume.WarmSource{Node: "c", Generation: 4}}
	dirty := plan
	dirty.Mode = volume.ModeWriteback
	source := volume.ISCSI{IQN: "iqn.origin", Portals: []string{"10.0.0.1:3260"}}
	for name, tc := range map[string]struct {
		change func(s *staging)
		want   bool
	}{
		"the same":                          {func(*staging) {}, true},
		"of a later ownership":              {func(s *staging) { s.req.Publication.Fence = fence6 }, false},
		"the journal was written since":     {func(s *staging) { s.entry.UpdatedAt = s.entry.UpdatedAt.Add(time.Second) }, false},
		"the journal's entry is gone":       {func(s *staging) { s.entry = nil }, false},
		"it is being wiped":                 {func(s *staging) { s.entry.State = StateWiping }, false},
		"another plan":                      {func(s *staging) { s.plan = cold }, false},
		"from elsewhere":                    {func(s *staging) { s.plan = elsewhere }, false},
		"in another mode":                   {func(s *staging) { s.plan = dirty }, false},
		"refused: the record is another's":  {func(s *staging) { s.plan.Refuse = volume.ErrFenced }, false},
		"what is found on the SSD is ready": {func(s *staging) { s.plan.Wipe = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := journal.Open[Entry](t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			a := New(Config{Node: "a"}, Deps{Journal: entries})
			e := &Entry{ID: "v", Fence: fence5, Mode: volume.ModeWritethrough}
			if err := a.save(t.Context(), e, StateStaging); err != nil {
				t.Fatal(err)
			}
			a.prepares.put("v", &staging{plan: plan, entry: e, data: "253:7"})
			onDisk, err := a.load("v")
			if err != nil {
				t.Fatal(err)
			}
			s := &staging{plan: plan, entry: onDisk}
			s.req = volume.StageRequest{ID: "v", Publication: volume.Publication{Fence: fence5, Source: source}}
			tc.change(s)
			ok, err := a.takePrepared(t.Context(), s)
			if err != nil || ok != tc.want {
				t.Fatalf("taken %t, %v; want %t", ok, err, tc.want)
			}
			if now, err := a.load("v"); err != nil || ok && (s.data != "253:7" || now.Source.IQN != source.IQN) {
				t.Errorf("data device %q, journal %+v, %v", s.data, now, err)
			}
			if again, err := a.takePrepared(t.Context(), s); again || err != nil {
				t.Errorf("taken twice: %t, %v", again, err)
			}
		})
	}
}

// TestToPrepare: a volume that is to be prepared is found once, and what was prepared for
// one that is not owned any more is forgotten.
func TestToPrepare(t *testing.T) {
	entries, err := journal.Open[Entry](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rec := volume.Volume{ID: "v", Fence: fence5, Published: true, WarmSource: &volume.WarmSource{Node: "b", Generation: 4}, Spec: volume.Spec{CapacityBytes: 1 << 30}}
	cold := rec
	cold.ID, cold.WarmSource = "cold", nil
	a := New(Config{Node: "a"}, Deps{Journal: entries, Owned: watched{rec, cold}})
	if due := a.toPrepare(t.Context()); len(due) != 1 || due[0].ID != "v" {
		t.Errorf("to be prepared: %v", due)
	}
	begin := func(id volume.ID) bool {
		_, ok := a.prepares.begin(id)
		return ok
	}
	if !begin("v") || begin("v") {
		t.Error("a volume is prepared twice at the same time")
	}
	for i := range preparesAtATime - 1 {
		if !begin(volume.ID(rune('a' + i))) {
			t.Errorf("only %d volumes are prepared at a time", i+1)
		}
	}
	if begin("one more") {
		t.Error("there is no bound of how many are prepared at a time")
	}
	if a.prepares.end("v"); !begin("one more") {
		t.Error("the end of one lets no other begin")
	}
	a.prepares.put("v", &staging{})
	a.prepares.put("left", &staging{})
	a.toPrepare(t.Context())
	if a.prepares.take("left") != nil || a.prepares.take("v") == nil {
		t.Error("what was prepared is kept for the wrong volume")
	}
	a.Owned = noWatch{}
	a.prepares.put("v", &staging{})
	if a.toPrepare(t.Context()) != nil || a.prepares.take("v") == nil {
		t.Error("a watch that does not answer takes away what was prepared")
	}
}

// TestAnnounce: only the stage of a volume that is being prepared is heard of, and
// nobody who announces one waits.
func TestAnnounce(t *testing.T) {
	a := New(Config{Node: "a"}, Deps{})
	req := volume.StageRequest{ID: "v", FSType: "ext4"}
	a.Announce(req)
	announced, _ := a.prepares.begin("v")
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
	a.prepares.end("v")
	a.Announce(req)
	if len(announced) > 0 {
		t.Error("what was announced after its end is heard of")
	}
}

type noWatch struct{ watched }

func (noWatch) List(context.Context) ([]volume.Volume, error) { return nil, errors.New("no watch") }
