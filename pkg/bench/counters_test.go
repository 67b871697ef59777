package bench

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/figures"
)

func TestBetween(t *testing.T) {
	from := Sample{Totals: &figures.Totals{ReadHits: 100, ReadMisses: 100, WriteHits: 7, WriteMisses: 7, Promotions: 5, Devices: map[string]figures.Device{
		"volume": {Reads: 200, ReadBytes: 4096, Nanos: 1000, Histogram: []uint64{200, 0, 0}},
		"ssd":    {Reads: 50, Nanos: 5, Histogram: []uint64{50, 0, 0}},
	}}}
	to := Sample{BoundsMicros: []int64{100, 200}, Totals: &figures.Totals{ReadHits: 175, ReadMisses: 125, WriteHits: 7, WriteMisses: 7, Promotions: 9, Demotions: 1, Devices: map[string]figures.Device{
		"volume": {Reads: 280, ReadBytes: 8192, Writes: 20, WriteBytes: 512, Nanos: 21_001_000, Histogram: []uint64{249, 50, 1}},
		"ssd":    {Reads: 50, Nanos: 5, Histogram: []uint64{50, 0, 0}},
		// A node that lost its state counts from the beginning.
		"origin": {Reads: 1, Nanos: 9000, Histogram: []uint64{0, 0, 1}},
	}}}
	f := func(v float64) *float64 { return &v }
	want := &Counted{
		ReadHitPercent: f(75), Promotions: 4, Demotions: 1,
		Volume: &Device{Operations: 100, Bytes: 4608, MeanMicros: 210, P50Micros: f(200), P99Micros: f(200), nanos: 21_000_000},
		Origin: &Device{Operations: 1, MeanMicros: 9, nanos: 9000},
	}
	if diff := cmp.Diff(want, between(from, to), cmp.AllowUnexported(Device{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := between(Sample{}, to); got != nil {
		t.Errorf("of a node that says nothing: %+v", got)
	}
	if got := grown(10, 3); got != 3 {
		t.Errorf("after a loss of state: %d", got)
	}
}
