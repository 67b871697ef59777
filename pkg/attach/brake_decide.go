package attach

import "time"

// brakeLevel is what keeps writes from making the cache of a volume dirtier than its
// bound (states.md, The dirty limit). The table that is live tells it.
type brakeLevel string

const (
	// brakeOpen: smq in writeback mode, as asked for.
	brakeOpen brakeLevel = "Open"
	// brakeHold: smq in writethrough mode. No block becomes dirty any more; smq cleans
	// in pauses of the volume, and the hotness of the blocks is kept.
	brakeHold brakeLevel = "Hold"
	// brakeDrain: cleaner in writethrough mode, which cleans under load too.
	brakeDrain brakeLevel = "Drain"
)

const (
	// brakeHigh and brakeLow are the marks in percent of the bound. What is between
	// brakeHigh and the bound is for what becomes dirty until a brake is in effect.
	brakeHigh, brakeLow = 75, 40
	// brakeReaction is the time for which growth is foreseen: until the next look, and
	// until a table is swapped.
	brakeReaction = 300 * time.Millisecond
	// brakePatience is how long smq may clean by itself before the cleaner does it,
	// and brakeRest the least time between two swaps that are no brake.
	brakePatience, brakeRest = 3 * time.Second, 3 * time.Second

	// lookLeast is the pause between two looks at a volume that may be near its bound,
	// lookMost at any bounded volume.
	lookLeast, lookMost = 100 * time.Millisecond, time.Second
	// fastestDirty is how fast, in bytes per second, a volume of which nothing is known
	// may become dirty: it decides how early it is looked at again.
	fastestDirty = 2 << 30
)

// brakeFacts are what decideBrake rests on.
type brakeFacts struct {
	// Bytes and Age are the bound; 0 is none.
	Bytes int64
	Age   time.Duration
	// Level is what is live, and Since how long it has been.
	Level brakeLevel
	Since time.Duration
	// Dirty is what the origin does not have, in bytes, and Growth by how much that
	// grows in a second.
	Dirty, Growth int64
	// DirtyFor is the time since nothing was dirty.
	DirtyFor time.Duration
}

// decideBrake is the table "The dirty limit" of states.md, in its order.
func decideBrake(f brakeFacts) brakeLevel {
	switch {
	case f.Age > 0 && f.Dirty > 0 && f.DirtyFor >= f.Age:
		return brakeDrain
	case f.Level == brakeOpen:
		if f.Bytes > 0 && (f.Dirty >= highMark(f.Bytes) || f.Dirty+foreseen(f.Growth) >= f.Bytes) {
			return brakeHold
		}
		return brakeOpen
	case f.Since < brakeRest:
		return f.Level
	case f.Dirty <= lowMark(f.Bytes):
		return brakeOpen
	case f.Level == brakeHold && f.Bytes == 0:
		return brakeOpen // nothing wants it
	case f.Level == brakeHold && f.Since >= brakePatience:
		return brakeDrain
	}
	return f.Level
}

// highMark is what no volume is let above, and lowMark where writes may make blocks
// dirty again; without a bound of bytes, that is when nothing is dirty.
func highMark(bound int64) int64 { return bound / 100 * brakeHigh }
func lowMark(bound int64) int64  { return bound / 100 * brakeLow }

// foreseen is what becomes dirty before a decision is in effect.
func foreseen(growth int64) int64 { return growth / 1000 * brakeReaction.Milliseconds() }

// lookAfter is when a volume of which so much may be dirty must be looked at again, so
// that it is still below the high mark then.
func lookAfter(bound, dirty int64) time.Duration {
	if bound == 0 {
		return lookMost
	}
	free := max(highMark(bound)-dirty, 0)
	return min(max(time.Duration(float64(free)/fastestDirty*float64(time.Second)), lookLeast), lookMost)
}
