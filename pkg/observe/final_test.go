package observe_test

import (
	"sync"
	"testing"
	"time"
)

// TestFinalShared: the volumes of a node that is drained leave it at the same time. Each
// has its last counts, and a pass over all of them serves many.
func TestFinalShared(t *testing.T) {
	m := newMachine(t)
	m.cached("v", "a")
	const leaving = 50
	var wg sync.WaitGroup
	m.mu.Lock() // the first pass lasts
	for range leaving {
		wg.Go(func() { m.sampler.Final(t.Context(), "v") })
	}
	time.Sleep(100 * time.Millisecond)
	m.hits("v", 10, 0)
	m.mu.Unlock()
	wg.Wait()
	if m.passes > 3 {
		t.Errorf("%d passes for %d volumes", m.passes, leaving)
	}
	m.hits("v", 15, 0)
	m.sampler.Final(t.Context(), "v")
	m.restart()
	if v := m.one(m.scrape(), "v"); v.Counts.ReadHits != 15 {
		t.Errorf("%d hits, want those of the last look, 15", v.Counts.ReadHits)
	}
}
