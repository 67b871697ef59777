package volume

import (
	"strconv"
	"strings"
)

// lunPrefix begins the product identification of the LUNs that nearflash-target
// exports.
const lunPrefix = "nf-"

// LUNProduct is the product identification (SCSI INQUIRY, 16 characters) of a LUN
// that is exported for a generation: the storage server's own word of who it was
// last given to, which a node reads with the LUN and no backup of the cluster's
// objects can take back (states.md, A record that is older than the truth).
func LUNProduct(generation int64) string { return lunPrefix + strconv.FormatInt(generation, 36) }

// LUNGeneration is the inverse of LUNProduct; ok is false for the LUNs of other
// servers, and of versions that did not say it.
func LUNGeneration(product string) (generation int64, ok bool) {
	digits, found := strings.CutPrefix(strings.TrimSpace(product), lunPrefix)
	if !found {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 36, 64)
	return n, err == nil && n > 0
}

// GivenSince reports whether a LUN was given to another owner after an ownership, and under
// which generation. products are what its paths say.
func GivenSince(products []string, generation int64) (later int64, since bool) {
	for _, p := range products {
		if g, ok := LUNGeneration(p); ok && g > generation {
			return g, true
		}
	}
	return 0, false
}
