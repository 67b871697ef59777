package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestVolumeLookup: however many volumes are asked about at the same time, the
// PersistentVolumes are listed once, and after the questions.
func TestVolumeLookup(t *testing.T) {
	var c volumeLookup
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lists, have := 0, map[string]bool{}
	list := func(context.Context) (map[string]bool, error) { lists++; return have, nil }
	ask := func(handle string) (used bool, again time.Duration) {
		t.Helper()
		used, again, err := c.uses(t.Context(), now, handle, list)
		if err != nil {
			t.Fatal(err)
		}
		return used, again
	}
	const many = 1000
	name := func(i int) string { return fmt.Sprint("vol-", i) }
	for i := range many {
		if used, again := ask(name(i)); used || again <= 0 {
			t.Fatalf("an answer at once: used %t, again %v", used, again)
		}
		now = now.Add(gather / many / 2)
	}
	if lists != 0 {
		t.Fatalf("%d lists before the questions were gathered", lists)
	}
	now = now.Add(gather)
	have[name(7)] = true // came while the questions were gathered
	for i := range many {
		if used, again := ask(name(i)); used != (i == 7) || again != 0 {
			t.Fatalf("%s: used %t, again %v", name(i), used, again)
		}
	}
	if lists != 1 {
		t.Errorf("%d lists for %d volumes", lists, many)
	}

	// A question that comes after a list is not answered by it.
	now = now.Add(time.Millisecond)
	have = map[string]bool{"late": true}
	ask("late")
	now = now.Add(gather)
	if used, again := ask("late"); !used || again != 0 || lists != 2 {
		t.Errorf("a PersistentVolume that came after the first list: used %t, again %v, %d lists", used, again, lists)
	}

	// Nor is one that nobody came back with for long.
	ask("old")
	now = now.Add(forgotten + time.Second)
	if _, again := ask("old"); again != gather {
		t.Errorf("a question of long ago was taken up: again %v", again)
	}
	now = now.Add(gather)
	if used, again := ask("old"); used || again != 0 || lists != 3 || len(c.asked) != 0 {
		t.Errorf("used %t, again %v, %d lists, %d questions left", used, again, lists, len(c.asked))
	}
}

// TestVolumeLookupError: what cannot be listed is not taken for unused.
func TestVolumeLookupError(t *testing.T) {
	var c volumeLookup
	now, broken := time.Now(), errors.New("no answer")
	list := func(context.Context) (map[string]bool, error) { return nil, broken }
	if _, again, err := c.uses(t.Context(), now, "vol", list); err != nil || again == 0 {
		t.Fatalf("again %v, %v", again, err)
	}
	now = now.Add(gather)
	if used, again, err := c.uses(t.Context(), now, "vol", list); !errors.Is(err, broken) {
		t.Errorf("used %t, again %v, %v", used, again, err)
	}
}
