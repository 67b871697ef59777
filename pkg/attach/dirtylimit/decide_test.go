package dirtylimit

import (
	"testing"
	"time"
)

func TestDecide(t *testing.T) {
	const mib = 1 << 20
	s, minute := time.Second, time.Minute
	cases := map[string]struct {
		facts facts
		want  Level
	}{
		"nothing dirty":                         {facts{Bytes: 100 * mib, Level: Writeback}, Writeback},
		"below the high mark":                   {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 74 * mib}, Writeback},
		"at the high mark":                      {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 75 * mib}, Writethrough},
		"grows too fast for a look":             {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 50 * mib, Growth: 200 * mib}, Writethrough},
		"grows slowly":                          {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 50 * mib, Growth: 100 * mib}, Writeback},
		"shrinks":                               {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 50 * mib, Growth: -100 * mib}, Writeback},
		"above the limit":                       {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 300 * mib}, Writethrough},
		"just in writethrough":                  {facts{Bytes: 100 * mib, Level: Writethrough, Since: s, Dirty: 80 * mib}, Writethrough},
		"just in writethrough, clean by itself": {facts{Bytes: 100 * mib, Level: Writethrough, Since: s}, Writethrough},
		"writethrough, smq cleaned":             {facts{Bytes: 100 * mib, Level: Writethrough, Since: 4 * s, Dirty: 40 * mib}, Writeback},
		"writethrough, no pause to clean in":    {facts{Bytes: 100 * mib, Level: Writethrough, Since: 4 * s, Dirty: 80 * mib}, Draining},
		"drains":                                {facts{Bytes: 100 * mib, Level: Draining, Since: 9 * s, Dirty: 41 * mib}, Draining},
		"drained":                               {facts{Bytes: 100 * mib, Level: Draining, Since: 9 * s, Dirty: 39 * mib}, Writeback},
		"just drained":                          {facts{Bytes: 100 * mib, Level: Draining, Since: s, Dirty: 39 * mib}, Draining},
		"young":                                 {facts{Age: minute, Level: Writeback, Dirty: 500 * mib, DirtyFor: 59 * s}, Writeback},
		"old":                                   {facts{Age: minute, Level: Writeback, Dirty: 1, DirtyFor: minute}, Draining},
		"old, and below the low mark":           {facts{Age: minute, Bytes: 100 * mib, Level: Draining, Since: 9 * s, Dirty: mib, DirtyFor: 2 * minute}, Draining},
		"old in writethrough":                   {facts{Age: minute, Bytes: 100 * mib, Level: Writethrough, Since: s, Dirty: mib, DirtyFor: 2 * minute}, Draining},
		"flushed once":                          {facts{Age: minute, Level: Draining, Since: 4 * s}, Writeback},
		"flush of a plugin before":              {facts{Age: minute, Level: Draining, Since: 4 * s, Dirty: 1, DirtyFor: s}, Draining},
		"recovered, below the high mark":        {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 74 * mib, Recovered: true}, Writeback},
		"recovered, at the high mark":           {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 75 * mib, Recovered: true}, Draining},
		"recovered, foreseen":                   {facts{Bytes: 100 * mib, Level: Writeback, Dirty: 50 * mib, Growth: 200 * mib, Recovered: true}, Draining},
		"recovered, in writethrough":            {facts{Bytes: 100 * mib, Level: Writethrough, Since: s, Dirty: 75 * mib, Recovered: true}, Draining},
		"recovered, drained":                    {facts{Bytes: 100 * mib, Level: Draining, Since: 9 * s, Recovered: true}, Draining},
		"recovered, old":                        {facts{Age: minute, Level: Writeback, Dirty: 1, DirtyFor: minute, Recovered: true}, Draining},
		"recovered, old and drained":            {facts{Age: minute, Level: Draining, Since: 9 * s, Recovered: true}, Draining},
		"writethrough for a limit that went":    {facts{Age: minute, Level: Writethrough, Since: 4 * s, Dirty: mib, DirtyFor: s}, Writeback},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decide(tc.facts); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestSettles lets volumes of all speeds run against the decision, with the
// stated delays: the limit is exceeded by no more than is stated, and swaps are rare.
func TestSettles(t *testing.T) {
	const step = 10 * time.Millisecond
	for _, rate := range []int64{1 << 20, 100 << 20, 400 << 20, 800 << 20} { // bytes made dirty per second
		const limit = int64(1 << 30)
		var dirty, most, before, swaps int64
		level, since, poll := Writeback, time.Duration(0), time.Duration(0)
		var pending Level
		var effect time.Duration
		for at := time.Duration(0); at < 5*time.Minute; at += step {
			if level == Writeback {
				dirty += rate * int64(step) / int64(time.Second)
			}
			if level == Draining {
				dirty = max(0, dirty-(100<<20)*int64(step)/int64(time.Second))
			}
			most = max(most, dirty)
			if pending != "" && at >= effect {
				level, since, pending = pending, at, ""
				swaps++
			}
			if at < poll || pending != "" {
				continue
			}
			f := facts{Bytes: limit, Level: level, Since: at - since, Dirty: dirty, Growth: (dirty - before) * int64(time.Second) / int64(pollLeast)}
			if want := decide(f); want != level {
				pending, effect = want, at+100*time.Millisecond
			}
			before, poll = dirty, at+min(pollAfter(limit, dirty), pollLeast)
		}
		if allowed := limit * highPercent / 100; most > allowed+rate*2/10+rate*int64(step)/int64(time.Second) {
			t.Errorf("at %d bytes per second %d were dirty", rate, most)
		}
		if swaps > 3*int64(5*time.Minute/(2*rest)) {
			t.Errorf("at %d bytes per second the table was swapped %d times", rate, swaps)
		}
	}
}

func TestPollAfter(t *testing.T) {
	const gib = 1 << 30
	cases := map[string]struct {
		limit, dirty int64
		want         time.Duration
	}{
		"no limit of bytes": {0, gib, pollMost},
		"far below":         {100 * gib, gib, pollMost},
		"near":              {2 * gib, gib, 250 * time.Millisecond},
		"at the mark":       {2 * gib, 3 * gib / 2, pollLeast},
		"beyond":            {2 * gib, 3 * gib, pollLeast},
		"small":             {64 << 20, 0, pollLeast},
	}
	for name, tc := range cases {
		if got := pollAfter(tc.limit, tc.dirty); got.Round(10*time.Millisecond) != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
