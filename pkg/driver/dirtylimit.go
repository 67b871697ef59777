package driver

import (
	"cmp"
	"time"

	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Bounds of the dirty limit (states.md, I7).
const (
	limitNone = "none"
	// minDirtyBytes is about what a burst makes dirty before the node can look again.
	minDirtyBytes = 16 << 20
	// minDirtyChunks keeps the limit away from single chunks: each write that is under
	// way may make another one dirty.
	minDirtyChunks = 16
	minDirtyAge    = 10 * time.Second
	maxDirtyAge    = 7 * 24 * time.Hour
)

// limitText is the dirty limit as its author wrote it.
type limitText struct{ bytes, age string }

func limitTextOf(params map[string]string) limitText {
	return limitText{params[keyMaxDirtyBytes], params[keyMaxDirtyAge]}
}

// parse reads the parameters one by one. What is not given, or none, is zero.
func (t limitText) parse(p *problems) volume.DirtyLimit {
	return volume.DirtyLimit{Max: parseMaxDirty(p, t.bytes), Age: parseMaxAge(p, t.age)}
}

// over returns the limit that a volume has after a change: what is not given stays,
// and none takes it away.
func (t limitText) over(now, given volume.DirtyLimit) volume.DirtyLimit {
	if t.bytes == "" {
		given.Max = now.Max
	}
	if t.age == "" {
		given.Age = now.Age
	}
	return given
}

// check refuses a limit for a mode that makes nothing dirty.
func (t limitText) check(p *problems, mode volume.CacheMode) {
	if mode == volume.ModeWriteback {
		return
	}
	for _, given := range [][2]string{{keyMaxDirtyBytes, t.bytes}, {keyMaxDirtyAge, t.age}} {
		if key, value := given[0], given[1]; cmp.Or(value, limitNone) != limitNone {
			p.add(key, "%q contradicts cacheMode %s, which makes nothing dirty; leave %s out, or give a cacheMode of %s", value, mode, key, volume.ModeWriteback)
		}
	}
}

// checkChunk refuses a limit that a few writes at a time would exceed. With an
// automatic chunk size it is far above one chunk.
func (t limitText) checkChunk(p *problems, s volume.Spec) {
	b := s.DirtyLimit.Max
	if t.bytes == "" || b.Bytes == 0 || b.Bytes >= minDirtyChunks*s.ChunkBytes {
		return
	}
	p.add(keyMaxDirtyBytes, "%q is less than %d chunks of chunkSize %d; accepted are at least %d bytes, or a smaller chunkSize",
		t.bytes, minDirtyChunks, s.ChunkBytes, minDirtyChunks*s.ChunkBytes)
}

// parseDirtyLimit reads the limit of a new volume of this mode.
func parseDirtyLimit(p *problems, mode volume.CacheMode, params map[string]string) volume.DirtyLimit {
	t := limitTextOf(params)
	b := t.parse(p)
	t.check(p, mode)
	return b
}

func parseMaxDirty(p *problems, value string) volume.Size {
	if value == "" || value == limitNone {
		return volume.Size{}
	}
	size, err := quantity.Size(value)
	if err != nil || size.Percent == 0 && size.Bytes < minDirtyBytes {
		p.add(keyMaxDirtyBytes, "%q is not accepted; accepted are none, whole bytes of at least 16Mi, such as 2Gi, and 1%% to 100%% of the cache", value)
		return volume.Size{}
	}
	return size
}

func parseMaxAge(p *problems, value string) time.Duration {
	if value == "" || value == limitNone {
		return 0
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < minDirtyAge || d > maxDirtyAge || d%time.Second != 0 {
		p.add(keyMaxDirtyAge, "%q is not accepted; accepted are none, and 10s to 168h in whole seconds, such as 5m", value)
		return 0
	}
	return d
}
