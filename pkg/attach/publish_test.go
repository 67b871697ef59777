package attach

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// markedRecords is a record, and what of it was marked.
type markedRecords struct {
	volume.Records
	rec          volume.Volume
	err, markErr error
	marked       int
}

func (r *markedRecords) Get(context.Context, volume.ID) (volume.Volume, error) { return r.rec, r.err }

func (r *markedRecords) MarkPossiblyDirty(_ context.Context, _ volume.ID, f volume.Fence) error {
	if f != r.rec.Fence {
		return volume.ErrFenced
	}
	if r.markErr == nil {
		r.marked, r.rec.PossiblyDirty = r.marked+1, true
	}
	return r.markErr
}

// TestAdmit: a volume at work is published to another pod, without a stage. Its record may say
// clean, because the writes of before were abandoned, or that it is not attached here.
func TestAdmit(t *testing.T) {
	ours := volume.Fence{UID: "u", Generation: 3, Node: "a"}
	clean := volume.Volume{ID: "v", Fence: ours, Published: true}
	with := func(change func(*volume.Volume)) volume.Volume {
		v := clean
		change(&v)
		return v
	}
	refused, errAPI := errors.New("refused"), errors.New("no answer")
	for name, c := range map[string]struct {
		rec          volume.Volume
		state        state.State
		mode         volume.CacheMode
		lost         bool
		err, markErr error
		marked       int
		given        bool
		want         error
	}{
		"clean":                     {rec: clean, state: state.Staged, mode: volume.ModeWriteback, marked: 1},
		"clean, and given up":       {rec: with(func(v *volume.Volume) { v.Abandoned = true }), state: state.Staged, mode: volume.ModeWriteback, marked: 1, given: true},
		"marked":                    {rec: with(func(v *volume.Volume) { v.PossiblyDirty = true }), state: state.Staged, mode: volume.ModeWriteback},
		"the mark is refused":       {rec: clean, state: state.Staged, mode: volume.ModeWriteback, markErr: refused, want: refused},
		"the record cannot be read": {rec: clean, state: state.Staged, mode: volume.ModeWriteback, err: errAPI, want: volume.ErrUnavailable},
		"it cannot, nothing dirty":  {rec: clean, state: state.Staged, mode: volume.ModeWritethrough, err: errAPI},
		"its LUN is lost":           {rec: clean, state: state.Staged, mode: volume.ModeWriteback, lost: true, want: volume.ErrFenced},
		"nothing can be dirty":      {rec: clean, state: state.Staged, mode: volume.ModeWritethrough},
		"on its way down":           {rec: clean, state: state.Flushing, mode: volume.ModeWriteback},
		"of another owner":          {rec: with(func(v *volume.Volume) { v.Fence.Generation = 4 }), state: state.Staged, mode: volume.ModeWriteback, want: volume.ErrFenced},
		"made anew":                 {rec: with(func(v *volume.Volume) { v.Fence.UID = "w" }), state: state.Staged, mode: volume.ModeNone, want: volume.ErrFenced},
		"detached":                  {rec: with(func(v *volume.Volume) { v.Published = false }), state: state.Staged, mode: volume.ModeWriteback, want: volume.ErrFenced},
		"removed by hand":           {state: state.Staged, mode: volume.ModeWriteback, err: volume.ErrNotFound},
	} {
		entries := newJournal(t)
		rec := &markedRecords{rec: c.rec, err: c.err, markErr: c.markErr}
		a := New(Config{Node: "a", Boot: "boot"}, Deps{Journal: entries, Records: rec})
		e := &state.Entry{ID: "v", Fence: ours, State: c.state, Mode: c.mode}
		if c.lost {
			e.Lost = &state.Lost{To: 0x1234}
		}
		given, err := a.admit(t.Context(), "v", e)
		if !errors.Is(err, c.want) || c.want == nil && err != nil || given != c.given || rec.marked != c.marked {
			t.Errorf("%s: given %t, %v, marked %d times", name, given, err, rec.marked)
		}
		if saved, err := entries.Load("v"); c.marked > 0 && (err != nil || !saved.Marked) {
			t.Errorf("%s: the journal does not know of the mark: %+v, %v", name, saved, err)
		}
	}
}

// oneMount is a filesystem in which nothing is mounted but what is asked for.
type oneMount struct {
	Filesystem
	mounted []string
}

func (m *oneMount) Source(_ context.Context, path string) (string, bool, error) {
	return "0:0", slices.Contains(m.mounted, path), nil
}

func (m *oneMount) BindBlock(_ context.Context, _, path string, _ []string) error {
	m.mounted = append(m.mounted, path)
	return nil
}

// TestPublishAsksTheRecord: a pod gets a volume that is staged only after the record was
// asked; a pod that has it already is not asked for again.
func TestPublishAsksTheRecord(t *testing.T) {
	ours := volume.Fence{UID: "u", Generation: 3, Node: "a"}
	entries := newJournal(t)
	if err := entries.Save("v", state.Entry{ID: "v", Fence: ours, State: state.Staged, Mode: volume.ModeWriteback}); err != nil {
		t.Fatal(err)
	}
	fs, rec := &oneMount{}, &markedRecords{rec: volume.Volume{ID: "v", Fence: ours}}
	a := New(Config{Node: "a", Boot: "boot"}, Deps{Journal: entries, Records: rec, FS: fs, DM: &oneTop{}})
	req := volume.PublishRequest{ID: "v", TargetPath: "/pods/1", Block: true}
	if err := a.Publish(t.Context(), req); !errors.Is(err, volume.ErrFenced) || len(fs.mounted) > 0 {
		t.Errorf("a volume that is not published here: %v, mounted %q", err, fs.mounted)
	}
	rec.rec.Published = true
	if err := a.Publish(t.Context(), req); err != nil || rec.marked != 1 || !slices.Equal(fs.mounted, []string{"/pods/1"}) {
		t.Errorf("published without a stage: %v, marked %d times, mounted %q", err, rec.marked, fs.mounted)
	}
	rec.rec.Published = false
	if err := a.Publish(t.Context(), req); errors.Is(err, volume.ErrFenced) {
		t.Errorf("a pod that has it already: %v", err)
	}
	if err := entries.Delete("v"); err != nil {
		t.Fatal(err)
	}
	req.TargetPath = "/pods/2"
	if err := a.Publish(t.Context(), req); !errors.Is(err, volume.ErrFenced) {
		t.Errorf("without a journal, of a volume that is not published here: %v", err)
	}
}
