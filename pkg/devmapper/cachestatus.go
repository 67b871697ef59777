package devmapper

import (
	"fmt"
	"strings"
)

// CacheStatus is the status of a cache.
//
//	<metadata block size> <#used metadata blocks>/<#total metadata blocks>
//	<cache block size> <#used cache blocks>/<#total cache blocks>
//	<#read hits> <#read misses> <#write hits> <#write misses>
//	<#demotions> <#promotions> <#dirty> <#features> <features>*
//	<#core args> <core args>* <policy name> <#policy args> <policy args>*
//	<cache metadata mode> <needs_check>
//
// The whole status may instead be the word Fail (the metadata could not even be
// read any more) or Error. Fail, ReadOnly and NeedsCheck are three different
// states. The counters are kept in the metadata and survive a restart.
type CacheStatus struct {
	// Fail is set for the words Fail and Error; nothing else is then known.
	Fail bool
	// Unparsed is the text of a status that could not be read, with Fail set.
	Unparsed string
	// Silent is set for a device that did not answer in time, or was not asked because
	// another one did not; nothing is known of it, not even that it is a cache.
	Silent bool

	// OriginSectors is the length of the cached device.
	OriginSectors uint64
	// MetadataBlockSectors is the unit of MetadataUsed and MetadataTotal.
	MetadataBlockSectors        uint64
	MetadataUsed, MetadataTotal uint64
	// ChunkSectors is the unit of the block counts.
	ChunkSectors          uint64
	CacheUsed, CacheTotal uint64

	ReadHits, ReadMisses   uint64
	WriteHits, WriteMisses uint64
	Demotions, Promotions  uint64
	// Dirty is the number of blocks that the origin does not have yet.
	Dirty uint64

	Features []string
	// CoreArgs and PolicyArgs are pairs by name.
	CoreArgs   map[string]string
	Policy     CachePolicy
	PolicyArgs map[string]string
	// ReadOnly: the metadata mode is "ro".
	ReadOnly bool
	// NeedsCheck: a metadata operation failed; cache_check must run before the
	// cache can be activated again.
	NeedsCheck bool
}

// Mode is the mode among the features, or "".
func (s CacheStatus) Mode() CacheMode {
	for _, f := range s.Features {
		switch CacheMode(f) {
		case Writethrough, Writeback, Passthrough:
			return CacheMode(f)
		}
	}
	return ""
}

// DirtyBytes is the amount of data that the origin does not have yet.
func (s CacheStatus) DirtyBytes() uint64 { return s.Dirty * s.ChunkSectors * SectorSize }

// ParseCacheStatus reads the arguments of a cache's status line.
func ParseCacheStatus(params string) (CacheStatus, error) {
	words := strings.Fields(params)
	if len(words) == 1 && (words[0] == "Fail" || words[0] == "Error") {
		return CacheStatus{Fail: true}, nil
	}
	c := &cursor{words: words}
	var s CacheStatus
	s.MetadataBlockSectors = c.uint()
	s.MetadataUsed, s.MetadataTotal = c.fraction()
	s.ChunkSectors = c.uint()
	s.CacheUsed, s.CacheTotal = c.fraction()
	s.ReadHits, s.ReadMisses = c.uint(), c.uint()
	s.WriteHits, s.WriteMisses = c.uint(), c.uint()
	s.Demotions, s.Promotions = c.uint(), c.uint()
	s.Dirty = c.uint()
	s.Features = append(s.Features, c.list()...)
	s.CoreArgs = c.pairs()
	s.Policy = CachePolicy(c.word())
	s.PolicyArgs = c.pairs()
	switch mode := c.word(); {
	case c.err != nil:
	case mode == "ro":
		s.ReadOnly = true
	case mode != "rw":
		c.fail("metadata mode %q is neither rw nor ro", mode)
	}
	// Kernels before 4.3 end here.
	if c.err == nil && !c.done() {
		switch w := c.word(); w {
		case "needs_check":
			s.NeedsCheck = true
		case "-":
		default:
			c.fail("%q is neither needs_check nor -", w)
		}
	}
	// Words that a later kernel may add at the end are no error.
	if c.err != nil {
		return CacheStatus{}, fmt.Errorf("cache status %q: %w", params, c.err)
	}
	return s, nil
}

// pairs reads a counted list of names and values.
func (c *cursor) pairs() map[string]string {
	words := c.list()
	if len(words)%2 != 0 {
		c.fail("%d words are no pairs", len(words))
		return nil
	}
	m := map[string]string{}
	for i := 0; i < len(words); i += 2 {
		m[words[i]] = words[i+1]
	}
	return m
}

// cacheStatus reads the line of a cache. One that this version cannot read must not
// hide the others.
func cacheStatus(l StatusLine) CacheStatus {
	s, err := ParseCacheStatus(l.Params)
	if err != nil {
		s = CacheStatus{Fail: true, Unparsed: l.Params}
	}
	s.OriginSectors = l.Length
	return s
}

// parseStatusAll reads what `dmsetup status --target cache` prints.
func parseStatusAll(text string) (map[string]CacheStatus, error) {
	all := map[string]CacheStatus{}
	err := eachStatus(text, "cache", func(name string, l StatusLine) { all[name] = cacheStatus(l) })
	if err != nil {
		return nil, err
	}
	return all, nil
}
