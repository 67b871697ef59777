package bench

import "time"

const (
	// warmWindow is how long the volume is read between two looks at it, and flatWindows how many
	// windows have to be like as many before them.
	warmWindow  = 5 * time.Second
	flatWindows = 3
	// flatPoints is the difference of two hit rates, in points, that counts as none; flatShare that of
	// two rates of requests, where no hit rate is known; fillShare is what of the cache may be filled
	// meanwhile.
	flatPoints = 1.0
	flatShare  = 0.05
	fillShare  = 0.01
)

// Window is what one round of reading showed.
type Window struct {
	// Seconds is when it ended, from the beginning of the first.
	Seconds float64 `json:"seconds"`
	// HitPercent is that of reads, or of writes where there are no reads; absent if it is not known.
	HitPercent *float64 `json:"hitPercent,omitempty"`
	IOPS       float64  `json:"iops"`
	// UsedBytes and SizeBytes are of the cache; 0 if they are not known.
	UsedBytes int64 `json:"usedBytes,omitempty"`
	SizeBytes int64 `json:"sizeBytes,omitempty"`
}

// Warmth says whether a cache is warm.
type Warmth struct {
	// Flat tells that it is; By what says so, or what is still missing.
	Flat bool   `json:"flat"`
	By   string `json:"by"`
}

// Judge windows: flat is what does not change from three of them to the next three. Three, because a
// cache that begins to promote looks flat for one; a cache that still fills is not warm, however
// slowly its hit rate grows.
func warmth(windows []Window) Warmth {
	if len(windows) < 2*flatWindows {
		return Warmth{By: "too few windows"}
	}
	last := windows[len(windows)-2*flatWindows:]
	before, after := last[:flatWindows], last[flatWindows:]
	from, to := before[flatWindows-1], after[flatWindows-1]
	if to.SizeBytes > 0 && float64(to.UsedBytes-from.UsedBytes) > fillShare*float64(to.SizeBytes) {
		return Warmth{By: "the cache fills"}
	}
	a, known := meanHits(before)
	b, alsoKnown := meanHits(after)
	if known && alsoKnown {
		return Warmth{Flat: abs(b-a) <= flatPoints, By: "hit rate"}
	}
	x, y := meanIOPS(before), meanIOPS(after)
	return Warmth{Flat: abs(y-x) <= flatShare*max(x, y), By: "requests per second, as the hit rate is not known"}
}

func meanHits(windows []Window) (float64, bool) {
	sum := 0.0
	for _, w := range windows {
		if w.HitPercent == nil {
			return 0, false
		}
		sum += *w.HitPercent
	}
	return sum / float64(len(windows)), true
}

func meanIOPS(windows []Window) float64 {
	sum := 0.0
	for _, w := range windows {
		sum += w.IOPS
	}
	return sum / float64(len(windows))
}

func abs(x float64) float64 { return max(x, -x) }
