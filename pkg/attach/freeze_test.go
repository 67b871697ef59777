package attach

import (
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecideFreezeRequest: what a node does about a request that it is not working on.
func TestDecideFreezeRequest(t *testing.T) {
	fence := volume.Fence{UID: "u", Generation: 1, Node: "a"}
	base := func(change ...func(*freezeFacts)) freezeFacts {
		f := freezeFacts{
			Entry: &state.Entry{ID: "v", Fence: fence, State: state.Staged}, Freezes: true, DevNo: "253:1", Path: "/staging",
			Record: volume.Volume{ID: "v", Fence: fence, Published: true, Hold: &volume.Hold{Name: "s", Token: "t", Freeze: volume.FreezeAsked}},
		}
		for _, c := range change {
			c(&f)
		}
		return f
	}
	said := func(token string, s volume.FreezeState) func(*freezeFacts) {
		return func(f *freezeFacts) { f.Record.Freeze = volume.FreezeReport{Token: token, State: s} }
	}
	thaw := func(f *freezeFacts) { f.Record.Hold.Freeze = volume.FreezeOver }
	for name, tc := range map[string]struct {
		f    freezeFacts
		want freezeStep
		why  string
	}{
		"asked":                              {base(), freezeNow, ""},
		"asked, answered for another hold":   {base(said("u", volume.FreezeHeld)), freezeNow, ""},
		"not held":                           {base(func(f *freezeFacts) { f.Record.Hold = nil }), freezeNothing, ""},
		"held, not asked":                    {base(func(f *freezeFacts) { f.Record.Hold.Freeze = "" }), freezeNothing, ""},
		"to be thawed, never frozen":         {base(thaw), freezeNothing, ""},
		"frozen by a plugin before":          {base(said("t", volume.FreezeFrozen)), freezeFailed, "plugin"},
		"the same, to be thawed":             {base(said("t", volume.FreezeFrozen), thaw), freezeFailed, "plugin"},
		"the same, left":                     {base(said("t", volume.FreezeFrozen), func(f *freezeFacts) { f.Entry = nil }), freezeFailed, "plugin"},
		"frozen before, and nothing said":    {base(func(f *freezeFacts) { f.Before = true }), freezeFailed, "before"},
		"frozen before, answered":            {base(said("t", volume.FreezeHeld), func(f *freezeFacts) { f.Before = true }), freezeNothing, ""},
		"answered":                           {base(said("t", volume.FreezeHeld)), freezeNothing, ""},
		"failed":                             {base(said("t", volume.FreezeFailed)), freezeNothing, ""},
		"not attached":                       {base(func(f *freezeFacts) { f.Entry = nil }), freezeNothing, ""},
		"being attached":                     {base(func(f *freezeFacts) { f.Entry.State = state.Staging }), freezeNothing, ""},
		"attached under another fence":       {base(func(f *freezeFacts) { f.Entry.Fence.Generation = 2 }), freezeNothing, ""},
		"published no more":                  {base(func(f *freezeFacts) { f.Record.Published = false }), freezeNothing, ""},
		"raw":                                {base(func(f *freezeFacts) { f.Entry.Raw, f.Path = true, "" }), freezeRaw, ""},
		"not mounted":                        {base(func(f *freezeFacts) { f.Path = "" }), freezeFailed, "not mounted"},
		"a node that cannot":                 {base(func(f *freezeFacts) { f.Freezes, f.Path = false, "" }), freezeFailed, "cannot"},
		"a node that cannot, and need not":   {base(func(f *freezeFacts) { f.Freezes, f.Entry.Raw = false, true }), freezeRaw, ""},
		"held by a version without a token":  {base(func(f *freezeFacts) { f.Record.Hold.Token = "" }), freezeNothing, ""},
		"nothing was ever said of any hold":  {base(said("", "")), freezeNow, ""},
		"answered NoFilesystem for the hold": {base(said("t", volume.FreezeNoFilesystem)), freezeNothing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := decideFreeze(tc.f)
			if got != tc.want || !strings.Contains(why, tc.why) || (why == "") != (tc.why == "") {
				t.Errorf("%q, %q, want %q, %q", got, why, tc.want, tc.why)
			}
		})
	}
}
