package devmappertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// clone is a target that copies its source to its destination (dm-clone-target.c). What
// was copied, or discarded, is committed to its metadata device with each flush and at a
// clean stop: what a power loss finds otherwise is copied again.
type clone struct {
	meta, dest, source lower
	sectors, region    uint64
	hydrated           []bool
	features           []string
	core               map[string]string
}

// cloneMagic begins metadata that are not blank. Behind it are a byte for each region.
const cloneMagic = 0x8af27f64

// regionsPerPoll is what a clone copies between two looks at it.
const regionsPerPoll = 3

func (k *Kernel) clone(t *table, l devmapper.Line, v devmapper.CloneTarget) (target, error) {
	if err := v.Validate(); err != nil {
		return nil, err
	}
	meta, err := k.take(t, v.Metadata, 1)
	if err != nil {
		return nil, err
	}
	dest, err := k.take(t, v.Destination, l.Length)
	if err != nil {
		return nil, err
	}
	source, err := k.take(t, v.Source, l.Length)
	if err != nil {
		return nil, err
	}
	c := &clone{
		meta: meta, dest: dest, source: source, sectors: l.Length, region: v.RegionSectors, hydrated: make([]bool, (l.Length+v.RegionSectors-1)/v.RegionSectors),
		core: map[string]string{
			"hydration_threshold":  strconv.FormatUint(max(v.HydrationThreshold, 1), 10),
			"hydration_batch_size": strconv.FormatUint(max(v.HydrationBatch, 1), 10),
		},
	}
	if v.NoHydration {
		c.features = append(c.features, "no_hydration")
	}
	if v.NoDiscardPassdown {
		c.features = append(c.features, "no_discard_passdown")
	}
	return c, c.load()
}

func (c *clone) load() error {
	head := make([]byte, 8)
	if err := c.meta.read(head, 0); err != nil {
		return err
	}
	switch binary.LittleEndian.Uint64(head) {
	case 0:
		return c.commit()
	case cloneMagic:
	default:
		return fmt.Errorf("%w: the metadata are no clone's", devmapper.ErrInvalid)
	}
	bits := make([]byte, len(c.hydrated))
	if err := c.meta.read(bits, superblockBytes); err != nil {
		return err
	}
	for i, b := range bits {
		c.hydrated[i] = b != 0
	}
	return nil
}

// commit says what is at the destination once that is on stable storage.
func (c *clone) commit() error {
	bits := make([]byte, len(c.hydrated))
	for i, h := range c.hydrated {
		if h {
			bits[i] = 1
		}
	}
	return errors.Join(c.dest.flush(), c.meta.write(bits, superblockBytes),
		c.meta.write(binary.LittleEndian.AppendUint64(nil, cloneMagic), 0), c.meta.flush())
}

func (c *clone) resume() error  { return nil }
func (c *clone) suspend() error { return c.commit() }
func (c *clone) flush() error   { return c.commit() }

// regionBytes is where a region begins, and its length: the last may be shorter.
func (c *clone) regionBytes(i uint64) (off, n int64) {
	return int64(i*c.region) * devmapper.SectorSize, int64(min(c.region, c.sectors-i*c.region)) * devmapper.SectorSize
}

// each hands the parts of a range to do, each in one region.
func (c *clone) each(p []byte, off int64, do func(region uint64, p []byte, off int64) error) error {
	for len(p) > 0 {
		i := uint64(off/devmapper.SectorSize) / c.region
		start, length := c.regionBytes(i)
		n := min(int64(len(p)), start+length-off)
		if err := do(i, p[:n], off); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

func (c *clone) read(p []byte, off int64) error {
	return c.each(p, off, func(region uint64, p []byte, off int64) error {
		if c.hydrated[region] {
			return c.dest.read(p, off)
		}
		return c.source.read(p, off)
	})
}

func (c *clone) write(p []byte, off int64) error {
	return c.each(p, off, func(region uint64, p []byte, off int64) error {
		if _, whole := c.regionBytes(region); int64(len(p)) < whole {
			if err := c.hydrate(region); err != nil {
				return err
			}
		}
		if err := c.dest.write(p, off); err != nil {
			return err
		}
		c.hydrated[region] = true
		return nil
	})
}

// hydrate copies a region that is not at the destination.
func (c *clone) hydrate(region uint64) error {
	if c.hydrated[region] {
		return nil
	}
	off, n := c.regionBytes(region)
	buf := make([]byte, n)
	if err := c.source.read(buf, off); err != nil {
		return err
	}
	if c.hydrated[region] {
		return nil // by somebody else, while this one waited for the source
	}
	if err := c.dest.write(buf, off); err != nil {
		return err
	}
	c.hydrated[region] = true
	return nil
}

// discard makes regions that are covered count as copied.
func (c *clone) discard(off, n int64) error {
	for i := range uint64(len(c.hydrated)) {
		if start, length := c.regionBytes(i); off <= start && start+length <= off+n {
			c.hydrated[i] = true
		}
	}
	if slices.Contains(c.features, "no_discard_passdown") {
		return nil
	}
	return c.dest.discard(off, n)
}

// status is what the kernel says now. The copy goes on between two looks, unless there is
// nothing to read from: then the source learns that.
func (c *clone) status() devmapper.CloneStatus {
	s := devmapper.CloneStatus{
		Sectors: c.sectors, MetadataBlockSectors: 8, MetadataUsed: 2, MetadataTotal: uint64(c.meta.size()) / superblockBytes,
		RegionSectors: c.region, Regions: uint64(len(c.hydrated)), Features: slices.Clone(c.features), CoreArgs: c.core,
	}
	for _, h := range c.hydrated {
		if h {
			s.Hydrated++
		}
	}
	if s.HydrationEnabled() {
		c.copySome()
	}
	return s
}

func (c *clone) copySome() {
	left := regionsPerPoll
	for i := range uint64(len(c.hydrated)) {
		if left == 0 {
			return
		}
		if c.hydrated[i] {
			continue
		}
		if d, ok := c.source.Device.(*device); ok && d.waits() {
			return
		}
		if c.hydrate(i) != nil {
			return
		}
		left--
	}
}

func (c *clone) message(words []string) error {
	switch {
	case len(words) == 1 && words[0] == "enable_hydration":
		c.features = slices.DeleteFunc(c.features, func(f string) bool { return f == "no_hydration" })
		return nil
	case len(words) == 1 && words[0] == "disable_hydration":
		if !slices.Contains(c.features, "no_hydration") {
			c.features = append(c.features, "no_hydration")
		}
		return nil
	case len(words) == 2 && c.core[words[0]] != "":
		if _, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			c.core[words[0]] = words[1]
			return nil
		}
	}
	return fmt.Errorf("%w: message %q", devmapper.ErrInvalid, words)
}
