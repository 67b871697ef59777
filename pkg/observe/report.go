package observe

import (
	"cmp"
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Thresholds of a material change. What is below is written along with the next
// change that is material.
const (
	// reportEvery is the least time between two writes for one volume, failed
	// ones included, unless Every says another.
	reportEvery = 30 * time.Second
	// materialPoints is a change of a percentage, of one that is reported or of
	// the cache's size. One point may be rounding.
	materialPoints = 2
	// materialIOPS and materialRate are the change of a rate in operations and as
	// a part of the greater one; it takes both.
	materialIOPS, materialRate = 10, 0.25
	// materialLatency is the factor by which a percentile changes: two buckets of
	// the histogram or more.
	materialLatency = 2
	// reuseEvery is the least time between two writes because the reuse has changed.
	reuseEvery = 10 * time.Minute
)

// Records is where a Reporter writes.
type Records interface {
	// ReportCache replaces status.cache of a volume. Errors: volume.ErrFenced if
	// the record's owner is another node, volume.ErrNotFound, and
	// volume.ErrUnavailable if the API server does not answer.
	ReportCache(ctx context.Context, id volume.ID, node string, st *v1alpha1.CacheStatus) error
}

// Reporter writes what changed materially to the records of the attached
// volumes: at most once in a time (Every) for each, but for the first rates of one that
// was just attached, and nothing while nothing changes. It is not safe for concurrent use.
type Reporter struct {
	// Every is the least time between two writes for one volume; 30 seconds if 0.
	Every time.Duration

	records Records
	node    string
	now     func() time.Time
	written map[volume.ID]*report
	// begun is false until the first pass. The volumes of that one wait before they
	// are reported, for the plugin that ended may just have done so.
	begun bool
}

// report is the last write for a volume.
type report struct {
	// every is the Reporter's.
	every time.Duration
	// status is nil if nothing is known to be there.
	status *v1alpha1.CacheStatus
	// at is the last attempt.
	at time.Time
	// early is true once the first rates did not wait for their turn.
	early bool
	// leftAt is when the volume was first seen to be attached no more, and cleared
	// whether its status has been cleared since.
	leftAt  time.Time
	cleared bool
}

// NewReporter returns a Reporter of a node's volumes.
func NewReporter(r Records, node string, now func() time.Time) *Reporter {
	return &Reporter{records: r, node: node, now: now, written: map[volume.ID]*report{}}
}

// Report writes what is due of a snapshot. It has the form that Sampler.Run
// takes.
func (r *Reporter) Report(ctx context.Context, snap Snapshot) {
	now := r.now()
	seen := map[volume.ID]bool{}
	silent := false
	for _, s := range snap.Volumes {
		if !s.Attached {
			continue
		}
		seen[s.ID] = true
		last := r.of(s.ID, now)
		last.leftAt, last.cleared = time.Time{}, false
		st := Status(s, snap.Time)
		if !silent && decideReport(*last, now, st) {
			last.early = last.early || last.recent(last.at, now)
			silent = !r.write(ctx, s.ID, last, now, &st)
		}
	}
	r.begun = r.begun || !snap.Time.IsZero()
	if snap.Err != nil {
		return // a volume that is missing may not have been read
	}
	for id, last := range r.written {
		if !seen[id] && !silent {
			silent = !r.leave(ctx, id, last, now)
		}
	}
}

func (r *Reporter) of(id volume.ID, now time.Time) *report {
	last := r.written[id]
	if last == nil {
		last = &report{every: r.Every}
		if !r.begun {
			last.at = now
		}
		r.written[id] = last
	}
	return last
}

// leave forgets a volume that is no longer attached. Unstage has cleared its
// status; if it does not come back, this clears a report that was on its way
// meanwhile.
func (r *Reporter) leave(ctx context.Context, id volume.ID, last *report, now time.Time) (answered bool) {
	last.status = nil
	if last.leftAt.IsZero() {
		last.leftAt = now
	}
	switch {
	case last.recent(last.leftAt, now), last.recent(last.at, now):
		return true
	case last.cleared:
		delete(r.written, id)
		return true
	}
	last.cleared = r.write(ctx, id, last, now, nil)
	return last.cleared
}

// recent reports whether less time has passed than between two writes.
func (r *report) recent(at, now time.Time) bool {
	return now.Sub(at) < cmp.Or(r.every, reportEvery) && !now.Before(at)
}

// write reports or clears. It returns false if the API server does not answer:
// it would not answer for other volumes either.
func (r *Reporter) write(ctx context.Context, id volume.ID, last *report, now time.Time, st *v1alpha1.CacheStatus) (answered bool) {
	last.at = now
	err := r.records.ReportCache(ctx, id, r.node, st)
	if err != nil {
		klog.FromContext(ctx).Info("Cache not reported", "volume", id, "reason", err.Error())
		return !errors.Is(err, volume.ErrUnavailable)
	}
	last.status = st
	return true
}

// decideReport says whether a status is written now.
func decideReport(last report, now time.Time, st v1alpha1.CacheStatus) bool {
	if last.recent(last.at, now) {
		return last.status != nil && !last.early && firstRates(*last.status, st)
	}
	return last.status == nil || material(*last.status, st)
}

// firstRates reports whether rates are known for the first time. They take two passes, of which
// the first was reported without them: whoever looks at a new volume would see none for long.
func firstRates(a, b v1alpha1.CacheStatus) bool {
	return a.Performance.ReadIOPS == nil && b.Performance.ReadIOPS != nil
}

func material(a, b v1alpha1.CacheStatus) bool {
	size := float64(max(ptr.Deref(a.SizeBytes, 0), ptr.Deref(b.SizeBytes, 0)))
	part := func(x, y *int64) bool {
		return size > 0 && 100*float64(abs(ptr.Deref(x, 0)-ptr.Deref(y, 0)))/size >= materialPoints
	}
	pa, pb := a.Performance, b.Performance
	switch {
	case a.Mode != b.Mode, a.Health != b.Health, ptr.Deref(a.SizeBytes, -1) != ptr.Deref(b.SizeBytes, -1):
		return true
	case part(a.UsedBytes, b.UsedBytes), part(a.DirtyBytes, b.DirtyBytes):
		return true
	case (ptr.Deref(a.DirtyBytes, 0) > 0) != (ptr.Deref(b.DirtyBytes, 0) > 0):
		return true
	case points(a.HitRate.ReadPercent, b.HitRate.ReadPercent), points(a.HitRate.WritePercent, b.HitRate.WritePercent),
		points(a.HitRate.ReadTotalPercent, b.HitRate.ReadTotalPercent), points(a.HitRate.WriteTotalPercent, b.HitRate.WriteTotalPercent):
		return true
	case newReuse(a.Reuse, b.Reuse):
		return true
	case firstRates(a, b), rate(pa.ReadIOPS, pb.ReadIOPS), rate(pa.WriteIOPS, pb.WriteIOPS):
		return true
	}
	return slower(pa.Volume, pb.Volume) || slower(pa.Hit, pb.Hit) || slower(pa.Miss, pb.Miss)
}

// newReuse reports whether what is known of the reuse is material, and that is not of minutes ago.
func newReuse(a, b v1alpha1.Reuse) bool {
	if b.ObservedTime.Sub(a.ObservedTime.Time) < reuseEvery {
		return false
	}
	if len(a.Windows) != len(b.Windows) {
		return true
	}
	for i, x := range a.Windows {
		y := b.Windows[i]
		if x.Window != y.Window || points(x.WritePercent, y.WritePercent) || points(x.AgainPercent, y.AgainPercent) || allPoints(x.HitPercents, y.HitPercents) || allPoints(x.ReadSizePercents, y.ReadSizePercents) {
			return true
		}
	}
	return false
}

func abs[T int32 | int64](n T) T { return max(n, -n) }

// points compares percentages; that there is one now, or none any more, counts.
func points(a, b *int32) bool {
	if (a == nil) != (b == nil) {
		return true
	}
	return a != nil && abs(*a-*b) >= materialPoints
}

// allPoints compares percentages one by one.
func allPoints(a, b []int32) bool {
	if len(a) != len(b) {
		return true
	}
	for i := range a {
		if points(&a[i], &b[i]) {
			return true
		}
	}
	return false
}

func rate(a, b *int64) bool {
	x, y := ptr.Deref(a, 0), ptr.Deref(b, 0)
	d := abs(x - y)
	return d >= materialIOPS && float64(d) >= materialRate*float64(max(x, y))
}

// slower compares latencies; that a device did nothing in the last minute shows
// in the rates.
func slower(a, b v1alpha1.Latency) bool {
	changed := func(x, y *int64) bool {
		return x != nil && y != nil && max(*x, *y) >= materialLatency*min(*x, *y) && *x != *y
	}
	return changed(a.P50Micros, b.P50Micros) || changed(a.P99Micros, b.P99Micros)
}
