package checker

import (
	"math/rand/v2"
	"testing"
)

// media is a device with a volatile write cache.
type media struct {
	safe, volatile map[int64]uint64
}

func newMedia() media { return media{map[int64]uint64{}, map[int64]uint64{}} }

func (m media) read(at int64) uint64 {
	if v, ok := m.volatile[at]; ok {
		return v
	}
	return m.safe[at]
}

func (m media) flush() {
	for at, v := range m.volatile {
		m.safe[at] = v
	}
	clear(m.volatile)
}

// powerLoss keeps some of what was not flushed.
func (m media) powerLoss(r *rand.Rand, blocks int64) {
	for at := range blocks {
		if v, ok := m.volatile[at]; ok && r.IntN(2) == 0 {
			m.safe[at] = v
		}
	}
	clear(m.volatile)
}

// device is an honest cached volume in a few lines: dm-cache over an SSD and a storage
// server that both have volatile write caches. defect makes it dishonest.
type cachedVolume struct {
	r           *rand.Rand
	mode        Mode
	origin, ssd media
	cached      map[int64]bool
	dirty       map[int64]bool
	defect      string
}

func (c *cachedVolume) read(at int64) uint64 {
	if c.cached[at] {
		return c.ssd.read(at)
	}
	return c.origin.read(at)
}

func (c *cachedVolume) write(at int64, seq uint64) {
	if c.cached[at] {
		c.ssd.volatile[at] = seq
	}
	if c.mode == Writeback && c.cached[at] {
		c.dirty[at] = true
		return
	}
	c.origin.volatile[at] = seq
}

// move promotes, demotes or writes back a block.
func (c *cachedVolume) move(at int64) {
	switch {
	case c.mode == None:
	case !c.cached[at]:
		c.ssd.volatile[at], c.cached[at] = c.origin.read(at), true
		// The map is committed before the block is used.
		c.ssd.flush()
	case c.dirty[at]:
		c.origin.volatile[at] = c.ssd.read(at)
		delete(c.dirty, at)
	default:
		delete(c.cached, at)
		c.ssd.flush()
	}
}

func (c *cachedVolume) flush() {
	if c.defect == "flush does nothing" {
		return
	}
	c.ssd.flush()
	c.origin.flush()
}

func (c *cachedVolume) drain() {
	if c.defect != "no flush at unstage" {
		for at := range c.dirty {
			c.origin.volatile[at] = c.ssd.read(at)
		}
		clear(c.dirty)
	}
	if c.mode != None {
		c.origin.flush()
	}
	c.ssd.flush()
}

// elsewhere: the volume goes to a node with an empty cache.
func (c *cachedVolume) elsewhere() {
	clear(c.cached)
	clear(c.dirty)
	c.ssd.flush()
}

func (c *cachedVolume) disaster(l Loss, blocks int64) {
	if l&LossNode != 0 {
		c.ssd.powerLoss(c.r, blocks)
		if c.mode == Writethrough && c.defect != "crashed cache activated" {
			clear(c.cached)
		}
		for at := range c.cached {
			c.dirty[at] = true // unclean: everything counts as dirty
		}
	}
	if l&LossStorage != 0 {
		c.origin.powerLoss(c.r, blocks)
	}
	if l&LossCache != 0 {
		c.elsewhere()
	}
}

const allLosses = LossNode | LossStorage | LossCache

// live runs a history of random events on a volume, with disasters that may take some
// things, and returns the first violation.
func live(r *rand.Rand, mode Mode, defect string, may Loss, steps int) error {
	const blocks = 8
	c := &cachedVolume{r: r, mode: mode, origin: newMedia(), ssd: newMedia(), cached: map[int64]bool{}, dirty: map[int64]bool{}, defect: defect}
	h := NewHistory(testVolume, blocks, mode)
	for range steps {
		at := r.Int64N(blocks)
		loss := Loss(0)
		switch r.IntN(12) {
		default:
			seq := h.Issue(at)
			c.write(at, seq)
			if err := h.Ack(seq); err != nil {
				return err
			}
			continue
		case 0, 1, 2, 3:
			c.move(at)
			continue
		case 4:
			c.flush()
			h.Flushed()
			continue
		case 5:
			c.drain()
			h.Drained()
			if r.IntN(2) == 0 {
				c.elsewhere()
			}
		case 6: // killed in the middle of a write
			if seq := h.Issue(at); r.IntN(2) == 0 {
				c.write(at, seq)
			}
			loss = Loss(r.IntN(1<<lossKinds)) & may
		}
		c.disaster(loss, blocks)
		read := make([]Content, blocks)
		for i := range read {
			read[i] = whole(c.read(int64(i)))
		}
		report, err := h.Judge(loss, read)
		if err == nil {
			err = report.Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestHonest: an honest volume is never accused.
func TestHonest(t *testing.T) {
	for _, mode := range []Mode{None, Writethrough, Writeback} {
		for seed := range uint64(3000) {
			if err := live(rand.New(rand.NewPCG(seed, 1)), mode, "", allLosses, 200); err != nil {
				t.Fatalf("%s, seed %d: %v", mode, seed, err)
			}
		}
	}
}

// TestDishonest: a volume with a defect is found out in nearly every long life.
func TestDishonest(t *testing.T) {
	for defect, mode := range map[string]Mode{
		"flush does nothing": Writeback, "no flush at unstage": Writeback, "crashed cache activated": Writethrough,
	} {
		found := 0
		for seed := range uint64(100) {
			if live(rand.New(rand.NewPCG(seed, 2)), mode, defect, LossNode, 3000) != nil {
				found++
			}
		}
		if found < 95 {
			t.Errorf("%s: found in %d lives of 100", defect, found)
		}
	}
}

// FuzzHonest is TestHonest with lives that the fuzzer chooses.
func FuzzHonest(f *testing.F) {
	f.Add(uint64(1), byte(0), uint16(100))
	f.Fuzz(func(t *testing.T, seed uint64, m byte, steps uint16) {
		mode := []Mode{None, Writethrough, Writeback}[m%3]
		if err := live(rand.New(rand.NewPCG(seed, 3)), mode, "", allLosses, int(steps%2000)); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	})
}
