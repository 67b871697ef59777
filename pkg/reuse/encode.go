package reuse

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// ErrFormat is that bytes are not those of Encode.
var ErrFormat = errors.New("not a volume's reuse")

const (
	magic = "NFREUSE\x02"
	// before is that of versions that knew no sizes.
	before = "NFREUSE\x01"
	// headBytes are magic, two times, two lengths and the number of areas; loadBytes and areaBytes
	// what a window has of the volume, and all of an area.
	headBytes = len(magic) + 4*8 + 4
	loadBytes = (plainFields + SizeBins) * 8
	// plainFields are those that are not of sizes.
	plainFields = 7
	areaBytes   = 2 * (1 + 2*int(windows))
	// MaxBytes is how long an encoded Volume may be: 14 bytes for each area.
	MaxBytes = headBytes + int(windows)*loadBytes + areaBytes*MaxAreas + crc32.Size
)

// Encode returns the form in which it is kept, in big endian: magic, seconds of Since and At,
// AreaSectors, ChunkSectors, the number of areas, the loads of the windows, what was seen of each
// area, the sums of each window, and the CRC-32 of all that. A sum is the upper half of its
// float32, which is right within a part in 256.
func (v *Volume) Encode() []byte {
	b := append(make([]byte, 0, headBytes+int(windows)*loadBytes+len(v.seen)*areaBytes+crc32.Size), magic...)
	for _, n := range []uint64{uint64(max(v.Since.Unix(), 0)), uint64(max(v.At.Unix(), 0)), v.AreaSectors, v.ChunkSectors} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(v.seen)))
	for _, l := range v.loads {
		for _, f := range l.fields() {
			b = binary.BigEndian.AppendUint64(b, math.Float64bits(*f))
		}
	}
	put := func(f float32) { b = binary.BigEndian.AppendUint16(b, uint16(math.Float32bits(f)>>16)) }
	for _, f := range v.seen {
		put(f)
	}
	for _, areas := range v.areas {
		for _, s := range areas {
			put(s[0])
			put(s[1])
		}
	}
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// Decode reads what Encode has written, of this version or of the one before. Errors wrap ErrFormat.
func Decode(b []byte) (*Volume, error) {
	if len(b) < headBytes+crc32.Size || len(b) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, len(b))
	}
	body := b[:len(b)-crc32.Size]
	if binary.BigEndian.Uint32(b[len(body):]) != crc32.ChecksumIEEE(body) || string(body[:len(magic)]) != magic && string(body[:len(magic)]) != before {
		return nil, fmt.Errorf("%w: its sum or its version is wrong", ErrFormat)
	}
	fields := plainFields
	if string(body[:len(magic)]) == magic {
		fields += SizeBins
	}
	rest := body[len(magic):]
	next := func() uint64 {
		n := binary.BigEndian.Uint64(rest)
		rest = rest[8:]
		return n
	}
	since, at := next(), next()
	v := &Volume{Since: time.Unix(int64(since), 0).UTC(), At: time.Unix(int64(at), 0).UTC(), AreaSectors: next(), ChunkSectors: next()}
	areas := int(binary.BigEndian.Uint32(rest))
	rest = rest[4:]
	if since > math.MaxInt64/2 || at > math.MaxInt64/2 || areas > MaxAreas || len(rest) != int(windows)*fields*8+areas*areaBytes || v.AreaSectors == 0 {
		return nil, fmt.Errorf("%w: %d areas of %d sectors in %d bytes", ErrFormat, areas, v.AreaSectors, len(b))
	}
	valid := true
	float := func() float64 {
		f := math.Float64frombits(next())
		valid = valid && f >= 0 && f < math.MaxFloat32
		return f
	}
	for w := range v.loads {
		for _, f := range v.loads[w].fields()[:fields] {
			*f = float()
		}
	}
	short := func() float32 {
		f := math.Float32frombits(uint32(binary.BigEndian.Uint16(rest)) << 16)
		rest = rest[2:]
		valid = valid && f >= 0 && f < math.MaxFloat32
		return f
	}
	v.seen = make([]float32, areas)
	for i := range v.seen {
		v.seen[i] = short()
	}
	for w := range v.areas {
		v.areas[w] = make([]sums, areas)
		for i := range v.areas[w] {
			v.areas[w][i] = sums{short(), short()}
		}
	}
	if !valid {
		return nil, fmt.Errorf("%w: a count is no number", ErrFormat)
	}
	return v, nil
}
