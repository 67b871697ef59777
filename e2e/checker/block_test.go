package checker

import (
	"bytes"
	"testing"
)

const testVolume = "pvc-0b9f5d2e"

func encoded(volume string, at int64, seq uint64) []byte {
	buf := make([]byte, BlockSize)
	Encode(buf, volume, at, seq)
	return buf
}

func TestDecode(t *testing.T) {
	mix := func(a, b []byte, n int) []byte { return append(bytes.Clone(a[:n]), b[n:]...) }
	flip := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[at] ^= 1
		return b
	}
	zero := make([]byte, BlockSize)
	tests := map[string]struct {
		buf      []byte
		wantKind Kind
		wantSeq  uint64
	}{
		"never written":         {zero, Blank, 0},
		"one write":             {encoded(testVolume, 7, 3), Whole, 3},
		"half of two writes":    {mix(encoded(testVolume, 7, 4), encoded(testVolume, 7, 3), BlockSize/2), Torn, 0},
		"one sector of another": {mix(encoded(testVolume, 7, 4), encoded(testVolume, 7, 3), sectorSize), Torn, 0},
		"half written":          {mix(encoded(testVolume, 7, 4), zero, BlockSize/2), Torn, 0},
		"half a sector":         {mix(encoded(testVolume, 7, 4), encoded(testVolume, 7, 3), sectorSize/2), Corrupt, 0},
		"another block":         {encoded(testVolume, 8, 3), Foreign, 0},
		"another volume":        {encoded("pvc-other", 7, 3), Foreign, 0},
		"longer name":           {encoded(testVolume+"x", 7, 3), Foreign, 0},
		"half of another block": {mix(encoded(testVolume, 7, 3), encoded(testVolume, 8, 4), BlockSize/2), Foreign, 0},
		"sectors in the wrong order": {append(bytes.Clone(encoded(testVolume, 7, 3)[sectorSize:]),
			encoded(testVolume, 7, 3)[:sectorSize]...), Foreign, 0},
		"a bit of the filler":   {flip(encoded(testVolume, 7, 3), 4000), Corrupt, 0},
		"a bit of the number":   {flip(encoded(testVolume, 7, 3), seqAt), Corrupt, 0},
		"a bit of the checksum": {flip(encoded(testVolume, 7, 3), crcAt), Corrupt, 0},
		"other data":            {bytes.Repeat([]byte{0xa5}, BlockSize), Corrupt, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Decode(tc.buf, testVolume, 7)
			if got.Kind != tc.wantKind || got.Seq != tc.wantSeq {
				t.Errorf("Decode() = %v, want %s %d", got, tc.wantKind, tc.wantSeq)
			}
			back, err := parseContent(got.String())
			if err != nil || back != got {
				t.Errorf("%q was read as %v, %v", got, back, err)
			}
		})
	}
}

// FuzzDecode: no change of a block passes for what was written.
func FuzzDecode(f *testing.F) {
	f.Add(uint64(5), int64(9), 100, byte(1))
	f.Fuzz(func(t *testing.T, seq uint64, at int64, where int, bits byte) {
		if bits == 0 || seq == 0 {
			return
		}
		buf := encoded(testVolume, at, seq)
		if c := Decode(buf, testVolume, at); c.Kind != Whole || c.Seq != seq {
			t.Fatalf("what was written reads as %v", c)
		}
		buf[uint(where)%BlockSize] ^= bits
		if c := Decode(buf, testVolume, at); c.Kind == Whole || c.Kind == Blank {
			t.Fatalf("what was changed reads as %v", c)
		}
	})
}
