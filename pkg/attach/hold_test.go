package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestMayAnswer: only who has nothing of a volume at work says so.
func TestMayAnswer(t *testing.T) {
	base := func() heldFacts {
		return heldFacts{Looked: true, Record: volume.Volume{FlushRequest: "t", Hold: &volume.Hold{Name: "s", Token: "t"}}}
	}
	for name, tc := range map[string]struct {
		change func(*heldFacts)
		want   bool
	}{
		"nothing is here":             {func(*heldFacts) {}, true},
		"a retained cache":            {func(f *heldFacts) { f.Entry = &state.Entry{State: state.Retained} }, true},
		"a prewarmed one":             {func(f *heldFacts) { f.Entry = &state.Entry{State: state.Prewarmed} }, true},
		"at work":                     {func(f *heldFacts) { f.Entry = &state.Entry{State: state.Staged} }, false},
		"coming":                      {func(f *heldFacts) { f.Entry = &state.Entry{State: state.Staging} }, false},
		"flushing":                    {func(f *heldFacts) { f.Entry = &state.Entry{State: state.Flushing} }, false},
		"a device without an entry":   {func(f *heldFacts) { f.Active = true }, false},
		"not everything is looked at": {func(f *heldFacts) { f.Looked = false }, false},
		"unflushed writes are kept":   {func(f *heldFacts) { f.Kept = true }, false},
		"no hold":                     {func(f *heldFacts) { f.Record.Hold = nil }, false},
		"published":                   {func(f *heldFacts) { f.Record.Published = true }, false},
		"dirty":                       {func(f *heldFacts) { f.Record.PossiblyDirty = true }, false},
		"another flush is asked for":  {func(f *heldFacts) { f.Record.FlushRequest = "u" }, false},
		"it was answered":             {func(f *heldFacts) { f.Record.FlushDone = "t" }, false},
	} {
		f := base()
		tc.change(&f)
		if got := mayAnswer(f); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
