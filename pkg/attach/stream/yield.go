package stream

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// A copy of a cache in use gives way to the pod (states.md, A stream gives way): it shares the
// node's processors, its network and its SSD with the pod's reads, most of which go to the origin
// as long as the copy lasts. It keeps to the rate at which a read takes little longer than without
// it. How long that is it learns by resting now and then.
const (
	// window is how long reads are watched before the rate is decided anew.
	window = 200 * time.Millisecond
	// idlePercent is how much of a window a read was under way, at most, in which the pod counts
	// as idle; idleWindows is after how many of them what was learned is forgotten.
	idlePercent, idleWindows = 12, 25
	// restSoon is after how many windows the copy rests for the second time, which doubles with
	// each time up to restEvery: while the pod starts, reads are slow by that alone.
	restSoon, restEvery = 3, 24
	// slowerPercent is how long a read may take beside the copy, of what it takes without. This is
	// a mean: the slowest reads suffer much more.
	slowerPercent = 110
	// fast is what no read is taken to be faster than: an SSD takes as long.
	fast = 200 * time.Microsecond
	// least is the lowest rate, in bytes per second, and leastHot that of the first level, which is
	// the hottest part and spares the pod more waiting than it causes.
	least, leastHot = 4 << 20, 8 << 20
	// more is what is added to the rate at once, in bytes per second, or an eighth of it.
	more = 1 << 20
)

// observed is what a window has shown.
type observed struct {
	reads blockdev.Reads
	took  time.Duration
	// copied is the rate of the copy in it, and least the lowest one now, in bytes per second.
	copied, least int64
}

// idle reports whether the pod hardly waits for reads. One that waits for few slow reads is not.
func (o observed) idle() bool {
	if o.reads.Requests == 0 {
		return o.reads.InFlight == 0
	}
	return o.reads.Took*100 < o.took*idlePercent
}

// yielding is how a copy gives way at the moment. The zero value does not.
type yielding struct {
	// rate is in bytes per second.
	rate int64
	// rests: the copy stands still for this window.
	rests bool
	// alone is how long a read took at the last rests, the last one first; 0 is none.
	alone [3]time.Duration
	// since are the windows since the last rest, every is how many are to be between two, and idle
	// is in how many of the last ones the pod was.
	since, every, idle int
}

// limit is the rate that the copy keeps to, 0 is none.
func (y yielding) limit() int64 {
	if y.idle > 0 {
		return 0
	}
	return y.rate
}

// usual is how long a read takes without the copy, once it has rested: the median of the last
// rests, the lower one of two.
func (y yielding) usual() time.Duration {
	known := slices.DeleteFunc(slices.Sorted(slices.Values(y.alone[:])), func(d time.Duration) bool { return d == 0 })
	return known[(len(known)-1)/2]
}

// next decides what the copy does in the window after one.
func (y yielding) next(o observed) yielding {
	y.since++
	rested := y.rests
	if y.rests = false; rested {
		y.since, y.every = 0, min(max(2*y.every, restSoon), restEvery)
	}
	if o.idle() {
		if y.idle++; y.idle >= idleWindows {
			return yielding{}
		}
		return y
	}
	if y.idle = 0; y.rate == 0 {
		y.rate = o.copied / 8
	}
	switch took := o.mean(); {
	case rested:
		y.alone = [3]time.Duration{max(took, fast), y.alone[0], y.alone[1]}
	case y.since >= y.every:
		y.rests = true
	case y.alone[0] != 0:
		y = y.adjust(took, o)
	}
	y.rate = max(y.rate, o.least)
	return y
}

// mean is how long a read took. None is complete of those that take longer than the window.
func (o observed) mean() time.Duration {
	if o.reads.Requests == 0 {
		return o.took
	}
	return o.reads.Mean()
}

// adjust sets the rate by how long reads took in a window. That varies: if three windows of ten are
// slow by chance, the rate stays what it is.
func (y yielding) adjust(took time.Duration, o observed) yielding {
	switch usual := y.usual(); {
	case took > usual*slowerPercent/100:
		y.rate = min(y.rate, max(o.copied, o.least))
		if took > 2*usual {
			y.rate /= 2
		} else {
			y.rate -= y.rate / 4
		}
	case y.alone[1] != 0 && o.copied >= y.rate/2: // else something else holds it back
		y.rate += max(more, y.rate/8)
	}
	return y
}

// giving is what a copy does by it.
type giving struct {
	// reads are those of the pod so far.
	reads func() (blockdev.Reads, error)
	// least is the lowest rate now.
	least func() int64
	yielding
	// began is when the window did; before is what had been read and copied by then.
	began  time.Time
	before blockdev.Reads
	copied int64
	failed bool
}

// settle waits while the pod is being started, for d at most: what starts it needs the node's
// processors. A pod that waits for reads has started.
func (g *giving) settle(ctx context.Context, d time.Duration) error {
	before, failed := g.reads()
	for range d / window {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(window):
		}
		reads, err := g.reads()
		if err == nil && failed == nil && !(observed{reads: reads.Since(before), took: window}).idle() {
			return nil
		}
		before, failed = reads, err
	}
	return nil
}

// way waits while the copy rests, and returns the rate that it keeps to, 0 is none. A device
// whose counts cannot be read is not given way to.
func (g *giving) way(ctx context.Context, now func() time.Time, chunk int) (int64, error) {
	if took := now().Sub(g.began); took >= window {
		g.decide(ctx, now(), took)
	}
	for g.rests {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(window - now().Sub(g.began)):
		}
		g.decide(ctx, now(), max(now().Sub(g.began), window))
	}
	g.copied += int64(chunk)
	return g.limit(), nil
}

// decide ends a window and begins the next.
func (g *giving) decide(ctx context.Context, now time.Time, took time.Duration) {
	reads, err := g.reads()
	switch {
	case err != nil:
		if g.yielding = (yielding{}); !g.failed {
			klog.FromContext(ctx).Error(err, "A copy does not give way to the pod: its reads cannot be counted")
		}
	case !g.began.IsZero() && !g.failed:
		g.yielding = g.next(observed{reads: reads.Since(g.before), took: took, copied: int64(float64(g.copied) / took.Seconds()), least: g.least()})
	}
	g.began, g.before, g.copied, g.failed = now, reads, 0, err != nil
}
