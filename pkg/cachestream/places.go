package cachestream

import (
	"slices"

	"github.com/nearflash/nearflash/pkg/volume"
)

// maxSkip bounds the bits of the chunks that are not wanted, in bytes.
const maxSkip = volume.MaxExportedChunks / 8

// wantedFrom is the first number of a list from one on that is not to be left out. Both sides
// count with it, so that each chunk is the one that is expected.
func wantedFrom(skip volume.Bits, i int) int {
	for skip.Has(uint64(i)) {
		i++
	}
	return i
}

// elsewhere reports whether the chunk with a number comes from another place of the cache than is
// wanted, if that is known.
func elsewhere(places []uint32, i int, at uint32) bool {
	return places != nil && (i >= len(places) || at != places[i])
}

// checkPlaces says what is wrong with the places of a whole list.
func checkPlaces(places []uint32) error {
	sorted := slices.Sorted(slices.Values(places))
	for i, at := range sorted {
		switch {
		case at >= volume.MaxExportedChunks:
			return broken("place %d is beyond every cache", at)
		case i > 0 && at == sorted[i-1]:
			return broken("place %d is listed twice", at)
		}
	}
	return nil
}
