package devmapper

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MultipathTarget joins several paths to one device, round robin.
//
//	multipath <#features> [<feature>]* <#handler args> [<handler arg>]*
//	          <#path groups> <first group>
//	          (<selector> <#selector args> <#paths> <#path args> (<dev> <path arg>*)+ )+
//
// All paths are in one group, with 1000 I/Os on a path before the next.
type MultipathTarget struct {
	// QueueIfNoPath holds I/O back while no path is left, instead of failing it.
	QueueIfNoPath bool
	// Bio selects the mode that also takes devices that are not request based,
	// such as other device-mapper devices.
	Bio bool
	// Paths are "major:minor".
	Paths []string
}

const roundRobinRepeat = "1000"

// Type implements Target.
func (MultipathTarget) Type() string { return "multipath" }

// Params implements Target.
func (t MultipathTarget) Params() string {
	var features []string
	if t.QueueIfNoPath {
		features = append(features, "queue_if_no_path")
	}
	if t.Bio {
		features = append(features, "queue_mode", "bio")
	}
	words := append([]string{strconv.Itoa(len(features))}, features...)
	words = append(words, "0", "1", "1", "round-robin", "0", strconv.Itoa(len(t.Paths)), "1")
	for _, p := range t.Paths {
		words = append(words, p, roundRobinRepeat)
	}
	return strings.Join(words, " ")
}

// retainHandler is a feature that kernels with device handlers add by themselves, for
// paths that are SCSI disks, and print with the handler that they have found there
// (setup_scsi_dh in drivers/md/dm-mpath.c). A table that is loaded without gets both again.
const retainHandler = "retain_attached_hw_handler"

// withoutHandler is a printed table without both.
func withoutHandler(printed []string) []string {
	c := &cursor{words: printed}
	features := slices.DeleteFunc(slices.Clone(c.list()), func(f string) bool { return f == retainHandler })
	c.list() // the handler
	if c.err != nil {
		return printed
	}
	words := append([]string{strconv.Itoa(len(features))}, features...)
	return append(append(words, "0"), c.words[c.pos:]...)
}

// sameAsPrinted compares with what the kernel prints back: the repeat count is
// gone from round-robin since 4.6 and prints as 1.
func (t MultipathTarget) sameAsPrinted(params string) bool {
	printed := withoutHandler(strings.Fields(params))
	own := strings.Fields(t.Params())
	if len(printed) != len(own) {
		return false
	}
	firstRepeat := len(own) - 2*len(t.Paths) + 1
	for i := range own {
		isRepeat := i >= firstRepeat && (i-firstRepeat)%2 == 0
		if own[i] != printed[i] && !isRepeat {
			return false
		}
	}
	return true
}

func parseMultipath(w []string) (Target, bool) {
	c := &cursor{words: withoutHandler(w)}
	var t MultipathTarget
	features := c.list()
	for i := 0; i < len(features); i++ {
		switch features[i] {
		case "queue_if_no_path":
			t.QueueIfNoPath = true
		case "queue_mode":
			if i++; i >= len(features) || features[i] != "bio" {
				return nil, false
			}
			t.Bio = true
		default:
			return nil, false
		}
	}
	if len(c.list()) != 0 || c.uint() != 1 || c.uint() != 1 || c.word() != "round-robin" || len(c.list()) != 0 {
		return nil, false
	}
	paths, args := c.uint(), c.uint()
	if c.err != nil || args != 1 || paths > uint64(len(w)) {
		return nil, false
	}
	for range paths {
		t.Paths = append(t.Paths, c.word())
		c.uint()
	}
	return t, c.err == nil && c.done()
}

// CloneTarget copies a read-only source to a destination in the background and
// is usable at once.
//
//	clone <metadata dev> <destination dev> <source dev> <region size>
//	      [<#feature args> [<feature arg>]* [<#core args> [<core arg>]*]]
type CloneTarget struct {
	// Metadata, Destination and Source are "major:minor".
	Metadata, Destination, Source string
	// RegionSectors is a power of two from 8 sectors to 1 GiB.
	RegionSectors uint64
	// NoHydration starts without the background copy.
	NoHydration bool
	// NoDiscardPassdown keeps discards from the destination.
	NoDiscardPassdown bool
	// HydrationThreshold and HydrationBatch are in regions; 0 is the kernel's
	// default of 1.
	HydrationThreshold, HydrationBatch uint64
}

// Type implements Target.
func (CloneTarget) Type() string { return "clone" }

// Params implements Target.
func (t CloneTarget) Params() string {
	var features, core []string
	if t.NoHydration {
		features = append(features, "no_hydration")
	}
	if t.NoDiscardPassdown {
		features = append(features, "no_discard_passdown")
	}
	if t.HydrationThreshold > 0 {
		core = append(core, "hydration_threshold", strconv.FormatUint(t.HydrationThreshold, 10))
	}
	if t.HydrationBatch > 0 {
		core = append(core, "hydration_batch_size", strconv.FormatUint(t.HydrationBatch, 10))
	}
	s := fmt.Sprintf("%s %s %s %d", t.Metadata, t.Destination, t.Source, t.RegionSectors)
	if len(features) > 0 || len(core) > 0 {
		s += " " + strings.Join(append([]string{strconv.Itoa(len(features))}, features...), " ")
	}
	if len(core) > 0 {
		s += " " + strings.Join(append([]string{strconv.Itoa(len(core))}, core...), " ")
	}
	return s
}

// Limits of a clone's region size, in sectors (drivers/md/dm-clone-target.c).
const (
	MinRegionSectors = 4 << 10 / SectorSize
	MaxRegionSectors = 1 << 30 / SectorSize
)

// Validate checks what the kernel would refuse without saying why.
func (t CloneTarget) Validate() error {
	n := t.RegionSectors
	switch {
	case n < MinRegionSectors || n > MaxRegionSectors || n&(n-1) != 0:
		return fmt.Errorf("%w: clone region size of %d sectors: accepted are powers of two from %d to %d",
			ErrInvalid, n, MinRegionSectors, MaxRegionSectors)
	case t.Metadata == "" || t.Destination == "" || t.Source == "":
		return fmt.Errorf("%w: a clone needs a metadata, a destination and a source device", ErrInvalid)
	}
	return nil
}

func parseClone(w []string) (Target, bool) {
	c := &cursor{words: w}
	t := CloneTarget{Metadata: c.word(), Destination: c.word(), Source: c.word(), RegionSectors: c.uint()}
	if c.err == nil && !c.done() {
		for _, f := range c.list() {
			switch f {
			case "no_hydration":
				t.NoHydration = true
			case "no_discard_passdown":
				t.NoDiscardPassdown = true
			default:
				return nil, false
			}
		}
	}
	if c.err == nil && !c.done() {
		core := c.list()
		for i := 0; i+1 < len(core); i += 2 {
			n, err := parseUint(core[i+1])
			switch {
			case err != nil:
				return nil, false
			case core[i] == "hydration_threshold":
				t.HydrationThreshold = n
			case core[i] == "hydration_batch_size":
				t.HydrationBatch = n
			}
		}
	}
	return t, c.err == nil && c.done()
}
