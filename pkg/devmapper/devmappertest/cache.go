package devmappertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// metadata are those of a cache while at least one table has them open
// (dm-cache-metadata.c).
type metadata struct {
	dev    lower
	users  int
	chunk  uint64
	blocks uint64
	// dirtyKnown is clean_when_opened: the dirty bits on the device count.
	dirtyKnown bool
	// at is the block of the origin that each block of the cache holds, and dirty which of
	// them the last clean stop found dirty. Both are what the next commit writes.
	at    map[uint64]uint64
	dirty map[uint64]bool
}

// cache is a target. It takes in what is read or written at once, and drops the block that
// was used longest ago.
type cache struct {
	meta         *metadata
	data, origin lower
	sectors      uint64
	mode         devmapper.CacheMode
	policy       devmapper.CachePolicy
	chunkBytes   int64
	threshold    string
	loaded       bool
	// in is the block of the cache that holds a block of the origin; age the order of use.
	in    map[uint64]uint64
	dirty map[uint64]bool
	age   []uint64
	stat  devmapper.CacheStatus
}

func (k *Kernel) cache(t *table, l devmapper.Line, v devmapper.CacheTarget) (target, error) {
	if err := v.Validate(); err != nil {
		return nil, err
	}
	meta, err := k.take(t, v.Metadata, 1)
	if err != nil {
		return nil, err
	}
	data, err := k.take(t, v.Data, v.ChunkSectors)
	if err != nil {
		return nil, err
	}
	origin, err := k.take(t, v.Origin, l.Length)
	if err != nil {
		return nil, err
	}
	m, err := k.openMetadata(meta, v.ChunkSectors)
	if err != nil {
		return nil, err
	}
	t.closers = append(t.closers, func() {
		if m.users--; m.users == 0 {
			delete(k.metadata, meta.Device)
		}
	})
	m.blocks = uint64(data.size()) / (v.ChunkSectors * devmapper.SectorSize)
	c := &cache{
		meta: m, data: data, origin: origin, sectors: l.Length, mode: v.Mode, policy: v.Policy,
		chunkBytes: int64(v.ChunkSectors) * devmapper.SectorSize, threshold: strconv.FormatUint(v.MigrationThreshold, 10),
	}
	return c, nil
}

func (k *Kernel) openMetadata(dev lower, chunk uint64) (*metadata, error) {
	if m, shared := k.metadata[dev.Device]; shared {
		if m.chunk != chunk {
			return nil, fmt.Errorf("%w: metadata are of blocks of %d sectors", devmapper.ErrInvalid, m.chunk)
		}
		m.users++
		return m, nil
	}
	m := &metadata{dev: dev, users: 1, chunk: chunk, at: map[uint64]uint64{}, dirty: map[uint64]bool{}}
	if err := m.read(); err != nil {
		return nil, err
	}
	k.metadata[dev.Device] = m
	// A crash from here on is an unclean stop.
	return m, m.writeSuperblock(false)
}

// The layout of the superblock is that of the kernel; behind it are as many mappings as its
// first word says, each of two words: block of the cache with its dirty bit, and of the
// origin.
const (
	superblockBytes = 4096
	superblockMagic = 0o6142003
	superblockXOR   = 9031977
	cleanShutdown   = 1
	mappingDirty    = 1 << 63
)

func (m *metadata) read() error {
	sb, err := devmapper.ReadCacheSuperblock(reader{m.dev})
	switch {
	case sb.Blank:
		m.dirtyKnown = true // nothing is mapped
		return m.commit(false)
	case err != nil:
		return fmt.Errorf("%w: %w", devmapper.ErrInvalid, err)
	case uint64(sb.DataBlockSectors) != m.chunk:
		return fmt.Errorf("%w: metadata are of blocks of %d sectors", devmapper.ErrInvalid, sb.DataBlockSectors)
	}
	m.dirtyKnown, m.blocks = sb.CleanShutdown, uint64(sb.CacheBlocks)
	head := make([]byte, 8)
	if err := m.dev.read(head, superblockBytes); err != nil {
		return err
	}
	words := make([]byte, 16*binary.LittleEndian.Uint64(head))
	if err := m.dev.read(words, superblockBytes+8); err != nil {
		return err
	}
	for ; len(words) > 0; words = words[16:] {
		block, at := binary.LittleEndian.Uint64(words), binary.LittleEndian.Uint64(words[8:])
		m.at[block&^mappingDirty] = at
		if block&mappingDirty != 0 {
			m.dirty[block&^mappingDirty] = true
		}
	}
	return nil
}

// reader reads a device whose lock is held.
type reader struct{ lower }

func (r reader) ReadAt(p []byte, off int64) (int, error) { return len(p), r.read(p, off) }

// commit writes mappings and superblock. A device that ends in the middle of it is none of
// what is simulated.
func (m *metadata) commit(clean bool) error {
	words := binary.LittleEndian.AppendUint64(nil, uint64(len(m.at)))
	for _, block := range slices.Sorted(maps.Keys(m.at)) {
		word := block
		if m.dirty[block] {
			word |= mappingDirty
		}
		words = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(words, word), m.at[block])
	}
	if err := m.dev.write(words, superblockBytes); err != nil {
		return err
	}
	return m.writeSuperblock(clean)
}

func (m *metadata) writeSuperblock(clean bool) error {
	b, le := make([]byte, superblockBytes), binary.LittleEndian
	if clean {
		le.PutUint32(b[4:], cleanShutdown)
	}
	le.PutUint64(b[32:], superblockMagic)
	le.PutUint32(b[40:], 2)
	copy(b[44:60], devmapper.PolicySMQ)
	le.PutUint32(b[60:], 4)
	le.PutUint32(b[232:], uint32(m.chunk))
	le.PutUint32(b[236:], 8)
	le.PutUint32(b[240:], uint32(m.blocks))
	le.PutUint32(b[272:], 2)
	le.PutUint32(b, ^crc32.Checksum(b[4:], crc32.MakeTable(crc32.Castagnoli))^superblockXOR)
	return errors.Join(m.dev.write(b, 0), m.dev.flush())
}

// resume reads the mappings once, before the first I/O (cache_preresume).
func (c *cache) resume() error {
	if c.loaded {
		return nil
	}
	c.in, c.dirty, c.age = map[uint64]uint64{}, map[uint64]bool{}, nil
	for block, at := range c.meta.at {
		if block >= c.meta.blocks {
			return fmt.Errorf("block %d of a cache of %d is in use: %w", block, c.meta.blocks, unix.EINVAL)
		}
		c.in[at] = block
		c.age = append(c.age, at)
		if !c.meta.dirtyKnown || c.meta.dirty[block] {
			c.dirty[block] = true
		}
	}
	slices.Sort(c.age)
	c.loaded = true
	return nil
}

// suspend writes what a clean stop leaves (cache_postsuspend).
func (c *cache) suspend() error {
	if !c.loaded {
		return nil
	}
	c.meta.dirty = maps.Clone(c.dirty)
	return c.meta.commit(true)
}

// flush commits what was mapped, before the devices are flushed.
func (c *cache) flush() error {
	return errors.Join(c.meta.commit(false), c.data.flush(), c.origin.flush())
}

// blocks hands the parts of a range to do, each in one block of the origin.
func (c *cache) blocks(p []byte, off int64, do func(block uint64, in int64, p []byte) error) error {
	for len(p) > 0 {
		in := off % c.chunkBytes
		n := min(int64(len(p)), c.chunkBytes-in)
		if err := do(uint64(off/c.chunkBytes), in, p[:n]); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

func (c *cache) read(p []byte, off int64) error {
	return c.blocks(p, off, func(block uint64, in int64, p []byte) error {
		_, hit := c.in[block]
		if hit && c.mode != devmapper.Passthrough {
			c.stat.ReadHits++
		} else {
			c.stat.ReadMisses++
		}
		if c.mode == devmapper.Passthrough || !hit && !c.promote(block) {
			return c.origin.read(p, int64(block)*c.chunkBytes+in)
		}
		c.use(block)
		return c.data.read(p, int64(c.in[block])*c.chunkBytes+in)
	})
}

func (c *cache) write(p []byte, off int64) error {
	return c.blocks(p, off, func(block uint64, in int64, p []byte) error {
		_, hit := c.in[block]
		if hit {
			c.stat.WriteHits++
		} else {
			c.stat.WriteMisses++
		}
		if c.mode == devmapper.Passthrough {
			if hit {
				// The map forgets the block before the origin has the write.
				c.drop(block)
				c.stat.Demotions++
				if err := c.meta.commit(false); err != nil {
					return err
				}
			}
			return c.origin.write(p, int64(block)*c.chunkBytes+in)
		}
		cached := hit || c.promote(block)
		// A write to a dirty block goes to the cache alone in every mode (map_bio).
		if !cached || c.mode == devmapper.Writethrough && !c.dirty[c.in[block]] {
			if err := c.origin.write(p, int64(block)*c.chunkBytes+in); err != nil || !cached {
				return err
			}
		}
		c.use(block)
		if c.mode == devmapper.Writeback {
			c.dirty[c.in[block]] = true
		}
		return c.data.write(p, int64(c.in[block])*c.chunkBytes+in)
	})
}

// discard drops blocks that are covered; what is left of the range goes to the origin.
func (c *cache) discard(off, n int64) error {
	for block := (off + c.chunkBytes - 1) / c.chunkBytes; (block+1)*c.chunkBytes <= off+n; block++ {
		c.drop(uint64(block))
	}
	return c.origin.discard(off, n)
}

func (c *cache) use(block uint64) {
	c.age = append(slices.DeleteFunc(c.age, func(b uint64) bool { return b == block }), block)
}

func (c *cache) drop(block uint64) {
	at, in := c.in[block]
	if !in {
		return
	}
	delete(c.in, block)
	delete(c.dirty, at)
	delete(c.meta.at, at)
	c.age = slices.DeleteFunc(c.age, func(b uint64) bool { return b == block })
}

// buffer is one for a block of the origin, of which the last may be shorter.
func (c *cache) buffer(block uint64) []byte {
	return make([]byte, min(c.chunkBytes, int64(c.sectors)*devmapper.SectorSize-int64(block)*c.chunkBytes))
}

// promote copies a block of the origin into the cache, if its policy takes any in.
func (c *cache) promote(block uint64) bool {
	if c.policy == devmapper.PolicyCleaner {
		return false
	}
	at, free := c.freeBlock()
	if !free {
		return false
	}
	buf := c.buffer(block)
	if c.origin.read(buf, int64(block)*c.chunkBytes) != nil || c.data.write(buf, int64(at)*c.chunkBytes) != nil {
		return false
	}
	c.in[block], c.meta.at[at] = at, block
	c.use(block)
	c.stat.Promotions++
	return true
}

// freeBlock is one that holds nothing, made so if all do. The map is committed before it
// is used for something else.
func (c *cache) freeBlock() (at uint64, free bool) {
	for at := range c.meta.blocks {
		if _, used := c.meta.at[at]; !used {
			return at, true
		}
	}
	if len(c.age) == 0 {
		return 0, false
	}
	victim := c.age[0]
	at = c.in[victim]
	if c.writeBack(victim) != nil {
		return 0, false
	}
	c.drop(victim)
	c.stat.Demotions++
	return at, c.meta.commit(false) == nil
}

func (c *cache) writeBack(block uint64) error {
	at := c.in[block]
	if !c.dirty[at] {
		return nil
	}
	buf := c.buffer(block)
	if err := c.data.read(buf, int64(at)*c.chunkBytes); err != nil {
		return err
	}
	if err := c.origin.write(buf, int64(block)*c.chunkBytes); err != nil {
		return err
	}
	delete(c.dirty, at)
	return nil
}

// status is what the kernel says now. What a cache does in the background is done between
// two looks: a cleaner writes back what is dirty, a cache that is not writeback one block of it.
func (c *cache) status() devmapper.CacheStatus {
	s := c.stat
	s.OriginSectors, s.ChunkSectors = c.sectors, c.meta.chunk
	s.MetadataBlockSectors, s.MetadataUsed, s.MetadataTotal = 8, 2, uint64(c.meta.dev.size())/superblockBytes
	s.CacheUsed, s.CacheTotal, s.Dirty = uint64(len(c.in)), c.meta.blocks, uint64(len(c.dirty))
	s.Features = []string{"metadata2", string(c.mode), "no_discard_passdown"}
	s.CoreArgs, s.Policy, s.PolicyArgs = map[string]string{"migration_threshold": c.threshold}, c.policy, map[string]string{}
	if c.policy == devmapper.PolicyCleaner || c.mode != devmapper.Writeback {
		for _, block := range slices.Clone(c.age) {
			dirty := c.dirty[c.in[block]]
			if c.writeBack(block) != nil || dirty && c.policy != devmapper.PolicyCleaner {
				break
			}
		}
	}
	return s
}

func (c *cache) message(words []string) error {
	if len(words) == 2 && words[0] == "migration_threshold" {
		if _, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			c.threshold = words[1]
			return nil
		}
	}
	return fmt.Errorf("%w: message %q", devmapper.ErrInvalid, words)
}
