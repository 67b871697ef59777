package devmapper

import (
	"fmt"
	"strconv"
	"strings"
)

// CacheMode is how a cache treats writes.
type CacheMode string

// The modes of the kernel's cache target.
const (
	Writethrough CacheMode = "writethrough"
	Writeback    CacheMode = "writeback"
	Passthrough  CacheMode = "passthrough"
)

// CachePolicy decides what is cached. It is always named: the kernel's "default"
// may become another policy in another kernel, which would drop all hints.
type CachePolicy string

// The policies of the kernel.
const (
	PolicySMQ CachePolicy = "smq"
	// PolicyCleaner writes all dirty blocks back and promotes nothing.
	PolicyCleaner CachePolicy = "cleaner"
)

// Limits of the cache target's block size, in sectors (cache.rst), and of the
// number of blocks: lvm2 allows no more than a million by default, above which
// the kernel's memory use and the time of a load grow.
const (
	MinChunkSectors  = 32 << 10 / SectorSize
	MaxChunkSectors  = 1 << 30 / SectorSize
	ChunkUnitSectors = 32 << 10 / SectorSize
	MaxCacheBlocks   = 1_000_000
)

// CacheTarget is the cache itself.
//
//	cache <metadata dev> <cache dev> <origin dev> <block size>
//	      <#feature args> [<feature arg>]*
//	      <policy> <#policy args> [<policy arg>]*
//
// Feature args used here: metadata2 (dirty bits in a bitset of their own), the
// mode, and no_discard_passdown. migration_threshold is given as a policy
// argument in pairs, and the kernel's core takes it.
type CacheTarget struct {
	// Metadata, Data and Origin are "major:minor".
	Metadata, Data, Origin string
	// ChunkSectors is the cache block size.
	ChunkSectors uint64
	Mode         CacheMode
	Policy       CachePolicy
	// NoDiscardPassdown keeps discards from the origin.
	NoDiscardPassdown bool
	// MigrationThreshold is in sectors; 0 leaves the kernel's default of 2048,
	// with which no block larger than 1 MiB is ever written back.
	MigrationThreshold uint64
}

// Type implements Target.
func (CacheTarget) Type() string { return "cache" }

// Params implements Target.
func (t CacheTarget) Params() string {
	features := []string{"metadata2", string(t.Mode)}
	if t.NoDiscardPassdown {
		features = append(features, "no_discard_passdown")
	}
	var policy []string
	if t.MigrationThreshold > 0 {
		policy = append(policy, "migration_threshold", strconv.FormatUint(t.MigrationThreshold, 10))
	}
	words := []string{t.Metadata, t.Data, t.Origin, strconv.FormatUint(t.ChunkSectors, 10), strconv.Itoa(len(features))}
	words = append(append(words, features...), string(t.Policy), strconv.Itoa(len(policy)))
	return strings.Join(append(words, policy...), " ")
}

// Validate checks what the kernel would refuse without saying why.
func (t CacheTarget) Validate() error {
	switch {
	case t.ChunkSectors < MinChunkSectors || t.ChunkSectors > MaxChunkSectors || t.ChunkSectors%ChunkUnitSectors != 0:
		return fmt.Errorf("%w: cache block size of %d sectors: accepted are %d to %d in steps of %d",
			ErrInvalid, t.ChunkSectors, MinChunkSectors, MaxChunkSectors, ChunkUnitSectors)
	case t.Metadata == "" || t.Data == "" || t.Origin == "":
		return fmt.Errorf("%w: a cache needs a metadata, a data and an origin device", ErrInvalid)
	}
	return nil
}

// parseCacheTarget reads the arguments as the kernel prints them, by count.
func parseCacheTarget(w []string) (Target, bool) {
	c := &cursor{words: w}
	t := CacheTarget{Metadata: c.word(), Data: c.word(), Origin: c.word(), ChunkSectors: c.uint()}
	for _, f := range c.list() {
		switch f {
		case string(Writethrough), string(Writeback), string(Passthrough):
			t.Mode = CacheMode(f)
		case "no_discard_passdown":
			t.NoDiscardPassdown = true
		case "metadata2":
		default:
			return nil, false
		}
	}
	t.Policy = CachePolicy(c.word())
	args := c.list()
	if len(args) == 2 && args[0] == "migration_threshold" {
		n, err := parseUint(args[1])
		if err != nil {
			return nil, false
		}
		t.MigrationThreshold = n
	} else if len(args) != 0 {
		return nil, false
	}
	return t, c.err == nil && c.done()
}

// AutoChunkSectors is the block size for a cache of the given bytes: 128 KiB up
// to 96 GiB, 256 KiB up to 240 GiB, 512 KiB above, and from there as much as
// MaxCacheBlocks needs, in steps of 32 KiB, up to the kernel's 1 GiB.
func AutoChunkSectors(cacheBytes int64) uint64 {
	const gib = int64(1) << 30
	chunk := int64(512 << 10)
	switch {
	case cacheBytes <= 96*gib:
		chunk = 128 << 10
	case cacheBytes <= 240*gib:
		chunk = 256 << 10
	}
	const unit = int64(ChunkUnitSectors * SectorSize)
	least := (cacheBytes + MaxCacheBlocks - 1) / MaxCacheBlocks
	chunk = max(chunk, (least+unit-1)/unit*unit)
	return uint64(min(chunk, MaxChunkSectors*SectorSize) / SectorSize)
}

// MigrationThreshold is the number of sectors that may be on their way between
// the devices: eight blocks and at least the kernel's default. With less than
// one block the kernel never finds itself idle and never writes back.
func MigrationThreshold(chunkSectors uint64) uint64 {
	return max(2048, 8*chunkSectors)
}

// MetadataBytes is the size of a metadata device: 4 MiB and 44 bytes per block
// (mapping, hint, dirty bits), doubled for the shadows of a transaction, at
// least 8 MiB, in whole extents of 4 MiB.
func MetadataBytes(blocks uint64) int64 {
	const extent = int64(4 << 20)
	n := 2 * (extent + 44*int64(blocks))
	return (max(n, 2*extent) + extent - 1) / extent * extent
}

// MetadataFits reports whether a metadata device of metaBytes has room for the map
// of so many blocks: the estimate of MetadataBytes with a quarter more instead of
// twice as much.
func MetadataFits(metaBytes int64, blocks uint64) bool {
	return metaBytes >= (4<<20+44*int64(blocks))*5/4
}

// cursor reads counted lists of words; the first error sticks.
type cursor struct {
	words []string
	pos   int
	err   error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: word %d: %s", ErrParse, c.pos, fmt.Sprintf(format, args...))
	}
}

func (c *cursor) word() string {
	if c.err != nil {
		return ""
	}
	if c.pos >= len(c.words) {
		c.fail("missing")
		return ""
	}
	c.pos++
	return c.words[c.pos-1]
}

func (c *cursor) uint() uint64 {
	w := c.word()
	if c.err != nil {
		return 0
	}
	n, err := parseUint(w)
	if err != nil {
		c.fail("%q is not a number", w)
	}
	return n
}

// fraction reads "used/total".
func (c *cursor) fraction() (used, total uint64) {
	w := c.word()
	a, b, ok := strings.Cut(w, "/")
	used, errA := parseUint(a)
	total, errB := parseUint(b)
	if c.err == nil && (!ok || errA != nil || errB != nil) {
		c.fail("%q is not used/total", w)
	}
	return used, total
}

// list reads a count and that many words.
func (c *cursor) list() []string {
	n := c.uint()
	if c.err != nil {
		return nil
	}
	if n > uint64(len(c.words)-c.pos) {
		c.fail("a list of %d words does not fit the %d left", n, len(c.words)-c.pos)
		return nil
	}
	out := c.words[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return out
}

func (c *cursor) done() bool { return c.pos == len(c.words) }
