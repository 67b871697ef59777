package cachemap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"
)

// Heat is how often the areas of an origin were read of late. It is an order of blocks and no
// fact about data: what is wrong in it costs time alone.
type Heat struct {
	// Of names what was counted: the heat of something else says nothing.
	Of string
	// At is when it was last added to.
	At time.Time
	// AreaSectors is the length of an area; 0 if nothing is known.
	AreaSectors uint64
	// Areas are the reads of each, on a scale of logarithms: 0 is none, and each eight steps
	// are twice as many, so that a byte tells a sixteenth of a read from a hundred million.
	Areas []uint8
}

const (
	// heatHalf is how long it takes until a read counts half: the pause between two hot sets.
	heatHalf = 30 * time.Minute
	// heatOctave are the steps of twice as many reads, and heatLeast the reads of step 1.
	heatOctave = 8
	heatLeast  = 1. / 16

	heatMagic = "NFHEAT\x01"
	// maxHeatAreas and maxHeatOf bound what is accepted.
	maxHeatAreas, maxHeatOf = 1 << 20, 256
	// MaxHeatBytes is how long an encoded Heat may be.
	MaxHeatBytes = maxHeatAreas + maxHeatOf + 64
)

func heatStep(reads float64) uint8 {
	if reads < heatLeast {
		return 0
	}
	return uint8(min(1+math.Round(heatOctave*math.Log2(reads/heatLeast)), 255))
}

func heatReads(step uint8) float64 {
	if step == 0 {
		return 0
	}
	return heatLeast * math.Exp2(float64(step-1)/heatOctave)
}

// Add returns the heat after more reads of areas of areaSectors, counted until now. What was
// there before counts the less the older it is, whatever the pauses between two calls were. It
// is forgotten if it is of something else, or of areas that do not lie in those of now.
func (h Heat) Add(of string, now time.Time, areaSectors uint64, reads []uint64) Heat {
	sums := make([]float64, len(reads))
	if h.Of == of && h.AreaSectors > 0 && areaSectors > 0 && areaSectors%h.AreaSectors == 0 {
		kept := math.Exp2(-max(now.Sub(h.At), 0).Seconds() / heatHalf.Seconds())
		for i, step := range h.Areas {
			// A device that has grown may have coarser areas, and more of them.
			if at := uint64(i) / (areaSectors / h.AreaSectors); at < uint64(len(sums)) {
				sums[at] += kept * heatReads(step)
			}
		}
	}
	out := Heat{Of: of, At: now, AreaSectors: areaSectors, Areas: make([]uint8, len(reads))}
	for i, n := range reads {
		out.Areas[i] = heatStep(sums[i] + float64(n))
	}
	return out
}

// Encode returns the form in which it is kept: magic, length and text of Of, seconds of At,
// AreaSectors and number of areas as unsigned varints, a byte for each area, and the CRC-32 of all that.
func (h Heat) Encode() []byte {
	b := binary.AppendUvarint([]byte(heatMagic), uint64(len(h.Of)))
	b = append(b, h.Of...)
	b = binary.AppendUvarint(b, uint64(max(h.At.Unix(), 0)))
	b = binary.AppendUvarint(b, h.AreaSectors)
	b = binary.AppendUvarint(b, uint64(len(h.Areas)))
	b = append(b, h.Areas...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// DecodeHeat reads what Encode has written. It needs no more memory than b has bytes. Errors
// wrap ErrFormat.
func DecodeHeat(b []byte) (Heat, error) {
	broken := func(what string) (Heat, error) { return Heat{}, fmt.Errorf("%w: heat: %s", ErrFormat, what) }
	if len(b) > MaxHeatBytes || len(b) < crc32.Size {
		return broken(fmt.Sprintf("%d bytes", len(b)))
	}
	body := b[:len(b)-crc32.Size]
	if binary.BigEndian.Uint32(b[len(body):]) != crc32.ChecksumIEEE(body) {
		return broken("its sum is wrong")
	}
	rest, ok := bytes.CutPrefix(body, []byte(heatMagic))
	if !ok {
		return broken("not of version 1")
	}
	d := decoder{rest: rest}
	n := d.uint()
	if d.err != nil || n > maxHeatOf || n > uint64(len(d.rest)) {
		return broken("what it is of")
	}
	h := Heat{Of: string(d.rest[:n])}
	d.rest = d.rest[n:]
	at := d.uint()
	h.AreaSectors = d.uint()
	n = d.uint()
	if d.err != nil || at > math.MaxInt64/2 || h.AreaSectors > maxSectors || n > maxHeatAreas || n != uint64(len(d.rest)) {
		return broken("its areas")
	}
	h.At, h.Areas = time.Unix(int64(at), 0).UTC(), slices.Clone(d.rest)
	return h, nil
}

// ByHeat returns the map with levels by which its blocks are ordered by heat: by the reads of
// the block's area for each block that is cached of it, then by the level that smq gave, then
// by the block of the cache, so that what is as hot lies side by side. Each of the 64 levels
// has as many blocks as any other. A map that the heat says nothing of stays as it is.
//
// smq raises a block by one level if it was hit at all within a minute (CACHE_UPDATE_PERIOD
// in drivers/md/dm-cache-policy-smq.c), so that a busy volume has no order by levels alone.
func (m Map) ByHeat(h Heat) Map {
	n := len(m.Entries)
	if n == 0 || uint64(n) > math.MaxUint32 || m.ChunkSectors == 0 || h.AreaSectors == 0 || h.AreaSectors%m.ChunkSectors != 0 {
		return m
	}
	area := h.AreaSectors / m.ChunkSectors
	cached := make([]uint32, len(h.Areas))
	for _, e := range m.Entries {
		if at := e.Origin / area; at < uint64(len(cached)) {
			cached[at]++
		}
	}
	// Heat, level and place in one number, so that a million of them sort fast. Colder is less.
	keys := make([]uint64, n)
	known := false
	for i, e := range m.Entries {
		heat := uint64(0)
		if at := e.Origin / area; at < uint64(len(cached)) && h.Areas[at] > 0 {
			// Shared among at most 2^20 blocks, which are 160 steps: nothing that was read
			// comes to what was not.
			heat = uint64(255+h.Areas[at]) - uint64(math.Round(heatOctave*math.Log2(float64(cached[at]))))
			known = true
		}
		keys[i] = heat<<48 | uint64(min(e.Level, topLevel))<<40 | uint64(math.MaxUint32-uint32(i))
	}
	if !known {
		return m
	}
	slices.Sort(keys)
	out := m
	out.Entries = slices.Clone(m.Entries)
	for rank, k := range keys {
		out.Entries[math.MaxUint32-uint32(k)].Level = uint32(rank * (topLevel + 1) / n)
	}
	return out
}
