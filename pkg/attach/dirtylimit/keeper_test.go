package dirtylimit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	mib   = 1 << 20
	devno = "254:7"
)

// world is a node with one volume, whose cache has so much dirty.
type world struct {
	*Keeper
	t       *testing.T
	now     time.Time
	volumes []Volume
	dirty   uint64
	level   Level
	since   time.Time
	// swapErr is what swaps end with; busy that a request works on the volume.
	swapErr error
	busy    bool
	swaps   []Level
	looks   int
	written uint64
}

func newWorld(t *testing.T, v Volume) *world {
	t.Helper()
	w := &world{t: t, now: time.Unix(1e9, 0), volumes: []Volume{v}, level: Writeback}
	w.Keeper = &Keeper{Host: w, Devices: w, Sysfs: t.TempDir(), Now: func() time.Time { return w.now }}
	w.file("dm/name", "nf-"+string(v.ID))
	w.writes(0)
	return w
}

func (w *world) file(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.Sysfs, "dev/block", devno, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

// writes lets the device have been asked to write more.
func (w *world) writes(requests uint64) {
	w.t.Helper()
	w.written += requests
	w.file("stat", fmt.Sprintf("0 0 0 0 %d 0 %d 0 0 0 0", w.written, 8*w.written))
}

func (w *world) Limited(context.Context) ([]Volume, error) { return w.volumes, nil }

func (w *world) DirtySince(context.Context, volume.ID) time.Time { return w.since }

func (w *world) SwapTo(_ context.Context, _ volume.ID, _ volume.Fence, to Level) (bool, error) {
	if w.busy || w.swapErr != nil {
		return false, w.swapErr
	}
	w.level = to
	w.swaps = append(w.swaps, to)
	return true, nil
}

func (w *world) Info(context.Context, string) (map[string]devmapper.Info, error) {
	name := "nf-" + string(w.volumes[0].ID)
	return map[string]devmapper.Info{name: {Name: name, Major: 254, Minor: 7, HasLive: true}}, nil
}

func (w *world) StatusAll(context.Context) (map[string]devmapper.CacheStatus, error) {
	w.looks++
	st := devmapper.CacheStatus{ChunkSectors: 128, CacheUsed: 4096, CacheTotal: 8192, Dirty: w.dirty / (64 << 10), Policy: devmapper.PolicySMQ, Features: []string{"writeback"}}
	switch w.level {
	case Draining:
		st.Policy = devmapper.PolicyCleaner
		fallthrough
	case Writethrough:
		st.Features = []string{"writethrough"}
	case Writeback:
	}
	return map[string]devmapper.CacheStatus{"nf-" + string(w.volumes[0].ID): st}, nil
}

// passes lets time go by.
func (w *world) passes(span time.Duration) {
	w.t.Helper()
	for end := w.now.Add(span); w.now.Before(end); {
		pause, err := w.pass(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		w.Keeper.swaps.Wait()
		w.now = w.now.Add(pause)
	}
}

func (w *world) wantSwaps(want ...Level) {
	w.t.Helper()
	if !slices.Equal(w.swaps, want) {
		w.t.Errorf("swaps to %v, want %v", w.swaps, want)
	}
	w.swaps = nil
}

func TestKeeperSwapsAndRests(t *testing.T) {
	w := newWorld(t, Volume{ID: "v", Bytes: 100 * mib})
	w.dirty = 70 * mib
	w.passes(2 * time.Second)
	w.wantSwaps()
	w.dirty = 80 * mib
	w.writes(1 << 20)
	w.passes(time.Second)
	w.wantSwaps(Writethrough)
	w.passes(5 * time.Second)
	w.wantSwaps(Draining)
	w.dirty = 30 * mib
	w.passes(5 * time.Second)
	w.wantSwaps(Writeback)
	use := w.Uses()
	if len(use) != 1 || use[0].Activations != 1 || use[0].Bytes != 100*mib || use[0].Writethrough < patience || use[0].Draining < rest {
		t.Errorf("%+v", use)
	}
}

// TestKeeperDrainsRecovered: a recovered cache is drained, and gets no other table of the limit's.
func TestKeeperDrainsRecovered(t *testing.T) {
	w := newWorld(t, Volume{ID: "v", Bytes: 100 * mib, Recovered: true})
	w.dirty = 80 * mib
	w.passes(2 * time.Second)
	w.wantSwaps(Draining)
	w.dirty = 0
	w.passes(10 * time.Second)
	w.wantSwaps()
	w.volumes[0].Recovered = false // it was made anew
	w.passes(2 * time.Second)
	w.wantSwaps(Writeback)
}

func TestKeeperLooksOnlyWhenItMust(t *testing.T) {
	w := newWorld(t, Volume{ID: "v", Bytes: 100 * mib})
	w.passes(time.Second)
	w.looks = 0
	w.passes(time.Minute)
	if w.looks != 0 {
		t.Errorf("%d looks at a volume that nobody writes to", w.looks)
	}
	w.writes(10)
	w.passes(time.Second)
	if w.looks != 0 {
		t.Errorf("%d looks at a volume that cannot be near its limit", w.looks)
	}
	w.writes(2000)
	w.passes(time.Second)
	if w.looks == 0 {
		t.Error("nobody looks at a volume that may be near its limit")
	}
}

func TestKeeperLeavesAlone(t *testing.T) {
	for name, set := range map[string]func(*world){
		"a flush that was asked for":          func(w *world) { w.volumes[0].Flushing = true },
		"a volume at which a request is busy": func(w *world) { w.busy = true },
		"a swap that fails":                   func(w *world) { w.swapErr = errors.New("no room") },
		"a volume without a limit":            func(w *world) { w.volumes[0].Bytes = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Volume{ID: "v", Bytes: 100 * mib})
			set(w)
			w.dirty = 90 * mib
			w.passes(3 * time.Second)
			w.wantSwaps()
			if use := w.Uses(); len(use) != 1 || use[0].Activations != 0 {
				t.Errorf("%+v", use)
			}
			// And goes on where it was once that is over.
			w.volumes, w.busy, w.swapErr = []Volume{{ID: "v", Bytes: 100 * mib}}, false, nil
			w.writes(1 << 20)
			w.passes(3 * time.Second)
			w.wantSwaps(Writethrough)
		})
	}
}

// TestKeeperAfterRestart: a plugin that starts reads the level off the table, and the age of
// what is dirty from what was counted.
func TestKeeperAfterRestart(t *testing.T) {
	w := newWorld(t, Volume{ID: "v", Age: time.Minute})
	w.dirty, w.since = mib, w.now.Add(-time.Hour)
	w.passes(time.Second)
	w.wantSwaps(Draining)
	again := newWorld(t, w.volumes[0])
	again.level = Draining
	again.passes(5 * time.Second)
	again.wantSwaps(Writeback)
}

// TestKeeperForgets: what is known of a volume is of one ownership, and ends with it.
func TestKeeperForgets(t *testing.T) {
	w := newWorld(t, Volume{ID: "v", Bytes: 100 * mib})
	w.dirty = 90 * mib
	w.passes(2 * time.Second)
	w.wantSwaps(Writethrough)
	w.volumes[0].Fence.Generation = 2
	w.passes(time.Second)
	if use := w.Uses(); len(use) != 1 || use[0].Writethrough > 2*time.Second {
		t.Errorf("%+v", use)
	}
	w.volumes = nil
	w.passes(time.Second)
	if use := w.Uses(); len(use) != 0 {
		t.Errorf("%+v of a volume that has left", use)
	}
}
