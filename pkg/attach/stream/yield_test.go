package stream

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	mib = 1 << 20
	ms  = time.Millisecond
)

// busy is a window in which a pod waits for reads all the time.
func busy(each time.Duration, copied int64) observed {
	n := uint64(window / each)
	return observed{reads: blockdev.Reads{Requests: n, Took: time.Duration(n) * each, InFlight: 1}, took: window, copied: copied, least: least}
}

// TestYield is what a copy does after a window.
func TestYield(t *testing.T) {
	at := func(rate int64, since int) yielding {
		return yielding{rate: rate, alone: [3]time.Duration{4 * ms, 9 * ms}, since: since, every: restEvery}
	}
	with := func(y yielding, change func(y *yielding)) yielding { change(&y); return y }
	resting := func(y yielding) yielding { return with(y, func(y *yielding) { y.rests = true }) }
	idle := func(y yielding, n int) yielding { return with(y, func(y *yielding) { y.idle = n }) }
	late := func(o observed) observed { o.least = 50 * mib; return o }
	nothing := observed{took: window, copied: 60 * mib, least: least}
	few := observed{reads: blockdev.Reads{Requests: 3, Took: 12 * ms}, took: window, least: least}
	fewSlow := observed{reads: blockdev.Reads{Requests: 3, Took: 180 * ms}, took: window, copied: 16 * mib, least: least}
	hung := observed{reads: blockdev.Reads{InFlight: 4}, took: window, copied: 16 * mib, least: least}
	for name, tc := range map[string]struct {
		y    yielding
		o    observed
		want yielding
	}{
		"nobody reads":                       {o: nothing, want: yielding{since: 1, idle: 1}},
		"hardly anybody reads any more":      {y: at(8*mib, 3), o: few, want: idle(at(8*mib, 4), 1)},
		"nobody has read for long":           {y: idle(at(8*mib, 3), idleWindows-1), o: nothing},
		"somebody reads again":               {y: idle(at(8*mib, 3), 9), o: busy(4*ms, 8*mib), want: at(8*mib+more, 4)},
		"nobody reads while it rests":        {y: resting(at(8*mib, 3)), o: nothing, want: idle(at(8*mib, 0), 1)},
		"somebody begins to read":            {y: yielding{since: 1, idle: 1}, o: busy(ms, 80*mib), want: yielding{rate: 10 * mib, since: 2, rests: true}},
		"the copy is slow by then":           {o: busy(ms, mib), want: yielding{rate: least, since: 1, rests: true}},
		"it has rested for the first time":   {y: yielding{rate: 30 * mib, since: 1, rests: true}, o: busy(4*ms, 0), want: yielding{rate: 30 * mib, alone: [3]time.Duration{4 * ms}, every: restSoon}},
		"it has rested once":                 {y: yielding{rate: 8 * mib, alone: [3]time.Duration{4 * ms}, every: restSoon}, o: busy(4*ms, 8*mib), want: yielding{rate: 8 * mib, alone: [3]time.Duration{4 * ms}, since: 1, every: restSoon}},
		"it has rested in vain, and waits":   {y: yielding{rate: 30 * mib, every: restSoon}, o: busy(4*ms, 0), want: yielding{rate: 30 * mib, since: 1, every: restSoon}},
		"it has rested again":                {y: resting(at(30*mib, 24)), o: busy(5*ms, 0), want: yielding{rate: 30 * mib, alone: [3]time.Duration{5 * ms, 4 * ms, 9 * ms}, every: restEvery}},
		"reads take no time that is counted": {y: resting(yielding{rate: 8 * mib}), o: busy(fast/2, 0), want: yielding{rate: 8 * mib, alone: [3]time.Duration{fast}, every: restSoon}},
		"reads are as fast as without":       {y: at(8*mib, 3), o: busy(4*ms, 8*mib), want: at(8*mib+more, 4)},
		"nearly":                             {y: at(64*mib, 3), o: busy(4*ms+ms/3, 60*mib), want: at(72*mib, 4)},
		"something else holds the copy back": {y: at(8*mib, 3), o: busy(4*ms, 3*mib), want: at(8*mib, 4)},
		"reads are slow":                     {y: at(16*mib, 3), o: busy(5*ms, 16*mib), want: at(12*mib, 4)},
		"very slow":                          {y: at(16*mib, 3), o: busy(9*ms, 16*mib), want: at(8*mib, 4)},
		"few, and very slow":                 {y: at(16*mib, 3), o: fewSlow, want: at(8*mib, 4)},
		"none comes back":                    {y: at(16*mib, 3), o: hung, want: at(8*mib, 4)},
		"slow, below the rate":               {y: at(64*mib, 3), o: busy(5*ms, 16*mib), want: at(12*mib, 4)},
		"slow at the least":                  {y: at(least, 3), o: busy(60*ms, least), want: at(least, 4)},
		"slow, and nothing comes":            {y: at(least, 3), o: busy(60*ms, 0), want: at(least, 4)},
		"slow, and late":                     {y: at(16*mib, 3), o: late(busy(60*ms, 16*mib)), want: at(50*mib, 4)},
		"fast, and late":                     {y: at(16*mib, 3), o: late(busy(4*ms, 3*mib)), want: at(50*mib, 4)},
		"it is time to rest":                 {y: at(8*mib, restEvery-1), o: busy(4*ms, 8*mib), want: resting(at(8*mib, restEvery))},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.y.next(tc.o); got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestYieldSettles: a copy that slows no read down comes to its full speed and stays near it,
// however much reads vary, and one that does so comes to rates at which it does not; both also if
// the first reads were slow by something else.
func TestYieldSettles(t *testing.T) {
	const full = 64 * mib
	for name, tc := range map[string]struct {
		// harmless is the rate up to which reads are no slower.
		harmless        int64
		atLeast, atMost int64
	}{
		"it slows nothing down":       {harmless: full, atLeast: full / 2, atMost: full},
		"it does above a rate":        {harmless: 16 * mib, atLeast: 6 * mib, atMost: 24 * mib},
		"it does, however slow it is": {harmless: 0, atLeast: 3 * mib, atMost: 6 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			var y yielding
			copied, sum, stood := int64(full), int64(0), 0
			const windows = 1000
			for i := range windows {
				each := 3 * ms
				if copied > tc.harmless {
					each = each * 3 / 2
				}
				if i < 5 {
					each = 8 * ms // the pod starts
				}
				const n = 150
				var took time.Duration
				for range n {
					took += time.Duration(random.ExpFloat64() * float64(each))
				}
				y = y.next(observed{reads: blockdev.Reads{Requests: n, Took: took, InFlight: 2}, took: window, copied: copied, least: least})
				copied = min(y.limit(), full)
				if y.rests {
					copied, stood = 0, stood+1
				}
				sum += copied
			}
			if mean := sum / windows; mean < tc.atLeast || mean > tc.atMost || stood > 60 {
				t.Errorf("%d MiB/s in the mean, stood still %d times", mean>>20, stood)
			}
		})
	}
}

// TestSettle: a copy waits for the start of the pod, which is over when it waits for reads, and no
// longer than it is told to.
func TestSettle(t *testing.T) {
	const most = 5 * time.Second
	for name, tc := range map[string]struct {
		// reads are those of a window, from one second on; err comes when they are counted.
		reads blockdev.Reads
		err   error
		// mends is when they can be counted, ends when the copy is stopped.
		mends, ends, want time.Duration
		fails             error
	}{
		"nobody reads":                {want: most},
		"hardly anybody":              {reads: blockdev.Reads{Requests: 3, Took: 12 * ms}, want: most},
		"somebody does":               {reads: blockdev.Reads{Requests: 40, Took: 160 * ms}, want: time.Second + window},
		"reads cannot be counted":     {reads: blockdev.Reads{Requests: 40, Took: 160 * ms}, err: errors.New("no such device"), want: most},
		"they cannot at first":        {reads: blockdev.Reads{Requests: 3, Took: 12 * ms}, err: errors.New("no such device"), mends: 2 * time.Second, want: most},
		"it is stopped in the middle": {ends: 3 * time.Second, want: 3 * time.Second, fails: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, count := time.Now(), blockdev.Reads{Requests: 1000, Took: time.Second}
				g := giving{reads: func() (blockdev.Reads, error) {
					if time.Since(began) > time.Second {
						count.Requests += tc.reads.Requests
						count.Took += tc.reads.Took
					}
					if tc.mends != 0 && time.Since(began) > tc.mends {
						return count, nil
					}
					if tc.err != nil {
						return blockdev.Reads{}, tc.err
					}
					return count, nil
				}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.ends != 0 {
					time.AfterFunc(tc.ends, cancel)
				}
				err := g.settle(ctx, most)
				if took := time.Since(began); took != tc.want || !errors.Is(err, tc.fails) {
					t.Errorf("%v after %s, want %v after %s", err, took, tc.fails, tc.want)
				}
			})
		})
	}
}

// TestYieldRests: a copy stands still while it rests, until it is told to end, and goes on
// when nobody reads any more. While reads cannot be counted nothing holds it back.
func TestYieldRests(t *testing.T) {
	clock, count := time.Unix(1000, 0), blockdev.Reads{}
	var fails error
	g := giving{reads: func() (blockdev.Reads, error) { return count, fails }, least: func() int64 { return least }}
	now := func() time.Time { return clock }
	after := func(reads uint64) (int64, error) {
		clock = clock.Add(window)
		count.Requests += reads
		count.Took += time.Duration(reads) * ms
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // it does not rest for long
		return g.way(ctx, now, mib)
	}
	want := func(what string, rests bool, rate int64) func(int64, error) {
		return func(got int64, err error) {
			t.Helper()
			if g.rests != rests || errors.Is(err, context.Canceled) != rests || !rests && got != rate {
				t.Errorf("%s: rests %t, rate %d, %v; want %t, %d", what, g.rests, got, err, rests, rate)
			}
		}
	}
	want("at first", false, 0)(after(0))
	want("nobody reads", false, 0)(after(0))
	want("somebody reads", true, 0)(after(100))
	want("it has rested", false, least)(after(100))
	want("nobody reads any more", false, 0)(after(0))
	want("somebody reads again", false, least)(after(100))
	fails = errors.New("no such device")
	want("nothing is counted", false, 0)(after(1000))
	fails = nil
	want("it is counted again", false, 0)(after(1000))
	want("and somebody reads", true, 0)(after(100))
}

// TestLeast: a copy gives way less in its first level, and if the source node would not get to its
// end before the deadline otherwise, and can.
func TestLeast(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, tc := range map[string]struct {
		next      int
		left      time.Duration
		bandwidth int64
		from      volume.ServedFrom
		want      int64
	}{
		"much time":                  {next: 64, left: time.Hour, from: volume.FromPeer, want: least},
		"no deadline":                {next: 64, from: volume.FromPeer, want: least},
		"the first level":            {left: time.Hour, from: volume.FromPeer, want: leastHot},
		"little time":                {next: 24, left: 100 * time.Second, bandwidth: 64 * mib, from: volume.FromPeer, want: 1000 * mib / 90},
		"without a limit":            {next: 24, left: 10 * time.Second, from: volume.FromPeer, want: 1000 * mib / 9},
		"too little for its limit":   {next: 24, left: 10 * time.Second, bandwidth: 64 * mib, from: volume.FromPeer, want: least},
		"too little for any":         {next: 24, left: ms, from: volume.FromPeer, want: least},
		"the deadline has passed":    {next: 24, left: -time.Hour, from: volume.FromPeer, want: least},
		"it comes from the origin":   {next: 24, left: 100 * time.Second, bandwidth: 64 * mib, from: volume.FromOrigin, want: least},
		"everything has been copied": {next: 1024, left: time.Second, from: volume.FromPeer, want: least},
	} {
		t.Run(name, func(t *testing.T) {
			r := New(Config{Now: func() time.Time { return now }})
			h := &state.Hydration{Bandwidth: tc.bandwidth, Stream: &state.Stream{Hot: 24}}
			if tc.left != 0 {
				h.Deadline = now.Add(tc.left)
			}
			c := &copying{r: r, entry: state.Entry{Hydration: h}, m: &cachemap.Map{ChunkSectors: 2048, Entries: make([]cachemap.Entry, 1024)}, next: tc.next, from: tc.from}
			if got := c.least(); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

// TestPace: a copy keeps to the lower one of its limit and of the rate at which it gives way.
func TestPace(t *testing.T) {
	for name, tc := range map[string]struct {
		bandwidth, way int64
		want           rate.Limit
	}{
		"no limit":            {0, 0, rate.Inf},
		"its limit":           {8 * mib, 0, 8 * mib},
		"it gives way":        {0, 4 * mib, 4 * mib},
		"its limit is less":   {2 * mib, 4 * mib, 2 * mib},
		"it gives way enough": {8 * mib, 4 * mib, 4 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			c := &copying{r: New(Config{Now: func() time.Time { return now }}), entry: state.Entry{Hydration: &state.Hydration{Bandwidth: tc.bandwidth, Stream: &state.Stream{}}}}
			c.limit = rate.NewLimiter(rate.Inf, 4096)
			c.gives = giving{reads: func() (blockdev.Reads, error) { return blockdev.Reads{}, nil }, began: now, yielding: yielding{rate: tc.way}}
			if err := c.pace(t.Context(), 4096); err != nil || c.limit.Limit() != tc.want {
				t.Errorf("%v, %v, want %v", c.limit.Limit(), err, tc.want)
			}
			// From now on it looks at the clock at least 64 times a second, and for each MiB.
			unit := mib
			if tc.want != rate.Inf {
				unit = int(tc.want) / looksPerSecond
			}
			for come := 4096; come <= 2*mib; come += 4096 {
				before := c.gives.copied
				if err := c.pace(t.Context(), 4096); err != nil {
					t.Fatal(err)
				}
				if looked := c.gives.copied > before; looked != (come%unit == 0) {
					t.Fatalf("after %d bytes it looked at the clock: %v; it is to do so every %d", come, looked, unit)
				}
			}
		})
	}
}
