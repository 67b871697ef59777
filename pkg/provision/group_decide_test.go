package provision

import (
	"errors"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// member is a volume of a group that is published, held under token t, and flushed.
func member(name volume.SnapshotID, change ...func(*cutFacts)) cutFacts {
	f := cutFacts{Name: name, Volume: volume.ID("v-" + name), Ours: true, Freeze: true, Record: &volume.Volume{
		ID: volume.ID("v-" + name), Fence: volume.Fence{Node: "a", Generation: 1}, Published: true, FlushRequest: "t", FlushDone: "t",
		Hold: &volume.Hold{Name: name, Token: "t"},
	}}
	for _, c := range change {
		c(&f)
	}
	return f
}

// TestDecideGroup is the table "A group" of states.md, of members a, b and c.
func TestDecideGroup(t *testing.T) {
	type change = func(*cutFacts)
	names := []volume.SnapshotID{"a", "b", "c"}
	mark := groupMark(names)
	of := func(token string) string { return holdPrefix + token + "-" + mark }
	both := func(of ...change) change {
		return func(f *cutFacts) {
			for _, c := range of {
				c(f)
			}
		}
	}
	asked := func(f *cutFacts) { f.Record.Hold.Freeze = volume.FreezeAsked }
	over := func(f *cutFacts) { f.Record.Hold.Freeze = volume.FreezeOver }
	says := func(s volume.FreezeState) change {
		return func(f *cutFacts) { f.Record.Freeze = volume.FreezeReport{Token: "t", State: s} }
	}
	frozen, held, failed, raw := says(volume.FreezeFrozen), says(volume.FreezeHeld), says(volume.FreezeFailed), says(volume.FreezeNoFilesystem)
	made := func(f *cutFacts) {
		f.Cut = &backend.Cut{ID: f.Name, Volume: f.Volume, Hold: f.Record.Hold.Token, Done: true}
	}
	old := func(f *cutFacts) { f.Cut = &backend.Cut{ID: f.Name, Volume: f.Volume, Hold: "old", Done: true} }
	nowhere := func(f *cutFacts) { f.Record.Published = false }
	foreign := func(f *cutFacts) { f.Ours = false }
	free := func(f *cutFacts) { f.Record.Hold, f.Ours = nil, false }
	other := func(f *cutFacts) { f.Record.Hold.Token, f.Record.FlushDone = "u", "u" }
	draining := func(f *cutFacts) { f.Record.FlushDone, f.Record.PossiblyDirty = "", true }
	lost := both(draining, func(f *cutFacts) { f.Lost = true })
	taken := func(f *cutFacts) { f.Record.Hold.Name = "another" }
	isCut := func(hold string, accepted bool) change {
		return func(f *cutFacts) {
			f.Cut, f.Record = &backend.Cut{ID: f.Name, Volume: f.Volume, Hold: hold, Done: true, Accepted: accepted}, nil
		}
	}
	done, accepted := isCut(of("t"), false), isCut(of("t"), true)
	ready := func(*cutFacts) {}
	gone := func(f *cutFacts) { f.Record = nil }
	for name, tc := range map[string]struct {
		a, b, c change
		want    cutStep
		who     []int
		err     error
	}{
		"nobody is held":                        {free, free, free, cutHold, []int{0, 1, 2}, nil},
		"one is not held":                       {ready, free, both(asked, frozen), cutHold, []int{0, 1, 2}, nil},
		"one is held by another process":        {foreign, ready, ready, cutHold, []int{0, 1, 2}, nil},
		"held under two tokens":                 {ready, other, ready, cutHold, []int{0, 1, 2}, nil},
		"cut under an old token, in order":      {ready, old, old, cutDrop, []int{1, 2}, nil},
		"cut under an old token, and frozen":    {both(asked, frozen), old, ready, cutDrop, []int{1}, nil},
		"one drains":                            {ready, draining, both(nowhere), cutWait, []int{1}, nil},
		"one is lost":                           {ready, lost, ready, "", nil, volume.ErrFenced},
		"one is held for another":               {free, taken, free, "", nil, volume.ErrBusy},
		"one is not there":                      {free, gone, free, "", nil, volume.ErrNotFound},
		"all are flushed":                       {ready, ready, nowhere, cutFreeze, []int{0, 1}, nil},
		"one is asked":                          {asked, ready, nowhere, cutFreeze, []int{1}, nil},
		"one is frozen":                         {both(asked, frozen), asked, nowhere, cutAwaitFreeze, []int{1}, nil},
		"one cannot":                            {both(asked, frozen), both(asked, failed), nowhere, cutUnfrozen, []int{0, 1, 2}, nil},
		"one is raw":                            {both(asked, frozen), both(asked, raw), nowhere, cutRaw, []int{0, 1, 2}, nil},
		"all are frozen":                        {both(asked, frozen), both(asked, frozen), nowhere, cutCut, []int{0, 1, 2}, nil},
		"one is cut":                            {both(asked, frozen, made), both(asked, frozen), nowhere, cutCut, []int{1, 2}, nil},
		"what is nowhere is cut last":           {both(asked, frozen, made), both(asked, frozen, made), nowhere, cutCut, []int{2}, nil},
		"all are cut":                           {both(asked, frozen, made), both(asked, frozen, made), both(nowhere, made), cutThaw, []int{0, 1}, nil},
		"all are cut, and one was thawed":       {both(asked, frozen, made), both(asked, failed, made), both(nowhere, made), cutUnfrozen, []int{0, 1, 2}, nil},
		"one was attached meanwhile":            {both(asked, frozen, made), both(asked, frozen, made), made, cutUnfrozen, []int{0, 1, 2}, nil},
		"one is told to thaw":                   {both(over, frozen, made), both(asked, frozen, made), both(nowhere, made), cutThaw, []int{1}, nil},
		"one has not thawed yet":                {both(over, held, made), both(over, frozen, made), both(nowhere, made), cutAwaitThaw, []int{1}, nil},
		"one was not frozen until then":         {both(over, held, made), both(over, failed, made), both(nowhere, made), cutUnfrozen, []int{0, 1, 2}, nil},
		"all stood still":                       {both(over, held, made), both(over, held, made), both(nowhere, made), cutAccept, []int{0, 1, 2}, nil},
		"nobody has any of them":                {nowhere, nowhere, nowhere, cutCut, []int{0, 1, 2}, nil},
		"nobody has any of them, all are cut":   {both(nowhere, made), both(nowhere, made), both(nowhere, made), cutAccept, []int{0, 1, 2}, nil},
		"one is accepted":                       {accepted, done, done, cutAccept, []int{1, 2}, nil},
		"all are accepted":                      {accepted, accepted, accepted, cutAnswer, nil, nil},
		"one is accepted, one is not there":     {accepted, ready, done, "", nil, volume.ErrExists},
		"one is accepted, one is of another":    {accepted, isCut(of("u"), false), done, "", nil, volume.ErrExists},
		"accepted under two tokens":             {accepted, isCut(of("u"), true), accepted, "", nil, volume.ErrExists},
		"accepted, and of other volumes":        {isCut(holdPrefix+"t-0000", true), ready, ready, "", nil, volume.ErrExists},
		"accepted, as of no group":              {isCut("hold-t", true), done, done, "", nil, volume.ErrExists},
		"one is accepted, whatever a record is": {accepted, both(lost, made, func(f *cutFacts) { f.Cut.Hold = of("t") }), done, cutAccept, []int{1, 2}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := groupFacts{Group: "g", Mark: mark, Members: []cutFacts{member("a", tc.a), member("b", tc.b), member("c", tc.c)}}
			step, who, err := decideGroup(f)
			if step != tc.want || !slices.Equal(who, tc.who) || !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
				t.Errorf("%q by %v, %v; want %q by %v, %v", step, who, err, tc.want, tc.who, tc.err)
			}
		})
	}
	f := groupFacts{Group: "g", Mark: mark, Members: []cutFacts{member("a"), member("b"), member("c")}, Foreign: []backend.Cut{{ID: "d", Hold: holdPrefix + "t-1", Accepted: true}}}
	if _, _, err := decideGroup(f); !errors.Is(err, volume.ErrExists) {
		t.Errorf("a group of other volumes: %v", err)
	}
}

// TestWholeGroup: a part of a group is none, and neither are parts of two.
func TestWholeGroup(t *testing.T) {
	hold := holdPrefix + "t-" + groupMark([]volume.SnapshotID{"a", "b"})
	a, b := backend.Cut{ID: "a", Hold: hold}, backend.Cut{ID: "b", Hold: hold}
	foreign := backend.Cut{ID: "b", Hold: holdPrefix + "u-" + groupMark([]volume.SnapshotID{"a", "b"})}
	for name, tc := range map[string]struct {
		cuts []backend.Cut
		want bool
	}{
		"whole":      {[]backend.Cut{a, b}, true},
		"nothing":    {nil, false},
		"a part":     {[]backend.Cut{a}, false},
		"the rest":   {[]backend.Cut{b}, false},
		"two tokens": {[]backend.Cut{a, foreign}, false},
		"more":       {[]backend.Cut{a, b, {ID: "c", Hold: hold}}, false},
	} {
		if got := wholeGroup(tc.cuts); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
