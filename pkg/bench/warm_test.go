package bench

import "testing"

// windows are of a cache of 1000 bytes, of which used has data; hits below 0 are not known.
func windows(used int64, hits ...float64) []Window {
	var out []Window
	for _, h := range hits {
		w := Window{IOPS: 1000, UsedBytes: used, SizeBytes: 1000}
		if h >= 0 {
			w.HitPercent = &h
		}
		out = append(out, w)
	}
	return out
}

func TestWarmth(t *testing.T) {
	for name, c := range map[string]struct {
		windows []Window
		want    bool
		by      string
	}{
		"none":                          {windows: nil, by: "too few windows"},
		"five are too few":              {windows: windows(500, 90, 90, 90, 90, 90), by: "too few windows"},
		"six that are the same":         {windows: windows(500, 90, 90, 90, 90, 90, 90), want: true, by: "hit rate"},
		"the beginning does not count":  {windows: windows(500, 0, 10, 40, 70, 90, 90, 90, 90.5, 90.2, 90), want: true, by: "hit rate"},
		"it grows fast":                 {windows: windows(500, 0, 10, 20, 30, 40, 50), by: "hit rate"},
		"it grows slowly":               {windows: windows(500, 0, 0.4, 0.8, 1.2, 1.6, 2), by: "hit rate"},
		"it falls":                      {windows: windows(500, 90, 90, 90, 80, 80, 80), by: "hit rate"},
		"noise":                         {windows: windows(500, 90, 92, 88, 91, 89, 90), want: true, by: "hit rate"},
		"the cache fills":               {windows: append(windows(500, 50, 50, 50), windows(520, 50, 50, 50)...), by: "the cache fills"},
		"the cache hardly fills":        {windows: append(windows(500, 50, 50, 50), windows(505, 50, 50, 50)...), want: true, by: "hit rate"},
		"only requests, the same":       {windows: windows(500, -1, -1, -1, -1, -1, -1), want: true, by: "requests per second, as the hit rate is not known"},
		"one hit rate is not known":     {windows: windows(500, 90, 90, -1, 90, 90, 90), want: true, by: "requests per second, as the hit rate is not known"},
		"only requests, more and more":  {windows: []Window{{IOPS: 100}, {IOPS: 110}, {IOPS: 120}, {IOPS: 130}, {IOPS: 140}, {IOPS: 150}}, by: "requests per second, as the hit rate is not known"},
		"nothing is read, and is known": {windows: make([]Window, 6), want: true, by: "requests per second, as the hit rate is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := warmth(c.windows); got.Flat != c.want || got.By != c.by {
				t.Errorf("got %+v", got)
			}
		})
	}
}
