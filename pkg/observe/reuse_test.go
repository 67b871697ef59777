package observe

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/reuse"
)

// known is what is known of a volume that reads a tenth of itself, and writes as often.
func known(at time.Time) *reuse.Summary {
	return &reuse.Summary{
		Since: noon.Add(-time.Hour), At: at, AreaBytes: 1 << 18, ChunkBytes: 1 << 17,
		Windows: []reuse.WindowSummary{
			{Window: reuse.Hour, Reads: 1000.4, Writes: 1000, ReadBytes: 8192.3, WriteBytes: 4096, Hits: [6]float64{0.1, 0.5, 0.994, 1, 1, 1}, Again: 1, KneeBytes: 100 << 20, KneeHits: 0.99, FlushesPerHour: 59.7, FlushesKnown: true,
				AtMost: [9]float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.994}, AtMostKnown: true,
			},
			{Window: reuse.Day, Writes: 5000, WriteBytes: 4096},
		},
	}
}

func TestStatusReuse(t *testing.T) {
	want := v1alpha1.Reuse{
		SinceTime: metav1.NewTime(noon.Add(-time.Hour)), ObservedTime: metav1.NewTime(noon), AreaBytes: ptr.To(int64(1 << 18)), ChunkBytes: ptr.To(int64(1 << 17)),
		Windows: []v1alpha1.ReuseWindow{
			{
				Window: v1alpha1.ReuseHour, Operations: ptr.To(int64(2000)), WritePercent: ptr.To(int32(50)), ReadBytes: ptr.To(int64(8192)), WriteBytes: ptr.To(int64(4096)),
				HitPercents: []int32{10, 50, 99, 100, 100, 100}, AgainPercent: ptr.To(int32(100)), KneeBytes: ptr.To(int64(100 << 20)), KneeHitPercent: ptr.To(int32(99)), FlushesPerHour: ptr.To(int64(60)),
				ReadSizePercents: []int32{10, 20, 30, 40, 50, 60, 70, 80, 99},
			},
			{Window: v1alpha1.ReuseDay, Operations: ptr.To(int64(5000)), WritePercent: ptr.To(int32(100)), WriteBytes: ptr.To(int64(4096))},
		},
	}
	if diff := cmp.Diff(want, Status(Sample{Reuse: known(noon)}, noon).Reuse); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Status(Sample{}, noon).Reuse; !got.ObservedTime.IsZero() {
		t.Errorf("of a volume that nobody looks at: %+v", got)
	}
	if got, want := len(v1alpha1.ReuseFractions()), len(reuse.Fractions); got != want {
		t.Fatalf("%d sizes in the API, %d here", got, want)
	}
	for i, f := range v1alpha1.ReuseFractions() {
		if f != reuse.Fractions[i] {
			t.Errorf("size %d is %d %% in the API, %d %% here", i, f, reuse.Fractions[i])
		}
	}
	if got := v1alpha1.ReuseReadSizes(); !slices.Equal(got, reuse.Sizes[:]) {
		t.Errorf("sizes of reads: %v in the API, %v here", got, reuse.Sizes)
	}
}

// TestNewReuse: what changes with each look is written once in ten minutes, and only if it changes.
func TestNewReuse(t *testing.T) {
	before := Status(Sample{Reuse: known(noon)}, noon).Reuse
	for name, c := range map[string]struct {
		after  time.Duration
		change func(*v1alpha1.Reuse)
		want   bool
	}{
		"nothing":               {time.Hour, func(*v1alpha1.Reuse) {}, false},
		"a point":               {time.Hour, func(r *v1alpha1.Reuse) { r.Windows[0].HitPercents[1]++ }, false},
		"points":                {time.Hour, func(r *v1alpha1.Reuse) { r.Windows[0].HitPercents[1] += 2 }, true},
		"points, too soon":      {9 * time.Minute, func(r *v1alpha1.Reuse) { r.Windows[0].HitPercents[1] += 2 }, false},
		"a window":              {time.Hour, func(r *v1alpha1.Reuse) { r.Windows = r.Windows[:1] }, true},
		"another window":        {time.Hour, func(r *v1alpha1.Reuse) { r.Windows[1].Window = v1alpha1.ReuseWeek }, true},
		"writes":                {time.Hour, func(r *v1alpha1.Reuse) { r.Windows[1].WritePercent = ptr.To(int32(90)) }, true},
		"sizes of reads":        {time.Hour, func(r *v1alpha1.Reuse) { r.Windows[0].ReadSizePercents = nil }, true},
		"read again":            {time.Hour, func(r *v1alpha1.Reuse) { r.Windows[0].AgainPercent = ptr.To(int32(90)) }, true},
		"reads for the first":   {time.Hour, func(r *v1alpha1.Reuse) { r.Windows[1].HitPercents = r.Windows[0].HitPercents }, true},
		"nobody looks any more": {-time.Hour, func(r *v1alpha1.Reuse) { *r = v1alpha1.Reuse{} }, false},
	} {
		after := *before.DeepCopy()
		after.ObservedTime = metav1.NewTime(noon.Add(c.after))
		c.change(&after)
		if got := newReuse(before, after); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !newReuse(v1alpha1.Reuse{}, before) {
		t.Error("what is known for the first time is not written")
	}
}
