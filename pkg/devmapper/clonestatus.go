package devmapper

import (
	"fmt"
	"slices"
	"strings"
)

// CloneStatus is the status of a clone (dm-clone.rst).
//
//	<metadata block size> <#used metadata blocks>/<#total metadata blocks>
//	<region size> <#hydrated regions>/<#total regions> <#hydrating regions>
//	<#feature args> <feature args>* <#core args> <core args>* <clone metadata mode>
//
// The whole status may instead be the word Fail or Error. The numbers of regions
// are those in memory: what a discard has marked is counted at once, and is on disk
// with the next commit, a second later at most.
type CloneStatus struct {
	// Fail is set for the words Fail and Error; nothing else is then known.
	Fail bool
	// Unparsed is the text of a status that could not be read, with Fail set.
	Unparsed string
	// Silent is set for a device that did not answer in time, or was not asked because
	// another one did not. It may be no clone; nothing else is then known.
	Silent bool

	// Sectors is the length of the device.
	Sectors uint64
	// MetadataBlockSectors is the unit of MetadataUsed and MetadataTotal.
	MetadataBlockSectors        uint64
	MetadataUsed, MetadataTotal uint64
	// RegionSectors is the unit of Hydrated, Regions and Hydrating; the last region
	// of the device may be shorter.
	RegionSectors uint64
	// Hydrated regions are never read from the source again.
	Hydrated, Regions uint64
	// Hydrating regions are being copied at this moment.
	Hydrating uint64

	Features []string
	// CoreArgs are pairs by name.
	CoreArgs map[string]string
	// ReadOnly: the metadata mode is "ro"; nothing can become hydrated any more.
	ReadOnly bool
}

// Complete reports whether everything is at the destination.
func (s CloneStatus) Complete() bool { return !s.Fail && !s.Silent && s.Hydrated == s.Regions }

// HydrationEnabled reports whether the background copy may run.
func (s CloneStatus) HydrationEnabled() bool {
	return !s.Fail && !s.Silent && !slices.Contains(s.Features, "no_hydration")
}

// HydratedBytes is how much is at the destination, at most a region too little
// while the last, shorter one is not.
func (s CloneStatus) HydratedBytes() uint64 {
	return min(s.Hydrated*s.RegionSectors, s.Sectors) * SectorSize
}

// ParseCloneStatus reads the arguments of a clone's status line. Errors wrap
// ErrParse.
func ParseCloneStatus(params string) (CloneStatus, error) {
	words := strings.Fields(params)
	if len(words) == 1 && (words[0] == "Fail" || words[0] == "Error") {
		return CloneStatus{Fail: true}, nil
	}
	c := &cursor{words: words}
	var s CloneStatus
	s.MetadataBlockSectors = c.uint()
	s.MetadataUsed, s.MetadataTotal = c.fraction()
	s.RegionSectors = c.uint()
	s.Hydrated, s.Regions = c.fraction()
	s.Hydrating = c.uint()
	s.Features = append(s.Features, c.list()...)
	s.CoreArgs = c.pairs()
	switch mode := c.word(); {
	case c.err != nil:
	case mode == "Fail" || mode == "Error":
		// The metadata failed while the line was written.
		return CloneStatus{Fail: true}, nil
	case mode == "ro":
		s.ReadOnly = true
	case mode != "rw":
		c.fail("metadata mode %q is neither rw nor ro", mode)
	}
	if s.Hydrated > s.Regions {
		c.fail("%d of %d regions are hydrated", s.Hydrated, s.Regions)
	}
	// Words that a later kernel may add at the end are no error.
	if c.err != nil {
		return CloneStatus{}, fmt.Errorf("clone status %q: %w", params, c.err)
	}
	return s, nil
}

// cloneStatus reads the line of a clone. One that this version cannot read must not
// hide the others.
func cloneStatus(l StatusLine) CloneStatus {
	s, err := ParseCloneStatus(l.Params)
	if err != nil {
		s = CloneStatus{Fail: true, Unparsed: l.Params}
	}
	s.Sectors = l.Length
	return s
}

// parseCloneStatusAll reads what `dmsetup status --target clone` prints.
func parseCloneStatusAll(text string) (map[string]CloneStatus, error) {
	all := map[string]CloneStatus{}
	err := eachStatus(text, "clone", func(name string, l StatusLine) { all[name] = cloneStatus(l) })
	if err != nil {
		return nil, err
	}
	return all, nil
}

// eachStatus calls f for each device of one kind in what `dmsetup status --target`
// prints: lines "name: start length target args", or "No devices found".
func eachStatus(text, kind string, f func(name string, l StatusLine)) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line == "No devices found" {
			continue
		}
		// dmsetup mangles colons in names, so that the first one ends the name.
		name, rest, ok := strings.Cut(line, ": ")
		if !ok {
			return fmt.Errorf("%w: status line %q has no name", ErrParse, line)
		}
		l, err := parseLine(rest)
		if err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
		if l.Type == kind {
			f(name, l)
		}
	}
	return nil
}
