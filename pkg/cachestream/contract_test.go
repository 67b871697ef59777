package cachestream

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestCachesOf: what is opened is handed on, and what could not be opened is nothing: not a
// Cache with a nil pointer in it.
func TestCachesOf(t *testing.T) {
	var held *cache
	var fails error
	caches := CachesOf(func(_ context.Context, id volume.ID, m volume.MoveID, to string) (*cache, error) {
		if id != "v" || m.Name != "v-2" || to != "b" {
			t.Errorf("asked for %s, %s, %s", id, m.Name, to)
		}
		return held, fails
	})
	open := func() (Cache, error) {
		return caches.OpenLease(t.Context(), "v", volume.MoveID{Name: "v-2"}, "b")
	}
	held = newCache(chunk, 3)
	if c, err := open(); c != Cache(held) || err != nil {
		t.Errorf("got %v, %v", c, err)
	}
	held, fails = nil, volume.ErrFenced
	if c, err := open(); c != nil || !errors.Is(err, fails) {
		t.Errorf("got %v, %v, want the error alone", c, err)
	}
}
