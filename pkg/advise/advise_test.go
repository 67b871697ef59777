package advise

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// curve is a window of a day with such hit rates.
func curve(writes, again int32, hits ...int32) v1alpha1.ReuseWindow {
	w := v1alpha1.ReuseWindow{
		Window: v1alpha1.ReuseDay, Operations: ptr(int64(100000)), WritePercent: &writes, ReadBytes: ptr(int64(8192)), WriteBytes: ptr(int64(8192)),
	}
	if len(hits) > 0 {
		w.HitPercents, w.AgainPercent = hits, &again
	}
	return w
}

// knee gives a window one.
func knee(w v1alpha1.ReuseWindow, bytes int64, hit int32) v1alpha1.ReuseWindow {
	w.KneeBytes, w.KneeHitPercent = &bytes, &hit
	return w
}

// seen are facts of a volume of 100 GiB on a pool of 200 GiB, with a cache of a tenth.
func seen(windows ...v1alpha1.ReuseWindow) Facts {
	return Facts{
		Now: now, Attached: true, Capacity: 100 * gib, Pool: 200 * gib, Mode: v1alpha1.CacheModeWritethrough, Size: 10 * gib,
		Reuse: v1alpha1.Reuse{
			SinceTime: metav1.NewTime(now.Add(-48 * time.Hour)), ObservedTime: metav1.NewTime(now.Add(-time.Minute)),
			ChunkBytes: ptr(128 * 1024 * int64(1)), AreaBytes: ptr(128 * 1024 * int64(1)), Windows: windows,
		},
	}
}

func with(f Facts, change func(*Facts)) Facts {
	change(&f)
	return f
}

func TestDecide(t *testing.T) {
	zipf := knee(curve(5, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62)
	uniform := curve(0, 99, 1, 5, 10, 25, 50, 99)
	scan := curve(0, 3, 0, 0, 1, 1, 1, 2)
	for name, c := range map[string]struct {
		facts   Facts
		verdict Verdict
		mode    v1alpha1.CacheMode
		size    int64
		hit     int32
		resize  bool
		change  bool
		reason  string
	}{
		"nowhere":                     {with(seen(zipf), func(f *Facts) { f.Attached = false }), Unknown, "", 0, 0, false, false, "attached nowhere"},
		"nobody has looked":           {with(seen(), func(f *Facts) { f.Reuse = v1alpha1.Reuse{} }), Unknown, "", 0, 0, false, false, "no node has looked"},
		"of no size":                  {with(seen(zipf), func(f *Facts) { f.Capacity = 0 }), Unknown, "", 0, 0, false, false, "how large"},
		"looked for minutes":          {with(seen(), func(f *Facts) { f.Reuse.SinceTime = metav1.NewTime(now.Add(-10 * time.Minute)) }), Unknown, "", 0, 0, false, false, "looked for 10m, and half an hour is the least"},
		"hardly used":                 {seen(), Unknown, "", 0, 0, false, false, "looked for 2d, and seen fewer than a thousand"},
		"a week is asked for":         {with(seen(zipf), func(f *Facts) { f.Window = v1alpha1.ReuseWeek }), Unknown, "", 0, 0, false, false, "half a week is the least"},
		"zipf":                        {seen(zipf), Cache, v1alpha1.CacheModeWritethrough, 6 * gib, 62, true, false, "all of the volume would answer 98 %"},
		"zipf, without a cache":       {with(seen(zipf), func(f *Facts) { f.Mode, f.Size = v1alpha1.CacheModeNone, 0 }), Cache, v1alpha1.CacheModeWritethrough, 6 * gib, 62, true, true, "more would help less"},
		"zipf, as it is":              {with(seen(zipf), func(f *Facts) { f.Size = 6*gib + 500*mib }), Cache, v1alpha1.CacheModeWritethrough, 6 * gib, 62, false, false, "more would help less"},
		"zipf, maximum":               {with(seen(zipf), func(f *Facts) { f.MaxCache = gib }), Cache, v1alpha1.CacheModeWritethrough, gib, 40, true, false, "6Gi would be better"},
		"zipf, tiny pool":             {with(seen(zipf), func(f *Facts) { f.Pool = 100 * mib }), NoCache, v1alpha1.CacheModeNone, 0, 0, false, true, "is more than there can be, 100Mi"},
		"uniform, room for all":       {seen(uniform), Cache, v1alpha1.CacheModeWritethrough, 100 * gib, 99, true, false, "spread evenly"},
		"uniform, far too large":      {with(seen(uniform), func(f *Facts) { f.Pool = 20 * gib }), NoCache, v1alpha1.CacheModeNone, 0, 0, false, true, "a cache will not help here, because the reads are spread evenly over 100Gi: the largest that is possible, 20Gi, would answer 20 %"},
		"scan":                        {seen(scan), NoCache, v1alpha1.CacheModeNone, 0, 0, false, true, "a cache will not help here, because 98 % of the reads are of data that was not read before"},
		"scan, without a cache":       {with(seen(scan), func(f *Facts) { f.Mode, f.Size = v1alpha1.CacheModeNone, 0 }), NoCache, v1alpha1.CacheModeNone, 0, 0, false, false, "will not help"},
		"too coarse to say":           {with(seen(curve(0, 95, 0, 1, 2, 4, 8, 15)), func(f *Facts) { f.Reuse.AreaBytes = ptr(32 * mib) }), Unknown, "", 0, 0, false, false, "between 15 % and 95 % of the reads could hit; reads are counted in areas of 32Mi"},
		"writes alone":                {seen(curve(100, 0)), NoCache, v1alpha1.CacheModeNone, 0, 0, false, true, "100 % of the operations are writes"},
		"writes alone, writeback":     {with(seen(curve(97, 90, 10, 10, 10, 10, 10, 10)), func(f *Facts) { f.Mode, f.Consent = v1alpha1.CacheModeWriteback, true }), Cache, v1alpha1.CacheModeWriteback, 10 * gib, -1, false, false, "the cache is for writes"},
		"many writes":                 {seen(knee(curve(40, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62)), Cache, v1alpha1.CacheModeWritethrough, 6 * gib, 62, true, false, ""},
		"many writes, consent":        {with(seen(knee(curve(40, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62)), func(f *Facts) { f.Consent = true }), Cache, v1alpha1.CacheModeWriteback, 6 * gib, 62, true, true, ""},
		"few writes, writeback":       {with(seen(zipf), func(f *Facts) { f.Mode = v1alpha1.CacheModeWriteback }), Cache, v1alpha1.CacheModeWriteback, 6 * gib, 62, true, false, ""},
		"the longest window is meant": {seen(v1alpha1.ReuseWindow{Window: v1alpha1.ReuseHour, WritePercent: ptr(int32(0)), HitPercents: []int32{0, 0, 0, 0, 0, 0}, AgainPercent: ptr(int32(0))}, zipf), Cache, v1alpha1.CacheModeWritethrough, 6 * gib, 62, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := Decide(c.facts)
			if a.Verdict != c.verdict || a.Mode != c.mode || a.SizeBytes != c.size || a.Resize != c.resize || a.ChangeMode != c.change || !strings.Contains(a.Reason, c.reason) {
				t.Errorf("%+v", a)
			}
			if hit := value(a.HitPercent); c.hit >= 0 && hit != c.hit {
				t.Errorf("hit rate %d, want %d", hit, c.hit)
			}
			if (a.Verdict == NoCache) != strings.Contains(a.Reason, "a cache will not help here, because") {
				t.Errorf("%s: %q", a.Verdict, a.Reason)
			}
		})
	}
}

// TestDecideWrites: who has not consented is told of writeback, and gets it not.
func TestDecideWrites(t *testing.T) {
	a := Decide(seen(knee(curve(40, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62)))
	if !a.Writeback || a.Mode != v1alpha1.CacheModeWritethrough || !strings.Contains(a.ModeReason, "40 % of the operations are writes: writeback would") {
		t.Errorf("%+v", a)
	}
	if a := Decide(seen(knee(curve(5, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62))); a.Writeback {
		t.Errorf("few writes: %+v", a)
	}
}

// TestDecideFlushes: an application that waits for each write gains little by writeback.
func TestDecideFlushes(t *testing.T) {
	w := knee(curve(40, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62)
	// 40,000 writes of a day that fades, of which two were looked at: 1930 an hour.
	for flushes, want := range map[int64]string{
		900:  "40 % of the operations are writes, 900 flushes (fsync) come in an hour: writeback would answer them",
		1000: "40 % of the operations are writes, 1000 flushes (fsync) come in an hour: writeback would gain little",
	} {
		w.FlushesPerHour = &flushes
		if a := Decide(seen(w)); !strings.HasPrefix(a.ModeReason, want) || a.Writeback != (flushes == 900) {
			t.Errorf("%d flushes: %+v", flushes, a)
		}
	}
	if a := Decide(with(seen(w), func(f *Facts) { f.Consent, f.Mode = true, v1alpha1.CacheModeWriteback })); a.Mode != v1alpha1.CacheModeWriteback {
		t.Errorf("%+v", a)
	}
}

func TestDecideNotes(t *testing.T) {
	zipf := knee(curve(0, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62)
	zipf.ReadBytes = ptr(300 * 1024 * int64(1))
	f := with(seen(zipf), func(f *Facts) { f.Reuse.AreaBytes, f.Mode = ptr(32*mib), v1alpha1.CacheModeNone })
	notes := strings.Join(Decide(f).Notes, "\n")
	for _, want := range []string{"a read has 300Ki on average, a chunk 128Ki: a volume that is made anew may have chunkSize 524288", "areas of 32Mi"} {
		if !strings.Contains(notes, want) {
			t.Errorf("%q lacks %q", notes, want)
		}
	}
	big := with(seen(knee(zipf, 400*gib, 62)), func(f *Facts) { f.Capacity, f.Pool = 4000*gib, 0 })
	if notes := strings.Join(Decide(big).Notes, "\n"); !strings.Contains(notes, "at most a million") {
		t.Errorf("notes %q", notes)
	}
	if notes := Decide(seen(knee(curve(0, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62))).Notes; len(notes) > 0 {
		t.Errorf("notes %q", notes)
	}
}

// TestLength: what is advised rests on the sizes of reads, and on their mean where nobody counts those.
func TestLength(t *testing.T) {
	const kib = int64(1) << 10
	for name, c := range map[string]struct {
		sizes       []int32
		mean, chunk int64
		area        int64
		mode        v1alpha1.CacheMode
		want        string
	}{
		"short reads":                  {sizes: []int32{50, 95, 100, 100, 100, 100, 100, 100, 100}, chunk: 128 * kib},
		"as long as a chunk":           {sizes: []int32{0, 0, 0, 0, 0, 100, 100, 100, 100}, mean: 128 * kib, chunk: 128 * kib},
		"short ones and a long mean":   {sizes: []int32{80, 80, 80, 80, 80, 80, 80, 80, 80}, mean: 128 * kib, chunk: 128 * kib},
		"half are longer":              {sizes: []int32{50, 50, 50, 50, 50, 50, 50, 50, 100}, chunk: 128 * kib},
		"most are longer":              {sizes: []int32{0, 10, 10, 10, 10, 40, 60, 80, 99}, chunk: 128 * kib, want: "60 % of the reads are longer than a chunk of 128Ki: a volume that is made anew may have chunkSize 524288;"},
		"all are longer than counted":  {sizes: []int32{0, 0, 0, 0, 0, 0, 0, 0, 0}, chunk: 128 * kib, want: "100 % of the reads are longer than a chunk of 128Ki: a volume that is made anew may have chunkSize 1048576;"},
		"longer than any advised":      {sizes: []int32{0, 0, 0, 0, 0, 0, 0, 0, 0}, chunk: 1024 * kib},
		"a size that is not counted":   {sizes: []int32{0, 0, 0, 0, 0, 100, 100, 100, 100}, chunk: 96 * kib},
		"far shorter":                  {sizes: []int32{10, 92, 95, 95, 95, 95, 95, 95, 100}, chunk: 1024 * kib, want: "92 % of the reads have at most 8Ki, and a chunk of 1Mi is fetched as a whole: a volume that is made anew may have chunkSize 131072;"},
		"shorter than a half":          {sizes: []int32{0, 0, 0, 0, 0, 0, 0, 100, 100}, chunk: 1024 * kib},
		"far shorter than a small one": {sizes: []int32{100, 100, 100, 100, 100, 100, 100, 100, 100}, chunk: 128 * kib},
		"a mean, without a cache":      {mean: 300 * kib, chunk: 128 * kib, area: 1024 * kib, mode: v1alpha1.CacheModeNone, want: "a read has 300Ki on average, a chunk 128Ki: a volume that is made anew may have chunkSize 524288;"},
		"a mean as long as areas":      {mean: 128 * kib, chunk: 128 * kib, mode: v1alpha1.CacheModeNone, want: "a read has 128Ki on average, and one of more than 128Ki counts as several"},
		"large chunks":                 {sizes: []int32{0, 0, 0, 0, 0, 0, 0, 0, 0}, chunk: 8192 * kib},
		// The kernel counts a read of several chunks as one for each.
		"a mean, with a cache": {mean: 85 * kib, chunk: 128 * kib, want: "a read has 85Ki on average, and one of more than 128Ki counts as several"},
		"a mean below a chunk": {mean: 64 * kib, chunk: 128 * kib},
	} {
		t.Run(name, func(t *testing.T) {
			w := knee(curve(0, 98, 40, 60, 70, 82, 90, 98), 6*gib, 62)
			w.ReadSizePercents, w.ReadBytes = c.sizes, &c.mean
			got := strings.Join(Decide(with(seen(w), func(f *Facts) {
				area := max(c.area, c.chunk)
				if f.Reuse.ChunkBytes, f.Reuse.AreaBytes = &c.chunk, &area; c.mode != "" {
					f.Mode = c.mode
				}
			})).Notes, "\n")
			got, _, _ = strings.Cut(got, "\nreads are counted in areas")
			if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestHit(t *testing.T) {
	w := curve(0, 100, 10, 50, 60, 70, 80, 100)
	for part, want := range map[float64]int32{0: 0, 0.005: 5, 0.01: 10, 0.03: 30, 0.1: 60, 0.75: 90, 1: 100, 2: 100} {
		if got := Hit(&w, part); got != want {
			t.Errorf("%v: %d, want %d", part, got, want)
		}
	}
	if got := Hit(&v1alpha1.ReuseWindow{}, 1); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}
