package heat

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// counter is a kernel that counts the reads of one device.
type counter struct {
	reads devmapper.Reads
	// clearErr is what a clear fails with, err everything else.
	err, clearErr error
	tracked       []uint64
}

func (c *counter) TrackReads(_ context.Context, name string, chunkSectors uint64) error {
	if name != "nf-v" {
		return devmapper.ErrNotExist
	}
	c.tracked = append(c.tracked, chunkSectors)
	return c.err
}

func (c *counter) ReadAreas(context.Context, string) (devmapper.Reads, error) {
	r := c.reads
	r.Counts = slices.Clone(r.Counts)
	return r, c.err
}

func (c *counter) ClearReads(context.Context, string) error {
	if c.clearErr == nil {
		clear(c.reads.Counts)
		c.reads.ReadSectors, c.reads.Writes, c.reads.WriteSectors = 0, 0, 0
	}
	return c.clearErr
}

func newKeeper(t *testing.T, c *counter) (*Keeper, *state.Entry) {
	t.Helper()
	now := time.Now()
	return &Keeper{Devices: c, Dir: t.TempDir(), Now: func() time.Time { return now }},
		&state.Entry{ID: "v", ActivationID: "a1", Mode: volume.ModeWriteback, ChunkSectors: 64, State: state.Staged}
}

func counted(reads ...uint64) *counter {
	return &counter{reads: devmapper.Reads{AreaSectors: 64, Counts: reads}}
}

func want(t *testing.T, k *Keeper, e *state.Entry, reads ...uint64) {
	t.Helper()
	expected := cachemap.Heat{}.Add(e.ActivationID, k.Now(), 64, reads)
	if got := k.Of(t.Context(), e); !bytes.Equal(got.Areas, expected.Areas) {
		t.Errorf("heat %+v, want that of %v", got, reads)
	}
}

// TestKeeper: sums outlive a process and the device, and end with the stage and the entry.
func TestKeeper(t *testing.T) {
	c := counted(3, 0, 100)
	k, e := newKeeper(t, c)
	want(t, k, e)
	k.Begin(t.Context(), e)
	if !slices.Equal(c.tracked, []uint64{64}) {
		t.Errorf("counted in chunks of %v", c.tracked)
	}
	k.Add(t.Context(), e)
	want(t, k, e, 3, 0, 100)
	k = &Keeper{Devices: c, Dir: k.Dir, Now: k.Now} // another process
	want(t, k, e, 3, 0, 100)
	c.reads.Counts = []uint64{0, 8, 100, 7} // it has grown
	k.Add(t.Context(), e)
	want(t, k, e, 3, 8, 200, 7)
	c.err = devmapper.ErrNotExist // the device is gone: an unstage that is repeated
	k.Add(t.Context(), e)
	want(t, k, e, 3, 8, 200, 7)
	next := *e
	next.ActivationID = "a2"
	if h := k.Of(t.Context(), &next); h.AreaSectors != 0 {
		t.Errorf("of another stage: %+v", h)
	}
	c.err, c.reads.Counts = nil, []uint64{1, 1, 1, 1}
	k.Add(t.Context(), &next)
	want(t, k, &next, 1, 1, 1, 1)
	want(t, k, e)
	k.Drop(t.Context(), "v")
	want(t, k, &next)
	if files, err := os.ReadDir(k.Dir); err != nil || len(files) > 0 {
		t.Errorf("left behind: %v, %v", files, err)
	}
	k.Drop(t.Context(), "v")
}

// TestKeeperKilled: between its two steps reads count twice, which leaves their order as it is.
func TestKeeperKilled(t *testing.T) {
	c := counted(3, 0, 100)
	k, e := newKeeper(t, c)
	c.clearErr = errors.New("killed")
	k.Add(t.Context(), e)
	want(t, k, e, 3, 0, 100)
	c.clearErr = nil
	k.Add(t.Context(), e)
	want(t, k, e, 6, 0, 200)
}

// TestKeeperWithout: what cannot be counted or kept is no error, and leaves the order to smq.
func TestKeeperWithout(t *testing.T) {
	c := counted(1)
	k, e := newKeeper(t, c)
	c.err = devmapper.ErrUnsupported
	k.Begin(t.Context(), e)
	k.Add(t.Context(), e)
	want(t, k, e)
	c.err = nil
	k.Add(t.Context(), e)
	file := filepath.Join(k.Dir, "v.heat")
	for name, text := range map[string][]byte{"empty": nil, "broken": []byte("NFHEAT\x01"), "too long": make([]byte, cachemap.MaxHeatBytes+9)} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if h := k.Of(t.Context(), e); h.AreaSectors != 0 {
			t.Errorf("%s: %+v", name, h)
		}
	}
	k.Add(t.Context(), e) // takes its place
	want(t, k, e, 0)

	uncached := *e
	uncached.Mode = volume.ModeNone
	earlier := *e // of a version that did not name stages
	earlier.ActivationID = ""
	c.tracked = nil
	for _, e := range []*state.Entry{&uncached, &earlier} {
		k.Begin(t.Context(), e)
		k.Add(t.Context(), e)
	}
	// Without a cache there is no order of blocks to keep, but reuse to look at.
	if !slices.Equal(c.tracked, []uint64{64}) {
		t.Errorf("counted in chunks of %v", c.tracked)
	}
	c.tracked = nil
	k.Dir = ""
	k.Begin(t.Context(), e)
	k.Add(t.Context(), e)
	want(t, k, e)
	k.Drop(t.Context(), "v")
	if len(c.tracked) > 0 {
		t.Errorf("counted all the same: %v", c.tracked)
	}
	if h := (*Keeper)(nil).Of(t.Context(), e); h.AreaSectors != 0 {
		t.Errorf("without a keeper: %+v", h)
	}
}
