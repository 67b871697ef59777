package observe

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func reads(hits, misses uint32) devmapper.Counters {
	return devmapper.Counters{ReadHits: hits, ReadMisses: misses}
}

func TestAccumulateCache(t *testing.T) {
	known := cacheState{Activation: "a", Last: reads(1000, 500), At: noon, Total: Counts{ReadHits: 7000, ReadMisses: 900}}
	late := cacheState{Activation: "a", Last: reads(1<<32-10, 0), At: noon, Total: Counts{ReadHits: 1 << 40}}
	cases := map[string]struct {
		prev cacheState
		v    Volume
		raw  devmapper.Counters
		// after is the time since prev, 15 s if 0, and most the bound, none if 0.
		after     time.Duration
		most      uint64
		wantTotal Counts
		// wantLast is false if nothing may be remembered.
		wantLast bool
	}{
		"first sight":              {v: Volume{Activation: "a", Base: reads(3, 1)}, raw: reads(13, 2), wantTotal: Counts{ReadHits: 10, ReadMisses: 1}, wantLast: true},
		"first sight, much so far": {v: Volume{Activation: "a", Base: reads(3, 1)}, raw: reads(2e9, 2), wantTotal: Counts{ReadHits: 2e9 - 3, ReadMisses: 1}, wantLast: true},
		"progress":                 {prev: known, v: Volume{Activation: "a"}, raw: reads(1001, 502), wantTotal: Counts{ReadHits: 7001, ReadMisses: 902}, wantLast: true},
		"idle":                     {prev: known, v: Volume{Activation: "a"}, raw: reads(1000, 500), wantTotal: known.Total, wantLast: true},
		"wrap":                     {prev: late, v: Volume{Activation: "a"}, raw: reads(5, 0), wantTotal: Counts{ReadHits: 1<<40 + 15}, wantLast: true},
		"wrap over a long stop":    {prev: late, v: Volume{Activation: "a"}, raw: reads(1<<30, 0), after: time.Hour, wantTotal: Counts{ReadHits: 1<<40 + 1<<30 + 10}, wantLast: true},
		"crash":                    {prev: known, v: Volume{Activation: "b", Base: reads(200, 100)}, raw: reads(210, 101), wantTotal: Counts{ReadHits: 7010, ReadMisses: 901}, wantLast: true},
		"another node's cache":     {prev: known, v: Volume{Activation: "b", Base: reads(4e9, 100)}, raw: reads(4e9+1, 100), wantTotal: Counts{ReadHits: 7001, ReadMisses: 900}, wantLast: true},
		"wrap from the base":       {prev: known, v: Volume{Activation: "b", Base: reads(1<<32-1, 0)}, raw: reads(1, 0), wantTotal: Counts{ReadHits: 7002, ReadMisses: 900}, wantLast: true},
		"swap not told yet":        {prev: known, v: Volume{Activation: "a"}, raw: reads(200, 600), wantTotal: known.Total, wantLast: true},
		"told, not swapped yet":    {prev: known, v: Volume{Activation: "b", Base: reads(1500, 0)}, raw: reads(1000, 500), wantTotal: known.Total, wantLast: true},
		"one goes back":            {prev: known, v: Volume{Activation: "a"}, raw: reads(1100, 499), wantTotal: known.Total, wantLast: true},
		"faster than any device":   {prev: known, v: Volume{Activation: "a"}, raw: reads(1000+2e9, 500), wantTotal: known.Total, wantLast: true},
		"clock set back":           {prev: known, v: Volume{Activation: "a"}, raw: reads(1001, 500), after: -time.Hour, wantTotal: Counts{ReadHits: 7001, ReadMisses: 900}, wantLast: true},
		"as the device did":        {prev: known, v: Volume{Activation: "a"}, raw: reads(1001, 502), most: 3, wantTotal: Counts{ReadHits: 7001, ReadMisses: 902}, wantLast: true},
		"more than the device":     {prev: known, v: Volume{Activation: "a"}, raw: reads(1001, 502), most: 2, wantTotal: known.Total, wantLast: true},
		"more, from the base":      {prev: known, v: Volume{Activation: "b"}, raw: reads(1001, 502), most: 2, wantTotal: known.Total, wantLast: true},
		"activation not known":     {prev: known, v: Volume{}, raw: reads(5, 5), wantTotal: known.Total},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			after := tc.after
			if after == 0 {
				after = 15 * time.Second
			}
			most := uint64(unknown)
			if tc.most > 0 {
				most = tc.most
			}
			got, accesses := accumulateCache(tc.prev, tc.v, tc.raw, noon.Add(after), most)
			if added := got.Total.accesses() - tc.prev.Total.accesses(); added != accesses {
				t.Errorf("%d accesses were added, %d reported", added, accesses)
			}
			if diff := cmp.Diff(tc.wantTotal, got.Total); diff != "" {
				t.Errorf("total (-want +got):\n%s", diff)
			}
			if remembered := got.Last == tc.raw && got.Activation == tc.v.Activation; remembered != tc.wantLast {
				t.Errorf("remembered: %+v", got)
			}
		})
	}
}

// A swap that shows only later is counted from its base, once.
func TestAccumulateSwap(t *testing.T) {
	a, b := Volume{Activation: "a"}, Volume{Activation: "b", Base: reads(90, 0)}
	st := cacheState{}
	now := noon
	for _, step := range []struct {
		v    Volume
		raw  uint32
		want uint64
	}{
		{a, 100, 100}, {a, 95, 100}, {a, 96, 101}, {b, 97, 108}, {b, 100, 111},
	} {
		now = now.Add(15 * time.Second)
		st, _ = accumulateCache(st, step.v, reads(step.raw, 0), now, unknown)
		if st.Total.ReadHits != step.want {
			t.Errorf("at %d of %s: %d, want %d", step.raw, step.v.Activation, st.Total.ReadHits, step.want)
		}
	}
}

func TestAccumulateAllCounters(t *testing.T) {
	raw := devmapper.Counters{ReadHits: 1, ReadMisses: 2, WriteHits: 3, WriteMisses: 4, Promotions: 5, Demotions: 6}
	st, accesses := accumulateCache(cacheState{}, Volume{Activation: "a"}, raw, noon, unknown)
	got := st.Total
	want := Counts{ReadHits: 1, ReadMisses: 2, WriteHits: 3, WriteMisses: 4, Promotions: 5, Demotions: 6}
	if got != want || accesses != 10 {
		t.Errorf("got %+v and %d accesses, want %+v", got, accesses, want)
	}
}

func (c Counts) accesses() uint64 { return c.ReadHits + c.ReadMisses + c.WriteHits + c.WriteMisses }

// The cache is read before the device: operations in between are carried, and
// what never was an access gives none.
func TestCarried(t *testing.T) {
	carried := uint64(0)
	for i, step := range []struct{ done, underWay, accesses, wantMost, wantCarried uint64 }{
		{done: unknown, accesses: 50, wantMost: unknown, wantCarried: 0},
		{done: 110, underWay: 2, accesses: 100, wantMost: 112, wantCarried: 10},
		{done: 0, accesses: 10, wantMost: 10, wantCarried: 0},
		{done: 1000, accesses: 0, wantMost: 1000, wantCarried: 1000}, // discards
		{done: 3, accesses: 0, wantMost: 1003, wantCarried: 3},
		{done: 0, accesses: 0, wantMost: 3, wantCarried: 0},
		{done: 5, underWay: 8, accesses: 9, wantMost: 13, wantCarried: 0},
	} {
		if got := mostAccesses(step.done, step.underWay, carried); got != step.wantMost {
			t.Errorf("step %d: at most %d, want %d", i, got, step.wantMost)
		}
		if carried = carriedAccesses(step.done, carried, step.accesses); carried != step.wantCarried {
			t.Errorf("step %d: credit %d, want %d", i, carried, step.wantCarried)
		}
	}
}

func TestOperations(t *testing.T) {
	known := &deviceState{Last: stats(1, 100)}
	cases := map[string]struct {
		prev *deviceState
		raw  devmapper.Stats
		want uint64
	}{
		"first sight": {nil, stats(1, 100), unknown},
		"anew":        {known, stats(2, 200), unknown},
		"cleared":     {known, stats(1, 50), unknown},
		"idle":        {known, stats(1, 100), 0},
		"small":       {known, stats(1, 110), 30 + 10*24/128},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := operations(tc.prev, tc.raw, 128); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func stats(region, ops uint64) devmapper.Stats {
	st := devmapper.Stats{
		Region: region, Read: devmapper.IOStats{Operations: ops, Sectors: 8 * ops, Nanoseconds: 1000 * ops},
		Write: devmapper.IOStats{Operations: 2 * ops, Sectors: 16 * ops, Nanoseconds: 2000 * ops},
	}
	st.Histogram[3] = 3 * ops
	return st
}

func total(ops uint64) IO {
	st := stats(0, ops)
	return IO{Read: st.Read, Write: st.Write, Histogram: st.Histogram}
}

func TestAccumulateIO(t *testing.T) {
	known := deviceState{Last: stats(1, 100), Total: total(500)}
	cleared := stats(1, 101)
	cleared.Histogram[3] = 1
	clearedTotal := total(500 + 101)
	clearedTotal.Histogram[3] = 3*500 + 1
	cases := map[string]struct {
		prev deviceState
		raw  devmapper.Stats
		want IO
	}{
		"first sight":        {deviceState{}, stats(1, 7), total(7)},
		"progress":           {known, stats(1, 103), total(503)},
		"idle":               {known, stats(1, 100), total(500)},
		"device made anew":   {known, stats(2, 4), total(504)},
		"anew and further":   {known, stats(2, 400), total(900)},
		"cleared":            {known, stats(1, 4), total(504)},
		"cleared in a count": {known, cleared, clearedTotal},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := accumulateIO(tc.prev, tc.raw)
			if diff := cmp.Diff(tc.want, got.Total); diff != "" {
				t.Errorf("total (-want +got):\n%s", diff)
			}
			if got.Last != tc.raw {
				t.Errorf("remembered %+v", got.Last)
			}
		})
	}
}

func TestLatency(t *testing.T) {
	var none, h devmapper.Histogram
	bounds := devmapper.StatsBounds()
	h[2], h[10], h[len(h)-1] = 50, 49, 1
	cases := map[string]struct {
		now, old devmapper.Histogram
		want     Latency
	}{
		"nothing":  {h, h, Latency{}},
		"spread":   {h, none, Latency{P50: bounds[2], P99: bounds[10], Known: true}},
		"too slow": {devmapper.Histogram{len(h) - 1: 5}, none, Latency{P50: bounds[len(bounds)-1], P99: bounds[len(bounds)-1], Known: true}},
		"one":      {devmapper.Histogram{1}, none, Latency{P50: bounds[0], P99: bounds[0], Known: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := latency(tc.now, tc.old); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	w := window[int]{length: time.Minute}
	if _, _, ok := w.first(noon); ok {
		t.Error("an empty window has a beginning")
	}
	for i := range 200 {
		w.add(noon.Add(time.Duration(i)*time.Second), i)
	}
	last := noon.Add(199 * time.Second)
	got, age, ok := w.first(last)
	if !ok || age < time.Minute || age > time.Minute+windowStep || got != 199-int(age.Seconds()) {
		t.Errorf("first() = %d, %v, %t", got, age, ok)
	}
	if n := len(w.points); n > int(time.Minute/windowStep)+2 {
		t.Errorf("%d points are kept", n)
	}
	if _, _, ok := w.first(last.Add(time.Hour)); ok {
		t.Error("a point of an hour ago is the beginning of the last minute")
	}
	w.add(noon, 1)
	w.add(noon.Add(10*time.Second), 2)
	if got, age, ok := w.first(noon.Add(20 * time.Second)); !ok || got != 1 || age != 20*time.Second {
		t.Errorf("after the clock was set back: %d, %v, %t", got, age, ok)
	}
}
