package state

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestValidate: each rule refuses the entry that breaks it alone.
func TestValidate(t *testing.T) {
	staged := Entry{State: Staged, Mode: volume.ModeWriteback, Activated: true}
	kept := Entry{State: Retained, Mode: volume.ModeWritethrough, Activated: true, Clean: true}
	for name, c := range map[string]struct {
		e      Entry
		change func(*Entry)
		want   string
	}{
		"in use":              {staged, func(*Entry) {}, ""},
		"kept":                {kept, func(*Entry) {}, ""},
		"being exported":      {kept, func(e *Entry) { e.Exported = &volume.MoveID{Name: "m"} }, ""},
		"recorded for a node": {staged, func(e *Entry) { e.Exported, e.Track = &volume.MoveID{Name: "m"}, &Track{ID: "t"} }, ""},
		"prewarmed":           {Entry{State: Prewarmed, Mode: volume.ModeWritethrough, Prewarm: &Prewarm{}}, func(*Entry) {}, ""},
		"given up":            {kept, func(e *Entry) { e.State = Wiping }, ""},

		"active without a cache":        {staged, func(e *Entry) { e.Mode = volume.ModeNone }, "active or clean"},
		"clean without a cache":         {Entry{State: Flushed, Mode: volume.ModeNone, Clean: true}, func(*Entry) {}, "active or clean"},
		"clean in use":                  {staged, func(e *Entry) { e.Clean = true }, "a cache in use is clean"},
		"copied, nobody knows what":     {Entry{State: Prewarmed, Mode: volume.ModeWritethrough}, func(*Entry) {}, "what was copied"},
		"a copy in use":                 {Entry{State: Staging, Mode: volume.ModeWriteback, Activated: true, Prewarm: &Prewarm{}}, func(*Entry) {}, "still a copy"},
		"a copy that nobody wants":      {Entry{State: Releasing, Mode: volume.ModeWriteback, Prewarm: &Prewarm{}}, func(*Entry) {}, "outlived"},
		"kept dirty":                    {kept, func(e *Entry) { e.Clean = false }, "not proven"},
		"kept in doubt":                 {kept, func(e *Entry) { e.Doubt = "the origin refused writes" }, "not proven"},
		"exported while it is flushed":  {staged, func(e *Entry) { e.State, e.Exported = Flushing, &volume.MoveID{} }, "exported"},
		"recorded, and not in use":      {staged, func(e *Entry) { e.State, e.Clean, e.Track = Retained, true, &Track{ID: "t"} }, "not in use"},
		"a reserved LUN that is fenced": {staged, func(e *Entry) { e.Reserved = true }, "generations"},
		"drops flushes":                 {staged, func(e *Entry) { e.Unsafe = true }, ""},
		"drops those of writethrough":   {staged, func(e *Entry) { e.Unsafe, e.Mode = true, volume.ModeWritethrough }, "drops flushes"},
		"drops flushes and is clean":    {staged, func(e *Entry) { e.Unsafe, e.Clean, e.State = true, true, Flushed }, "drops flushes"},
		"inherited nothing":             {staged, func(e *Entry) { e.Static, e.Inherited = true, true }, "that there is not"},
	} {
		t.Run(name, func(t *testing.T) {
			e := c.e
			c.change(&e)
			err := e.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestTransitions: fields that belong together change together, whatever they were, and
// what comes of it may be journalled.
func TestTransitions(t *testing.T) {
	before := Entry{
		State: Staging, Mode: volume.ModeWriteback, Activated: true, Clean: true, ChunkSectors: 256, DataBytes: 1 << 20, MetaBytes: 1 << 12, Recovered: true,
		Prewarm: &Prewarm{Request: "r"}, Hydration: &Hydration{From: &volume.WarmSource{}, Deadline: time.Unix(1, 0)},
	}
	for name, c := range map[string]struct {
		do   func(*Entry)
		want func(Entry) bool
	}{
		"activate": {func(e *Entry) { e.Activate(volume.ModeWritethrough) }, func(e Entry) bool {
			return e.Recovered && e.Mode == volume.ModeWritethrough && e.Activated && e.DataBytes > 0 && e.Hydration.From != nil
		}},
		"deny": {(*Entry).Deny, func(e Entry) bool {
			return e.Recovered && !e.Cached() && !e.Activated && e.DataBytes > 0 && e.Hydration != nil && e.Hydration.From == nil
		}},
		"anew": {(*Entry).Anew, func(e Entry) bool {
			return !e.Recovered && e.Cached() && !e.Activated && e.CacheBytes() == 0 && e.ChunkSectors == 0
		}},
	} {
		e := before
		hydration := *before.Hydration
		e.Hydration = &hydration
		c.do(&e)
		if !c.want(e) || e.Clean || e.Prewarm != nil || e.Validate() != nil {
			t.Errorf("%s: %+v: %v", name, e, e.Validate())
		}
	}
}

// TestEarlierRecovered: an entry of a version that did not say whether its cache was recovered may be
// of one, as long as that may be live. What this version writes says it.
func TestEarlierRecovered(t *testing.T) {
	const cache = `"dataBytes":4096`
	for text, want := range map[string]bool{
		`{"state":"Staged","mode":"writeback",` + cache + `}`:                              true,
		`{"state":"Staged","mode":"writethrough",` + cache + `}`:                           true,
		`{"state":"Staged","mode":"none",` + cache + `}`:                                   true,
		`{"state":"Flushing","mode":"writeback",` + cache + `}`:                            true,
		`{"state":"Staging","mode":"writeback",` + cache + `}`:                             true,
		`{"state":"Staged","mode":"none"}`:                                                 false,
		`{"state":"Retained","mode":"writeback","clean":true,` + cache + `}`:               false,
		`{"state":"Staged","mode":"writethrough","hydration":{"stream":{}},` + cache + `}`: false,
		`{"state":"Staged","mode":"writeback","recovered":false,` + cache + `}`:            false,
		`{"state":"Retained","mode":"writeback","recovered":true,` + cache + `}`:           true,
	} {
		var e, again Entry
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Recovered != want {
			t.Errorf("%s: %t, %v", text, e.Recovered, err)
		}
		written, err := json.Marshal(e)
		if err != nil || json.Unmarshal(written, &again) != nil || again.Recovered != want {
			t.Errorf("%s: %t after it was written, %v", text, again.Recovered, err)
		}
	}
}

// TestEarlierWords: journals of versions before are read.
func TestEarlierWords(t *testing.T) {
	text := `{"id":"v","state":"Staged","mode":"writethrough","unitID":"naa.1","fill":{"deadline":"2026-01-02T03:04:05Z"},` +
		`"lent":{"name":"m"},"bypass":"broken","prewarm":{"request":"r","lentBytes":4096}}`
	var was Entry
	if err := json.Unmarshal([]byte(text), &was); err != nil || was.WWID != "naa.1" || was.Hydration == nil || was.Hydration.Deadline.Year() != 2026 ||
		was.Exported == nil || was.Exported.Name != "m" || was.FailoverCause != "broken" || was.Prewarm.ExportedBytes != 4096 {
		t.Errorf("got %+v, %v", was, err)
	}
	written, err := json.Marshal(was)
	var now Entry
	if err != nil || json.Unmarshal(written, &now) != nil || strings.Contains(string(written), "lent") {
		t.Errorf("written as %s, %v", written, err)
	}
	if diff := cmp.Diff(was, now); diff != "" {
		t.Errorf("(-read +written and read again):\n%s", diff)
	}
	var e Entry
	if err := json.Unmarshal([]byte(`{"id":"v","state":"Resident","mode":"writethrough","clean":true,"residentAt":"2026-01-02T03:04:05Z"}`), &e); err != nil || e.State != Retained || e.Check() != nil ||
		e.ID != "v" || !e.Clean || !e.RetainedCacheDue || e.RetainedAt.Year() != 2026 {
		t.Errorf("got %+v, %v", e, err)
	}
}
