package provision

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecideCut is the table "Snapshots and clones" of states.md.
func TestDecideCut(t *testing.T) {
	type facts = cutFacts
	base := func(change ...func(*facts)) facts {
		f := facts{Name: "s", Volume: "v", Ours: true, Record: &volume.Volume{ID: "v", Fence: volume.Fence{Node: "a"}, Hold: &volume.Hold{Name: "s", Token: "t"}}}
		for _, c := range change {
			c(&f)
		}
		return f
	}
	cut := func(change func(*backend.Cut)) func(*facts) {
		return func(f *facts) {
			f.Cut = &backend.Cut{ID: "s", Volume: "v", Hold: "t", Done: true}
			change(f.Cut)
		}
	}
	made := cut(func(*backend.Cut) {})
	accepted := cut(func(c *backend.Cut) { c.Accepted = true })
	under := func(token string) func(*facts) { return cut(func(c *backend.Cut) { c.Hold = token }) }
	acceptedUnder := func(token string) func(*facts) { return func(f *facts) { f.Cut.Hold = token } }
	undone := cut(func(c *backend.Cut) { c.Done = false })
	free := func(f *facts) { f.Record.Hold = nil }
	foreign := func(f *facts) { f.Ours = false }
	other := func(f *facts) { f.Record.Hold.Name = "other" }
	gone := func(f *facts) { f.Record = nil }
	deleting := func(f *facts) { f.Record.Deleting = true }
	published := func(f *facts) { f.Record.Published = true }
	dirty := func(f *facts) { f.Record.PossiblyDirty = true }
	lost := func(f *facts) { f.Lost = true }
	admitted := func(f *facts) { f.Admitted = true }
	asked := func(request, done string) func(*facts) {
		return func(f *facts) { f.Record.FlushRequest, f.Record.FlushDone = request, done }
	}
	answers := func(f *facts) { f.Answers = true }
	mute := func(f *facts) { f.Mute = "its SSD is gone" }
	used := func(f *facts) { f.UsedOn = "a" }
	forClone := func(f *facts) { f.Clone = "c" }
	for name, tc := range map[string]struct {
		f    facts
		want cutStep
		err  error
	}{
		"accepted":                              {base(accepted), cutAnswer, nil},
		"accepted, the hold is over":            {base(accepted, free), cutAnswer, nil},
		"accepted, the volume is gone":          {base(accepted, gone), cutAnswer, nil},
		"accepted, dirty since":                 {base(accepted, free, published, dirty), cutAnswer, nil},
		"accepted, held for another":            {base(accepted, other), cutAnswer, nil},
		"accepted for the clone":                {base(accepted, forClone, acceptedUnder("hold-x-c")), cutAnswer, nil},
		"accepted for an earlier clone":         {base(accepted, forClone, acceptedUnder("hold-x-d")), cutDiscard, nil},
		"used, whatever the record says":        {base(used), "", volume.ErrFenced},
		"used, cut":                             {base(used, made), "", volume.ErrFenced},
		"used, accepted":                        {base(used, accepted), cutAnswer, nil},
		"released, its node is asked":           {base(answers, asked("t", "")), cutWait, nil},
		"released, its node is to be asked":     {base(answers, asked("old", "")), cutFlush, nil},
		"released, its node has answered":       {base(answers, asked("t", "t")), cutCut, nil},
		"released, admitted, not answered":      {base(answers, admitted, asked("t", "")), cutWait, nil},
		"released, admitted, answered":          {base(answers, admitted, asked("t", "t")), cutSettle, nil},
		"released, its node cannot answer":      {base(answers, mute, free), "", volume.ErrFenced},
		"released, its node cannot answer now":  {base(answers, mute, asked("t", "")), "", volume.ErrFenced},
		"released, it cannot answer any more":   {base(answers, mute, asked("t", "t")), cutCut, nil},
		"released, it has answered others":      {base(answers, mute, foreign, asked("t", "t")), "", volume.ErrFenced},
		"of another volume":                     {base(cut(func(c *backend.Cut) { c.Volume, c.Accepted = "w", true })), "", volume.ErrExists},
		"of another volume, not accepted":       {base(cut(func(c *backend.Cut) { c.Volume = "w" })), "", volume.ErrExists},
		"no volume":                             {base(gone), "", volume.ErrNotFound},
		"no volume, a cut that is not accepted": {base(made, gone), "", volume.ErrNotFound},
		"being deleted":                         {base(deleting), "", volume.ErrBusy},
		"dirty, published nowhere":              {base(dirty), "", volume.ErrFenced},
		"dirty, published nowhere, no hold":     {base(dirty, free), "", volume.ErrFenced},
		"dirty, its node is lost":               {base(dirty, published, lost, free), "", volume.ErrFenced},
		"clean, its node is lost":               {base(published, lost, free), cutHold, nil},
		"held for another":                      {base(other), "", volume.ErrBusy},
		"no hold":                               {base(free), cutHold, nil},
		"no hold, published, dirty":             {base(free, published, dirty), cutHold, nil},
		"a hold that others have put":           {base(foreign), cutHold, nil},
		"a hold of others, and their cut":       {base(foreign, made), cutHold, nil},
		"cut under another hold":                {base(under("u")), cutDrop, nil},
		"cut under another hold, in work":       {base(under("u"), cut(func(c *backend.Cut) { c.Hold, c.Done = "u", false })), cutDrop, nil},
		"cut, no hold any more":                 {base(made, free), cutHold, nil},
		"cut":                                   {base(made), cutAccept, nil},
		"cut, published meanwhile":              {base(made, published), cutAccept, nil},
		"cut, formatted meanwhile":              {base(made, func(f *facts) { f.Cut.Filesystem = volume.FormatNever }), cutDrop, nil},
		"in work, formatted meanwhile":          {base(undone, func(f *facts) { f.Cut.Filesystem = volume.FormatNever }), cutCut, nil},
		"cut in work":                           {base(undone), cutCut, nil},
		"held, published nowhere":               {base(), cutCut, nil},
		"held, published nowhere, admitted":     {base(admitted), cutSettle, nil},
		"held, draining":                        {base(published, dirty, asked("t", "")), cutWait, nil},
		"held, flushed, mark is left":           {base(published, dirty, asked("t", "t")), cutWait, nil},
		"held, clean, not flushed":              {base(published, asked("t", "")), cutWait, nil},
		"held, its node is lost":                {base(published, lost, asked("t", "")), "", volume.ErrFenced},
		"held, flushed, its node is lost":       {base(published, lost, asked("t", "t")), cutCut, nil},
		"held, clean, flushed before":           {base(published, asked("t", "old")), cutWait, nil},
		"held, flushed":                         {base(published, admitted, asked("t", "t")), cutCut, nil},
		"held, another flush is asked for":      {base(published, asked("u", "old")), cutWait, nil},
		"held, another flush is done":           {base(published, asked("u", "u")), cutFlush, nil},
		"held, no flush is asked for":           {base(published, asked("", "")), cutFlush, nil},
		"held, flushed, another one since":      {base(published, asked("u", "t")), cutCut, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decideCut(tc.f)
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, tc.want, tc.err)
			}
			if errors.Is(err, volume.ErrFenced) && !strings.Contains(err.Error(), "node a") {
				t.Errorf("%v does not say which node has the writes", err)
			}
		})
	}
}
