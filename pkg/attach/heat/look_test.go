package heat

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// oneVolume is a node with one volume, whose lock may be taken.
type oneVolume struct {
	e     *state.Entry
	taken bool
}

func (h *oneVolume) Entries() ([]state.Entry, error) { return []state.Entry{*h.e}, nil }

func (h *oneVolume) Entry(volume.ID) (*state.Entry, error) {
	e := *h.e
	return &e, nil
}

func (h *oneVolume) TryLock(volume.ID) (func(), bool) { return func() {}, !h.taken }

// looking is a node with one volume without a cache, and its clock.
func looking(t *testing.T) (*Keeper, *counter, *oneVolume, *time.Time) {
	t.Helper()
	c := counted(make([]uint64, 100)...)
	k, e := newKeeper(t, c)
	e.Mode, e.ChunkSectors = volume.ModeNone, 0
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	h := &oneVolume{e: e}
	k.Now, k.Host = func() time.Time { return now }, h
	return k, c, h, &now
}

// readFor has ten areas read again and again for a time.
func readFor(t *testing.T, k *Keeper, c *counter, now *time.Time, d time.Duration) {
	t.Helper()
	for end := now.Add(d); now.Before(end); *now = now.Add(lookEvery) {
		for i := range 10 {
			c.reads.Counts[i] += 20
		}
		c.reads.ReadSectors += 1600
		c.reads.Writes += 200
		c.reads.WriteSectors += 3200
		k.Pass(t.Context())
	}
}

// TestPass: what is read again is known after half an hour, over restarts of the plugin, sums that are
// added to a cache's heat, and a time away.
func TestPass(t *testing.T) {
	k, c, h, now := looking(t)
	check := func(what string) {
		t.Helper()
		s, found := k.Reuse("v")
		if !found || len(s.Windows) == 0 {
			t.Fatalf("%s: %+v, %v", what, s, found)
		}
		w := s.Windows[0]
		if w.Hits[0] > 0.15 || w.Hits[2] < 0.95 || w.WritePart() < 0.45 || w.WritePart() > 0.55 || w.ReadBytes != 4096 || w.WriteBytes != 8192 || s.ChunkBytes != 128<<10 {
			t.Errorf("%s: %+v", what, s)
		}
	}
	if _, found := k.Reuse("v"); found {
		t.Error("known before anybody has looked")
	}
	readFor(t, k, c, now, 30*time.Minute)
	if s, _ := k.Reuse("v"); len(s.Windows) > 0 {
		t.Errorf("known too early: %+v", s)
	}
	readFor(t, k, c, now, 2*time.Hour)
	check("after two hours")
	if _, err := os.Stat(k.reuseFile("v")); err != nil {
		t.Errorf("not saved: %v", err)
	}

	// Another process: what is counted by then is no news, as most of it is known.
	k = &Keeper{Devices: c, Dir: k.Dir, Now: k.Now, Host: h}
	before := k.load(t.Context(), "v").Summary().Windows[0].Reads
	k.Pass(t.Context())
	check("after a restart")
	if s, _ := k.Reuse("v"); s.Windows[0].Reads > before {
		t.Errorf("%v reads after a restart, before %v", s.Windows[0].Reads, before)
	}
	h.e.Mode, h.e.ChunkSectors = volume.ModeWritethrough, 256
	c.reads.Counts[0] += 20
	c.reads.ReadSectors += 160
	k.Add(t.Context(), h.e) // which clears
	*now = now.Add(lookEvery)
	readFor(t, k, c, now, 30*time.Minute)
	check("with a cache, whose heat was kept meanwhile")

	h.e.State = state.Retained
	k.Pass(t.Context())
	if _, found := k.Reuse("v"); found {
		t.Error("known of a volume that has left")
	}
	h.e.State = state.Staged
	k.Pass(t.Context())
	check("that is back")
	k.Drop(t.Context(), "v")
	if files, err := os.ReadDir(k.Dir); err != nil || len(files) > 0 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

// TestPassDue: nobody looks too often, at a volume that is worked on, or that has left.
func TestPassDue(t *testing.T) {
	k, c, h, now := looking(t)
	h.taken = true
	k.Pass(t.Context())
	if _, found := k.Reuse("v"); found {
		t.Error("looked at while it is worked on")
	}
	h.taken = false
	k.Pass(t.Context())
	first, _ := k.Reuse("v")
	*now = now.Add(lookEvery - time.Second)
	k.Pass(t.Context())
	if s, _ := k.Reuse("v"); !s.At.Equal(first.At) {
		t.Errorf("looked at %v, and %v", first.At, s.At)
	}
	c.err = errors.New("broken")
	*now = now.Add(lookEvery)
	k.Pass(t.Context())
	c.err = nil
	if err := os.WriteFile(k.reuseFile("v"), []byte("no such thing"), 0o600); err != nil {
		t.Fatal(err)
	}
	k = &Keeper{Devices: c, Dir: k.Dir, Now: k.Now, Host: h}
	k.Pass(t.Context())
	if s, found := k.Reuse("v"); !found || !s.Since.Equal(*now) {
		t.Errorf("with a broken file: %+v", s)
	}
	h.e.State = state.Retained
	k.Host = &oneVolume{e: h.e, taken: true}
	k.Pass(t.Context())
	if _, found := k.Reuse("v"); !found {
		t.Error("let go of while somebody works on it")
	}
}

// TestPassFlushes: flushes count where they were counted at both ends of a look.
func TestPassFlushes(t *testing.T) {
	k, c, _, now := looking(t)
	n, known := uint64(1000), true
	k.Flushes = func(context.Context, *state.Entry) (uint64, bool) {
		n += 50
		return n, known
	}
	rate := func() (float64, bool) {
		s, _ := k.Reuse("v")
		return s.Windows[0].FlushesPerHour, s.Windows[0].FlushesKnown
	}
	readFor(t, k, c, now, time.Hour)
	if got, known := rate(); !known || got < 599 || got > 601 {
		t.Errorf("%v flushes an hour, known: %v", got, known)
	}
	n = 0 // the disk was made anew
	readFor(t, k, c, now, time.Hour)
	if got, known := rate(); !known || got < 599 || got > 601 {
		t.Errorf("%v flushes an hour of another disk, known: %v", got, known)
	}
	known = false
	k.Drop(t.Context(), "v")
	readFor(t, k, c, now, time.Hour)
	if _, known := rate(); known {
		t.Error("known of disks that do not tell")
	}
}

func TestSince(t *testing.T) {
	reads := func(sectors, writes uint64, counts ...uint64) devmapper.Reads {
		return devmapper.Reads{AreaSectors: 64, Counts: counts, ReadSectors: sectors, Writes: writes, WriteSectors: writes}
	}
	for name, c := range map[string]struct{ last, now, want devmapper.Reads }{
		"more":         {reads(10, 1, 1, 2), reads(30, 3, 1, 5), reads(20, 2, 0, 3)},
		"begun anew":   {reads(10, 1, 1, 2), reads(30, 3, 0, 5), reads(30, 3, 0, 5)},
		"writes alone": {reads(10, 5, 1, 2), reads(30, 3, 1, 5), reads(30, 3, 1, 5)},
		"longer":       {reads(10, 1, 1), reads(30, 3, 1, 5), reads(30, 3, 1, 5)},
	} {
		if got := since(c.last, c.now); !slices.Equal(got.Counts, c.want.Counts) || got.ReadSectors != c.want.ReadSectors || got.Writes != c.want.Writes || got.WriteSectors != c.want.WriteSectors {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
