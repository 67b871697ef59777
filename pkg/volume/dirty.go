package volume

import "time"

// DirtyLimit bounds the unflushed writes of a writeback cache (states.md, I7). The
// zero value bounds nothing.
type DirtyLimit struct {
	// Max is the most that may be dirty: bytes, or a percentage of the cache.
	Max Size
	// Age is how long something may have been dirty before all of it is flushed.
	Age time.Duration
}

// IsZero reports whether nothing is bounded.
func (b DirtyLimit) IsZero() bool { return b == DirtyLimit{} }

// Bytes is the most that may be dirty in a cache of that size; 0 is no limit.
func (b DirtyLimit) Bytes(cacheBytes int64) int64 { return b.Max.Of(cacheBytes) }
