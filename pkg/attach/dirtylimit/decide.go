package dirtylimit

import "time"

// Level is what happens to a volume's dirty blocks (states.md, The dirty limit). The table
// that is live tells it.
type Level string

const (
	// Writeback: smq in writeback mode, as asked for.
	Writeback Level = "writeback"
	// Writethrough: smq in writethrough mode. No block becomes dirty any more; smq cleans
	// in pauses of the volume, and the hotness of the blocks is kept.
	Writethrough Level = "writethrough"
	// Draining: cleaner in writethrough mode, which cleans under load too.
	Draining Level = "draining"
)

const (
	// highPercent and lowPercent are the marks in percent of the limit. What is between
	// highPercent and the limit is for what becomes dirty until another table is live.
	highPercent, lowPercent = 75, 40
	// reaction is the time for which growth is foreseen: until the next look, and
	// until a table is swapped.
	reaction = 300 * time.Millisecond
	// patience is how long smq may clean by itself before the cleaner does it,
	// and rest the least time at a level before one that lets more become dirty.
	patience, rest = 3 * time.Second, 3 * time.Second

	// pollLeast is the pause between two looks at a volume that may be near its limit,
	// pollMost at any volume with one.
	pollLeast, pollMost = 100 * time.Millisecond, time.Second
	// fastestDirty is how fast, in bytes per second, a volume of which nothing is known
	// may become dirty: it decides how early it is looked at again.
	fastestDirty = 2 << 30
)

// facts are what decide rests on.
type facts struct {
	// Bytes and Age are the limit; 0 is none.
	Bytes int64
	Age   time.Duration
	// Level is what is live, and Since how long it has been.
	Level Level
	Since time.Duration
	// Dirty is what the origin does not have, in bytes, and Growth by how much that
	// grows in a second.
	Dirty, Growth int64
	// DirtyFor is the time since nothing was dirty.
	DirtyFor time.Duration
	// Recovered is true of a cache of which each further table calls every block dirty.
	Recovered bool
}

// decide is the table "The dirty limit" of states.md, in its order.
func decide(f facts) Level {
	switch {
	case f.Age > 0 && f.Dirty > 0 && f.DirtyFor >= f.Age:
		return Draining
	case f.Level == Writeback:
		switch {
		case f.Bytes == 0 || f.Dirty < highMark(f.Bytes) && f.Dirty+foreseen(f.Growth) < f.Bytes:
			return Writeback
		case f.Recovered:
			return Draining
		}
		return Writethrough
	case f.Recovered:
		return Draining // until the cache is made anew: each level begins with everything dirty
	case f.Since < rest:
		return f.Level
	case f.Dirty <= lowMark(f.Bytes):
		return Writeback
	case f.Level == Writethrough && f.Bytes == 0:
		return Writeback // nothing wants it
	case f.Level == Writethrough && f.Since >= patience:
		return Draining
	}
	return f.Level
}

// highMark is what no volume is let above, and lowMark where writes may make blocks
// dirty again; without a limit of bytes, that is when nothing is dirty.
func highMark(limit int64) int64 { return limit / 100 * highPercent }
func lowMark(limit int64) int64  { return limit / 100 * lowPercent }

// foreseen is what becomes dirty before a decision is in effect.
func foreseen(growth int64) int64 { return growth / 1000 * reaction.Milliseconds() }

// pollAfter is when a volume of which so much may be dirty must be looked at again, so
// that it is still below the high mark then.
func pollAfter(limit, dirty int64) time.Duration {
	if limit == 0 {
		return pollMost
	}
	free := max(highMark(limit)-dirty, 0)
	return min(max(time.Duration(float64(free)/fastestDirty*float64(time.Second)), pollLeast), pollMost)
}
