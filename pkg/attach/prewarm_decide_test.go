package attach

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/attach/lease"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// requested is the record of a volume that node a owns under generation 5, and whose
// cache is asked for on node b.
func requested(opts ...func(*volume.Volume)) volume.Volume {
	v := volume.Volume{
		ID: "v", Fence: volume.Fence{UID: "u", Generation: 5, Node: "a"}, Published: true,
		Spec:    volume.Spec{Mode: volume.ModeWritethrough, WarmStart: volume.WarmStart{From: volume.WarmPeer}},
		Prewarm: &volume.Prewarm{Node: "b", Request: "r1"},
	}
	for _, o := range opts {
		o(&v)
	}
	return v
}

// prewarmedEntry is what node b has of it.
func prewarmedEntry(opts ...func(*state.Entry)) *state.Entry {
	e := &state.Entry{
		ID: "v", State: state.Prewarmed, Fence: volume.Fence{UID: "u", Generation: 5, Node: "b"}, Mode: volume.ModeWritethrough,
		Prewarm: &state.Prewarm{Request: "r1", Tracking: "t1", Source: &volume.StreamSource{Addresses: []string{"a"}}, ChunkSectors: 64, ExportedBytes: 1 << 20, Copying: true},
	}
	for _, o := range opts {
		o(e)
	}
	return e
}

func TestDecidePrewarm(t *testing.T) {
	retained := func(generation int64) func(*state.Entry) {
		return func(e *state.Entry) { e.State, e.Fence.Generation, e.Prewarm = state.Retained, generation, nil }
	}
	cases := map[string]struct {
		entry   *state.Entry
		record  volume.Volume
		running bool
		want    prewarmStep
	}{
		"asked":                {record: requested(), want: prewarmBegin},
		"nobody asks":          {record: requested(func(v *volume.Volume) { v.Prewarm = nil }), want: prewarmNothing},
		"another node":         {record: requested(func(v *volume.Volume) { v.Prewarm.Node = "c" }), want: prewarmNothing},
		"released":             {record: requested(func(v *volume.Volume) { v.Published = false }), want: prewarmNothing},
		"own volume":           {record: requested(func(v *volume.Volume) { v.Fence.Node = "b" }), want: prewarmNothing},
		"never published":      {record: requested(func(v *volume.Volume) { v.Fence.Generation = 0 }), want: prewarmNothing},
		"deleting":             {record: requested(func(v *volume.Volume) { v.Deleting = true }), want: prewarmNothing},
		"uncached":             {record: requested(func(v *volume.Volume) { v.Spec.Mode = volume.ModeNone }), want: prewarmNothing},
		"warmStart off":        {record: requested(func(v *volume.Volume) { v.Spec.WarmStart.From = volume.WarmOff }), want: prewarmNothing},
		"warmStart origin":     {record: requested(func(v *volume.Volume) { v.Spec.WarmStart.From = volume.WarmOrigin }), want: prewarmNothing},
		"stale retained cache": {record: requested(), entry: prewarmedEntry(retained(4)), want: prewarmBegin},
		"exported retained cache": {record: requested(), entry: prewarmedEntry(retained(4), func(e *state.Entry) { e.Exported = &volume.MoveID{Name: "m"} }),
			want: prewarmNothing},
		"retained cache that the owner may begin with": {entry: prewarmedEntry(retained(4)), want: prewarmNothing,
			record: requested(func(v *volume.Volume) { v.WarmSource = &volume.WarmSource{Node: "b", Generation: 4} })},
		"staged here":             {record: requested(), entry: prewarmedEntry(func(e *state.Entry) { e.State = state.Staged }), want: prewarmNothing},
		"running":                 {record: requested(), entry: prewarmedEntry(), running: true, want: prewarmNothing},
		"of a process that ended": {record: requested(), entry: prewarmedEntry(), want: prewarmResume},
		"the answer was lost":     {record: requested(), entry: prewarmedEntry(func(e *state.Entry) { e.Prewarm.Tracking = "" }), want: prewarmBegin},
		"nobody knows where from": {record: requested(), entry: prewarmedEntry(func(e *state.Entry) { e.Prewarm.Source = nil }), want: prewarmBegin},
		"chunks of no size":       {record: requested(), entry: prewarmedEntry(func(e *state.Entry) { e.Prewarm.ChunkSectors = 0 }), want: prewarmBegin},
		"done":                    {record: requested(), entry: prewarmedEntry(func(e *state.Entry) { e.Prewarm.Copying = false }), want: prewarmNothing},
		"another request":         {record: requested(func(v *volume.Volume) { v.Prewarm.Request = "r2" }), entry: prewarmedEntry(), want: prewarmBegin},
		"moved on":                {record: requested(func(v *volume.Volume) { v.Fence.Generation = 6 }), entry: prewarmedEntry(), want: prewarmBegin},
		"another volume":          {record: requested(func(v *volume.Volume) { v.Fence.UID = "w" }), entry: prewarmedEntry(), want: prewarmBegin},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := decidePrewarm(prewarmFacts{Entry: tc.entry, Record: tc.record, Node: "b", Running: tc.running})
			if got != tc.want {
				t.Errorf("step %s, want %s", got, tc.want)
			}
		})
	}
}

func TestPrewarmWanted(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	done := func(e *state.Entry) { e.Prewarm.Copying = false }
	old := func(e *state.Entry) { e.UpdatedAt = now.Add(-2 * time.Hour) }
	cases := map[string]struct {
		entry  *state.Entry
		record volume.Volume
		want   bool
	}{
		"where it was":   {entry: prewarmedEntry(done), record: requested(), want: true},
		"old":            {entry: prewarmedEntry(done, old), record: requested()},
		"old, copying":   {entry: prewarmedEntry(old), record: requested(), want: true},
		"comes here":     {entry: prewarmedEntry(done), record: requested(func(v *volume.Volume) { v.Fence = volume.Fence{UID: "u", Generation: 6, Node: "b"} }), want: true},
		"went elsewhere": {entry: prewarmedEntry(done), record: requested(func(v *volume.Volume) { v.Fence = volume.Fence{UID: "u", Generation: 6, Node: "c"} })},
		"came back":      {entry: prewarmedEntry(done), record: requested(func(v *volume.Volume) { v.Fence = volume.Fence{UID: "u", Generation: 7, Node: "b"} })},
		"another volume": {entry: prewarmedEntry(done), record: requested(func(v *volume.Volume) { v.Fence.UID = "w" })},
		"uncached":       {entry: prewarmedEntry(done), record: requested(func(v *volume.Volume) { v.Spec.Mode = volume.ModeNone })},
		"gone":           {entry: prewarmedEntry(done)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.entry.UpdatedAt = latest(tc.entry.UpdatedAt, now.Add(-3*time.Hour), now)
			if got := prewarmWanted(tc.entry, tc.record, "b", now, time.Hour); got != tc.want {
				t.Errorf("wanted: %t, want %t", got, tc.want)
			}
		})
	}
}

// latest is t, unless it is before least: then other.
func latest(t, least, other time.Time) time.Time {
	if t.Before(least) {
		return other
	}
	return t
}

func TestPrewarmCancelled(t *testing.T) {
	cases := map[string]struct {
		record volume.Volume
		want   bool
	}{
		"asked":            {record: requested()},
		"taken back":       {record: requested(func(v *volume.Volume) { v.Prewarm = nil }), want: true},
		"for another node": {record: requested(func(v *volume.Volume) { v.Prewarm.Node = "c" }), want: true},
		"attached nowhere": {record: requested(func(v *volume.Volume) { v.Published = false })},
		"taken back because the volume comes": {record: requested(func(v *volume.Volume) {
			v.Prewarm, v.Fence = nil, volume.Fence{UID: "u", Generation: 6, Node: "b"}
		})},
		"gone": {want: true},
	}
	for name, tc := range cases {
		if got := prewarmCancelled(prewarmedEntry(), tc.record, "b"); got != tc.want {
			t.Errorf("%s: cancelled %t, want %t", name, got, tc.want)
		}
	}
}

// TestStageKeepsWhatWasCopied: only what was copied under the generation before, from
// the node that the record says, survives the decision.
func TestStageKeepsWhatWasCopied(t *testing.T) {
	fence := volume.Fence{UID: "u", Generation: 6, Node: "b"}
	staging := func(e *state.Entry) {
		e.State, e.Fence, e.Hydration = state.Staging, fence, &state.Hydration{From: &volume.WarmSource{Node: "a", Generation: 5}}
	}
	cases := map[string]struct {
		entry  *state.Entry
		record func(*volume.Volume)
		keep   bool
		wipe   bool
	}{
		"copied":                     {entry: prewarmedEntry(), keep: true},
		"a stage that was killed":    {entry: prewarmedEntry(staging), record: func(v *volume.Volume) { v.WarmSource = nil }, keep: true},
		"it had activated something": {entry: prewarmedEntry(staging, func(e *state.Entry) { e.Activated = true }), wipe: true},
		"an older copy":              {entry: prewarmedEntry(func(e *state.Entry) { e.Fence.Generation = 4 }), wipe: true},
		"another volume":             {entry: prewarmedEntry(func(e *state.Entry) { e.Fence.UID = "w" }), wipe: true},
		"no retained cache":          {entry: prewarmedEntry(), record: func(v *volume.Volume) { v.WarmSource = nil }, wipe: true},
		"warmStart off":              {entry: prewarmedEntry(), record: func(v *volume.Volume) { v.Spec.WarmStart.From = volume.WarmOff }, wipe: true},
		"an orphan":                  {wipe: true},
		"uncached by now":            {entry: prewarmedEntry(), record: func(v *volume.Volume) { v.Spec.Mode = volume.ModeNone }, wipe: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			rec := requested(func(v *volume.Volume) { v.Fence, v.WarmSource = fence, &volume.WarmSource{Node: "a", Generation: 5} })
			if tc.record != nil {
				tc.record(&rec)
			}
			plan := decideStage(stageFacts{Method: volume.MethodClone, Entry: tc.entry, Fence: fence, Record: rec, Node: "b", SameBoot: true, Cache: ssd.Facts{Partial: true}})
			if plan.Refuse != nil || plan.Keep != tc.keep || plan.Wipe != tc.wipe {
				t.Errorf("keep %t, wipe %t, refuse %v; want keep %t, wipe %t", plan.Keep, plan.Wipe, plan.Refuse, tc.keep, tc.wipe)
			}
		})
	}
}

// leased is a lease of 32 chunks, whose writes are told apart in pairs of chunks.
func leased(opts ...func(*volume.Lease)) volume.Lease {
	l := volume.Lease{ChunkSectors: 64, DataBytes: 1 << 20, Tracked: &volume.Tracked{ID: "t1", AreaBytes: 64 << 10, Changed: make([]byte, 2)}}
	for _, o := range opts {
		o(&l)
	}
	return l
}

func TestUnfit(t *testing.T) {
	cases := map[string]struct {
		lease volume.Lease
		want  string
	}{
		"fits":              {lease: leased()},
		"no record":         {lease: leased(func(l *volume.Lease) { l.Tracked = nil }), want: "no record"},
		"it goes on":        {lease: leased(func(l *volume.Lease) { l.Tracked.Changed = nil }), want: "no record"},
		"another record":    {lease: leased(func(l *volume.Lease) { l.Tracked.ID = "t2" }), want: "began at another time"},
		"other chunks":      {lease: leased(func(l *volume.Lease) { l.ChunkSectors = 128 }), want: "the cache has"},
		"other size":        {lease: leased(func(l *volume.Lease) { l.DataBytes *= 2 }), want: "the cache has"},
		"uneven areas":      {lease: leased(func(l *volume.Lease) { l.Tracked.AreaBytes = 48 << 10 }), want: "no whole chunks"},
		"no areas":          {lease: leased(func(l *volume.Lease) { l.Tracked.AreaBytes = 0 }), want: "no whole chunks"},
		"areas are missing": {lease: leased(func(l *volume.Lease) { l.Tracked.Changed = make([]byte, 1) }), want: "too short"},
	}
	for name, tc := range cases {
		got := unfit(prewarmedEntry().Prewarm, tc.lease)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if got := unfit(&state.Prewarm{ChunkSectors: 64, ExportedBytes: 1 << 20}, leased(func(l *volume.Lease) { l.Tracked.ID = "" })); got == "" {
		t.Error("a copy without a record fits")
	}
}

func TestUnchanged(t *testing.T) {
	bits := func(n uint64, set ...uint64) volume.Bits {
		b := volume.NewBits(n)
		for _, i := range set {
			b.Set(i)
		}
		return b
	}
	cases := map[string]struct {
		copied, changed volume.Bits
		want            []cachemap.Range
	}{
		"nothing copied":  {changed: bits(16)},
		"all changed":     {copied: volume.Bits{0xff, 0xff, 0xff, 0xff}, changed: volume.Bits{0xff, 0xff}},
		"nothing changed": {copied: volume.Bits{0xff, 0xff, 0xff, 0xff}, changed: bits(16), want: []cachemap.Range{{Start: 0, Length: 32 * 64}}},
		"one area": {copied: volume.Bits{0xff, 0xff, 0xff, 0xff}, changed: bits(16, 3), want: []cachemap.Range{
			{Start: 0, Length: 6 * 64}, {Start: 8 * 64, Length: 24 * 64}}},
		"some chunks": {copied: bits(32, 0, 1, 5, 31), changed: bits(16, 0), want: []cachemap.Range{
			{Start: 5 * 64, Length: 64}, {Start: 31 * 64, Length: 64}}},
		"a short file": {copied: volume.Bits{0x81}, changed: bits(16), want: []cachemap.Range{{Start: 0, Length: 64}, {Start: 7 * 64, Length: 64}}},
	}
	for name, tc := range cases {
		got := runsOf(unchanged(tc.copied, leased(func(l *volume.Lease) { l.Tracked.Changed = tc.changed })), 64)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestTrackedWritesSurviveTheWay: each area that was written to, and no other, is one
// whose chunks are not kept.
func TestTrackedWritesSurviveTheWay(t *testing.T) {
	w := devmapper.Written{AreaSectors: 128, Areas: make([]bool, 16)}
	for _, i := range []int{0, 7, 8, 15} {
		w.Areas[i] = true
	}
	tracked := lease.Tracked("t1", w)
	kept := runsOf(unchanged(volume.Bits{0xff, 0xff, 0xff, 0xff}, leased(func(l *volume.Lease) { l.Tracked = tracked })), 64)
	for area, written := range w.Areas {
		has := slices.ContainsFunc(kept, func(r cachemap.Range) bool {
			at := uint64(area) * w.AreaSectors
			return at < r.Start+r.Length && r.Start < at+w.AreaSectors
		})
		if has == written {
			t.Errorf("area %d: written %t, kept %t", area, written, has)
		}
	}
}

func TestCopiedFile(t *testing.T) {
	b := encodeCopied("t1", volume.Bits{1, 2, '\n', 4})
	if diff := cmp.Diff(volume.Bits{1, 2, '\n', 4}, decodeCopied(b, "t1")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := decodeCopied(b, "t2"); got != nil {
		t.Errorf("of another record: %v", got)
	}
	if got := decodeCopied(encodeCopied("", volume.Bits{1}), ""); got != nil {
		t.Errorf("of no record: %v", got)
	}
	for i := range b {
		if got := decodeCopied(b[:i], "t1"); got != nil {
			t.Errorf("cut off at %d: %v", i, got)
		}
		broken := slices.Clone(b)
		broken[i] ^= 0x10
		if got := decodeCopied(broken, "t1"); got != nil {
			t.Errorf("broken at %d: %v", i, got)
		}
	}
}

// TestMissing: what was copied is not asked for again, and a list of another cache is refused.
func TestMissing(t *testing.T) {
	l := volume.ChunkList{ChunkSectors: 64, Blocks: []uint64{9, 4, 7, 1, 3, 2, 8, 5, 6}, Places: []uint32{5, 0, 19, 2, 3, 4, 6, 7, 8}}
	copied := volume.NewBits(20)
	for _, at := range []uint64{0, 1, 8, 19} {
		copied.Set(at)
	}
	w, err := missing(l, 64, 20, copied)
	if diff := cmp.Diff(volume.Wanted{Skip: volume.Bits{0b110, 1}, Places: l.Places}, w); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if w, err := missing(volume.ChunkList{ChunkSectors: 64}, 64, 20, copied); len(w.Skip) > 0 || err != nil {
		t.Errorf("an empty list: %+v, %v", w, err)
	}
	for name, get := range map[string]func() (volume.Wanted, error){
		"other chunks":      func() (volume.Wanted, error) { return missing(l, 128, 20, copied) },
		"a place behind it": func() (volume.Wanted, error) { return missing(l, 64, 19, copied) },
	} {
		if _, err := get(); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
