package attach

import (
	"testing"
	"time"
)

func TestDecideBrake(t *testing.T) {
	const mib = 1 << 20
	s, minute := time.Second, time.Minute
	cases := map[string]struct {
		facts brakeFacts
		want  brakeLevel
	}{
		"nothing dirty":               {brakeFacts{Bytes: 100 * mib, Level: brakeOpen}, brakeOpen},
		"below the high mark":         {brakeFacts{Bytes: 100 * mib, Level: brakeOpen, Dirty: 74 * mib}, brakeOpen},
		"at the high mark":            {brakeFacts{Bytes: 100 * mib, Level: brakeOpen, Dirty: 75 * mib}, brakeHold},
		"grows too fast for a look":   {brakeFacts{Bytes: 100 * mib, Level: brakeOpen, Dirty: 50 * mib, Growth: 200 * mib}, brakeHold},
		"grows slowly":                {brakeFacts{Bytes: 100 * mib, Level: brakeOpen, Dirty: 50 * mib, Growth: 100 * mib}, brakeOpen},
		"shrinks":                     {brakeFacts{Bytes: 100 * mib, Level: brakeOpen, Dirty: 50 * mib, Growth: -100 * mib}, brakeOpen},
		"above the bound":             {brakeFacts{Bytes: 100 * mib, Level: brakeOpen, Dirty: 300 * mib}, brakeHold},
		"just held":                   {brakeFacts{Bytes: 100 * mib, Level: brakeHold, Since: s, Dirty: 80 * mib}, brakeHold},
		"just held, clean by itself":  {brakeFacts{Bytes: 100 * mib, Level: brakeHold, Since: s}, brakeHold},
		"held, smq cleaned":           {brakeFacts{Bytes: 100 * mib, Level: brakeHold, Since: 4 * s, Dirty: 40 * mib}, brakeOpen},
		"held, no pause to clean in":  {brakeFacts{Bytes: 100 * mib, Level: brakeHold, Since: 4 * s, Dirty: 80 * mib}, brakeDrain},
		"drains":                      {brakeFacts{Bytes: 100 * mib, Level: brakeDrain, Since: 9 * s, Dirty: 41 * mib}, brakeDrain},
		"drained":                     {brakeFacts{Bytes: 100 * mib, Level: brakeDrain, Since: 9 * s, Dirty: 39 * mib}, brakeOpen},
		"just drained":                {brakeFacts{Bytes: 100 * mib, Level: brakeDrain, Since: s, Dirty: 39 * mib}, brakeDrain},
		"young":                       {brakeFacts{Age: minute, Level: brakeOpen, Dirty: 500 * mib, DirtyFor: 59 * s}, brakeOpen},
		"old":                         {brakeFacts{Age: minute, Level: brakeOpen, Dirty: 1, DirtyFor: minute}, brakeDrain},
		"old, and below the low mark": {brakeFacts{Age: minute, Bytes: 100 * mib, Level: brakeDrain, Since: 9 * s, Dirty: mib, DirtyFor: 2 * minute}, brakeDrain},
		"old while held":              {brakeFacts{Age: minute, Bytes: 100 * mib, Level: brakeHold, Since: s, Dirty: mib, DirtyFor: 2 * minute}, brakeDrain},
		"flushed once":                {brakeFacts{Age: minute, Level: brakeDrain, Since: 4 * s}, brakeOpen},
		"flush of a plugin before":    {brakeFacts{Age: minute, Level: brakeDrain, Since: 4 * s, Dirty: 1, DirtyFor: s}, brakeDrain},
		"held by a bound that went":   {brakeFacts{Age: minute, Level: brakeHold, Since: 4 * s, Dirty: mib, DirtyFor: s}, brakeOpen},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decideBrake(tc.facts); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestBrakeSettles lets volumes of all speeds run against the decision, with the
// stated delays: the bound is exceeded by no more than is stated, and swaps are rare.
func TestBrakeSettles(t *testing.T) {
	const step = 10 * time.Millisecond
	for _, rate := range []int64{1 << 20, 100 << 20, 400 << 20, 800 << 20} { // bytes made dirty per second
		const bound = int64(1 << 30)
		var dirty, most, before, swaps int64
		level, since, look := brakeOpen, time.Duration(0), time.Duration(0)
		var pending brakeLevel
		var effect time.Duration
		for at := time.Duration(0); at < 5*time.Minute; at += step {
			if level == brakeOpen {
				dirty += rate * int64(step) / int64(time.Second)
			}
			if level == brakeDrain {
				dirty = max(0, dirty-(100<<20)*int64(step)/int64(time.Second))
			}
			most = max(most, dirty)
			if pending != "" && at >= effect {
				level, since, pending = pending, at, ""
				swaps++
			}
			if at < look || pending != "" {
				continue
			}
			f := brakeFacts{Bytes: bound, Level: level, Since: at - since, Dirty: dirty, Growth: (dirty - before) * int64(time.Second) / int64(lookLeast)}
			if want := decideBrake(f); want != level {
				pending, effect = want, at+100*time.Millisecond
			}
			before, look = dirty, at+min(lookAfter(bound, dirty), lookLeast)
		}
		if allowed := bound * brakeHigh / 100; most > allowed+rate*2/10+rate*int64(step)/int64(time.Second) {
			t.Errorf("at %d bytes per second %d were dirty", rate, most)
		}
		if swaps > 3*int64(5*time.Minute/(2*brakeRest)) {
			t.Errorf("at %d bytes per second the table was swapped %d times", rate, swaps)
		}
	}
}

func TestLookAfter(t *testing.T) {
	const gib = 1 << 30
	cases := map[string]struct {
		bound, dirty int64
		want         time.Duration
	}{
		"no bound of bytes": {0, gib, lookMost},
		"far below":         {100 * gib, gib, lookMost},
		"near":              {2 * gib, gib, 250 * time.Millisecond},
		"at the mark":       {2 * gib, 3 * gib / 2, lookLeast},
		"beyond":            {2 * gib, 3 * gib, lookLeast},
		"small":             {64 << 20, 0, lookLeast},
	}
	for name, tc := range cases {
		if got := lookAfter(tc.bound, tc.dirty); got.Round(10*time.Millisecond) != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
