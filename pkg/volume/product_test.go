package volume

import (
	"math"
	"testing"
)

func TestLUNProduct(t *testing.T) {
	for _, generation := range []int64{1, 35, 36, 4711, math.MaxInt64} {
		p := LUNProduct(generation)
		if len(p) > 16 {
			t.Errorf("%q does not fit into an INQUIRY", p)
		}
		if got, ok := LUNGeneration(p + "  \n"); !ok || got != generation {
			t.Errorf("generation %d became %d, %v", generation, got, ok)
		}
	}
	for _, other := range []string{"", "IBLOCK", "nf-", "nf-0", "nf--1", "nf-!", "NF-1", "nf-3w5e11264sgsg"} {
		if got, ok := LUNGeneration(other); ok {
			t.Errorf("%q counts as generation %d", other, got)
		}
	}
}
