package devmappertest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// integrity is a target with a checksum of each sector (dm-integrity.c, mode J). What is written is in
// memory until a flush, or a clean stop. Sectors that were never written are not checked.
type integrity struct {
	below   lower
	sectors uint64
	// data is where they begin, tags where their checksums do, in bytes.
	data, tags int64
	// pending is what is not on the device, by sector.
	pending    map[int64][]byte
	mismatches uint64
}

// integrityMagic begins a superblock.
const integrityMagic = 0x7974697267657469

const tagBytes = 8 // a mark that there is one, and the checksum

func (k *Kernel) integrity(t *table, l devmapper.Line, v devmapper.IntegrityTarget) (target, error) {
	runs := (l.Length+devmapper.IntegrityRunSectors-1)/devmapper.IntegrityRunSectors + 1
	head := devmapper.IntegrityHeadSectors + v.JournalSectors
	below, err := k.take(t, v.Device, head+runs*devmapper.IntegrityTagSectors+l.Length)
	if err != nil {
		return nil, err
	}
	i := &integrity{below: below, sectors: l.Length, pending: map[int64][]byte{}, tags: int64(head) * devmapper.SectorSize}
	i.data = i.tags + int64(runs*devmapper.IntegrityTagSectors)*devmapper.SectorSize
	first := make([]byte, 4096)
	if err := below.read(first, 0); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(first) == integrityMagic {
		return i, nil
	}
	if slices.ContainsFunc(first, func(b byte) bool { return b != 0 }) {
		return nil, fmt.Errorf("%w: the device is not initialized", devmapper.ErrInvalid)
	}
	if err := below.write(make([]byte, i.data-i.tags), i.tags); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(first, integrityMagic)
	return i, below.write(first, 0)
}

// each hands do the sectors of a range, whole: what is above this device hands on less than that too.
func (i *integrity) each(p []byte, off int64, do func(sector int64, from int64, p []byte) error) error {
	for len(p) > 0 {
		sector, from := off/devmapper.SectorSize, off%devmapper.SectorSize
		n := min(int64(len(p)), devmapper.SectorSize-from)
		if err := do(sector, from, p[:n]); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// sector is what a sector has.
func (i *integrity) sector(sector int64) ([]byte, error) {
	if b, ok := i.pending[sector]; ok {
		return b, nil
	}
	b, tag := make([]byte, devmapper.SectorSize), make([]byte, tagBytes)
	if err := errors.Join(i.below.read(tag, i.tags+sector*tagBytes), i.below.read(b, i.data+sector*devmapper.SectorSize)); err != nil {
		return nil, err
	}
	if tag[0] != 0 && binary.LittleEndian.Uint32(tag[4:]) != checksum(b) {
		i.mismatches++
		return nil, fmt.Errorf("sector %d: %w", sector, unix.EILSEQ)
	}
	return b, nil
}

func (i *integrity) read(p []byte, off int64) error {
	return i.each(p, off, func(sector, from int64, p []byte) error {
		b, err := i.sector(sector)
		if err == nil {
			copy(p, b[from:])
		}
		return err
	})
}

func (i *integrity) write(p []byte, off int64) error {
	return i.each(p, off, func(sector, from int64, p []byte) error {
		b := make([]byte, devmapper.SectorSize)
		if len(p) < len(b) {
			had, err := i.sector(sector)
			if err != nil {
				return err
			}
			copy(b, had)
		}
		copy(b[from:], p)
		i.pending[sector] = b
		return nil
	})
}

func (i *integrity) flush() error {
	for _, sector := range slices.Sorted(maps.Keys(i.pending)) {
		p, tag := i.pending[sector], make([]byte, tagBytes)
		tag[0] = 1
		binary.LittleEndian.PutUint32(tag[4:], checksum(p))
		if err := i.below.write(p, i.data+sector*devmapper.SectorSize); err != nil {
			return err
		}
		if err := i.below.write(tag, i.tags+sector*tagBytes); err != nil {
			return err
		}
	}
	clear(i.pending)
	return i.below.flush()
}

func (i *integrity) discard(int64, int64) error { return unix.EOPNOTSUPP }
func (i *integrity) resume() error              { return nil }
func (i *integrity) suspend() error             { return i.flush() }

func checksum(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

// IntegrityStatusAll implements devmapper.Client.
func (c *client) IntegrityStatusAll(ctx context.Context) (map[string]devmapper.IntegrityStatus, error) {
	if err := c.step.Query(ctx, "status of checksums"); err != nil {
		return nil, err
	}
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	out := map[string]devmapper.IntegrityStatus{}
	for name, d := range c.k.devices {
		if t, ok := d.only().(*integrity); ok {
			out[name] = devmapper.IntegrityStatus{Mismatches: t.mismatches, ProvidedSectors: t.sectors, Recalculated: t.sectors}
		}
	}
	return out, nil
}
