package observe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCurrent: who asks has the figures of this second, and others who ask within it share them.
// Nothing is saved for them.
func TestCurrent(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.hits("v", 100, 0)
	if snap := m.sampler.Current(t.Context()); snap.Err != nil || m.one(snap, "v").Counts.ReadHits != 100 || !snap.Time.Equal(noon) {
		t.Fatalf("%+v", snap)
	}
	m.hits("v", 150, 0)
	m.step(900 * time.Millisecond)
	if snap := m.sampler.Current(t.Context()); m.one(snap, "v").Counts.ReadHits != 100 || m.passes != 1 {
		t.Errorf("within the second: %+v, %d passes", snap, m.passes)
	}
	m.step(100 * time.Millisecond)
	if snap := m.sampler.Current(t.Context()); m.one(snap, "v").Counts.ReadHits != 150 || !snap.Time.Equal(m.clock.Now()) {
		t.Errorf("a second later: %+v", snap)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "totals.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("totals were saved: %v", err)
	}
}

// TestCurrentGivenUp: somebody who leaves does not make others believe that an SSD hangs.
func TestCurrentGivenUp(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The lock is free, so that it may be taken in spite of that.
	for range 20 {
		if snap := m.sampler.Current(ctx); snap.Err != nil && !errors.Is(snap.Err, context.Canceled) {
			t.Fatal(snap.Err)
		}
		m.step(time.Second)
	}
	for _, err := range m.ended {
		if err != nil {
			t.Fatalf("a pass was ended with %v", err)
		}
	}
	if len(m.ended) == 0 {
		t.Fatal("no pass was begun, which proves nothing")
	}
}

// TestRates: they take two passes a second apart, as two may follow one another at once.
func TestRates(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	m.stats["nf-v"] = io(1, 0, 4)
	if v := m.one(m.sampler.Current(t.Context()), "v"); v.RatesKnown {
		t.Errorf("rates of the first pass: %+v", v)
	}
	m.step(10 * time.Millisecond)
	m.stats["nf-v"] = io(1, 50, 4)
	m.sampler.Count(t.Context())
	if v := m.one(m.sampler.Current(t.Context()), "v"); v.RatesKnown {
		t.Errorf("rates of %v a second after 10 ms", v.ReadIOPS)
	}
	m.step(990 * time.Millisecond)
	m.stats["nf-v"] = io(1, 200, 4)
	m.sampler.Count(t.Context())
	if v := m.one(m.sampler.Current(t.Context()), "v"); !v.RatesKnown || v.ReadIOPS != 200 {
		t.Errorf("rates after a second: %+v", v)
	}
}
