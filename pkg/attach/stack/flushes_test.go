package stack

import (
	"errors"
	"testing"
)

// TestFlushes: a flush that began earlier proves nothing for the next caller, who waits for
// its end and begins another; of two volumes neither waits for the other.
func TestFlushes(t *testing.T) {
	var f Flushes
	stuck, lost := make(chan struct{}), errors.New("path lost")
	before, first := f.begin("v", func() error { <-stuck; return lost })
	if before != nil {
		t.Fatal("the first waits for another")
	}
	before, mine := f.begin("v", func() error { t.Error("begun beside another"); return nil })
	if before == nil || mine != nil {
		t.Fatal("the second does not wait for the first")
	}
	if other, result := f.begin("w", func() error { return nil }); other != nil || <-result != nil {
		t.Error("another volume waits")
	}
	close(stuck)
	if err := <-first; !errors.Is(err, lost) {
		t.Errorf("the first ended with %v", err)
	}
	<-before
	if again, result := f.begin("v", func() error { return nil }); again != nil || <-result != nil {
		t.Error("there is no flush after the first")
	}
}
