package observe

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// status is a report of a cache of 1 GiB, changed by a test.
func status(change func(*v1alpha1.CacheStatus)) v1alpha1.CacheStatus {
	st := v1alpha1.CacheStatus{
		Mode: v1alpha1.CacheModeWriteback, Health: v1alpha1.CacheHealthy,
		SizeBytes: ptr.To(int64(1 << 30)), UsedBytes: ptr.To(int64(1 << 29)), DirtyBytes: ptr.To(int64(1 << 20)),
		HitRate: v1alpha1.HitRate{ReadPercent: ptr.To(int32(80)), ReadTotalPercent: ptr.To(int32(70))},
		Performance: v1alpha1.Performance{
			ReadIOPS: ptr.To(int64(1000)), WriteIOPS: ptr.To(int64(3)),
			Hit: v1alpha1.Latency{P50Micros: ptr.To(int64(150)), P99Micros: ptr.To(int64(1000))},
		},
		ObservedTime: metav1.NewTime(noon),
	}
	if change != nil {
		change(&st)
	}
	return st
}

func TestDecideReport(t *testing.T) {
	cases := map[string]struct {
		change func(*v1alpha1.CacheStatus)
		want   bool
	}{
		"nothing":             {nil, false},
		"time":                {func(s *v1alpha1.CacheStatus) { s.ObservedTime = metav1.NewTime(noon.Add(time.Hour)) }, false},
		"mode":                {func(s *v1alpha1.CacheStatus) { s.Mode = v1alpha1.CacheModeWritethrough }, true},
		"health":              {func(s *v1alpha1.CacheStatus) { s.Health = v1alpha1.CacheReadOnly }, true},
		"size":                {func(s *v1alpha1.CacheStatus) { *s.SizeBytes++ }, true},
		"no size":             {func(s *v1alpha1.CacheStatus) { s.SizeBytes = nil }, true},
		"used, little":        {func(s *v1alpha1.CacheStatus) { *s.UsedBytes += 10 << 20 }, false},
		"used, much":          {func(s *v1alpha1.CacheStatus) { *s.UsedBytes += 21 << 20 }, true},
		"dirty, little":       {func(s *v1alpha1.CacheStatus) { *s.DirtyBytes += 10 << 20 }, false},
		"dirty, much":         {func(s *v1alpha1.CacheStatus) { *s.DirtyBytes += 21 << 20 }, true},
		"clean":               {func(s *v1alpha1.CacheStatus) { *s.DirtyBytes = 0 }, true},
		"one point":           {func(s *v1alpha1.CacheStatus) { *s.HitRate.ReadPercent = 81 }, false},
		"two points":          {func(s *v1alpha1.CacheStatus) { *s.HitRate.ReadPercent = 78 }, true},
		"no reads":            {func(s *v1alpha1.CacheStatus) { s.HitRate.ReadPercent = nil }, true},
		"first writes":        {func(s *v1alpha1.CacheStatus) { s.HitRate.WritePercent = ptr.To(int32(0)) }, true},
		"all reads":           {func(s *v1alpha1.CacheStatus) { *s.HitRate.ReadTotalPercent = 72 }, true},
		"rate, little":        {func(s *v1alpha1.CacheStatus) { *s.Performance.ReadIOPS = 1200 }, false},
		"rate, much":          {func(s *v1alpha1.CacheStatus) { *s.Performance.ReadIOPS = 1400 }, true},
		"idle":                {func(s *v1alpha1.CacheStatus) { *s.Performance.ReadIOPS = 0 }, true},
		"a trickle ends":      {func(s *v1alpha1.CacheStatus) { *s.Performance.WriteIOPS = 0 }, false},
		"next bucket":         {func(s *v1alpha1.CacheStatus) { *s.Performance.Hit.P99Micros = 1500 }, false},
		"twice as slow":       {func(s *v1alpha1.CacheStatus) { *s.Performance.Hit.P99Micros = 2000 }, true},
		"latency not known":   {func(s *v1alpha1.CacheStatus) { s.Performance.Hit = v1alpha1.Latency{} }, false},
		"latency known again": {func(s *v1alpha1.CacheStatus) { s.Performance.Miss = s.Performance.Hit }, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before, after := status(nil), status(tc.change)
			last := report{status: &before, at: noon}
			if got := decideReport(last, noon.Add(reportEvery), after); got != tc.want {
				t.Errorf("written: %t, want %t", got, tc.want)
			}
			if decideReport(last, noon.Add(reportEvery-1), after) {
				t.Error("written too soon")
			}
			if !decideReport(report{}, noon, after) {
				t.Error("what was never written is not written")
			}
		})
	}
}

// recorder counts the writes for each volume.
type recorder struct {
	t     *testing.T
	clock *clocktesting.FakePassiveClock
	last  map[volume.ID]time.Time
	n     map[volume.ID]int
	clear map[volume.ID]int
	shown map[volume.ID]*v1alpha1.CacheStatus
	err   error
}

func (r *recorder) ReportCache(_ context.Context, id volume.ID, node string, st *v1alpha1.CacheStatus) error {
	now := r.clock.Now()
	if last, ok := r.last[id]; ok && now.Sub(last) < reportEvery {
		r.t.Errorf("%s was written %v after the last time", id, now.Sub(last))
	}
	if node != "node-a" {
		r.t.Errorf("node %q", node)
	}
	r.last[id] = now
	if st == nil {
		r.clear[id]++
	} else {
		r.n[id]++
	}
	if r.err == nil {
		r.shown[id] = st
	}
	return r.err
}

func newRecorder(t *testing.T) (*recorder, *Reporter) {
	r := &recorder{
		t: t, clock: clocktesting.NewFakePassiveClock(noon), last: map[volume.ID]time.Time{}, n: map[volume.ID]int{},
		clear: map[volume.ID]int{}, shown: map[volume.ID]*v1alpha1.CacheStatus{},
	}
	return r, NewReporter(r, "node-a", r.clock.Now)
}

func (r *recorder) pass(rep *Reporter, samples ...Sample) {
	rep.Report(r.t.Context(), Snapshot{Time: r.clock.Now(), Volumes: samples})
	r.clock.SetTime(r.clock.Now().Add(time.Second))
}

func used(id string, bytes uint64) Sample {
	return Sample{
		Volume: Volume{ID: volume.ID(id), Attached: true, Cached: true, Mode: volume.ModeWritethrough},
		Cache:  &Cache{Health: Healthy, Mode: volume.ModeWritethrough, SizeBytes: 1000, UsedBytes: bytes},
	}
}

// TestReportRate: whatever happens, a volume is written at most every 30 s; an
// idle one is written once.
func TestReportRate(t *testing.T) {
	r, rep := newRecorder(t)
	const seconds = 3600
	for i := range seconds {
		r.err = nil
		if i%700 < 200 {
			r.err = volume.ErrUnavailable
		} else if i%11 == 0 {
			r.err = volume.ErrFenced
		}
		r.pass(rep, used("busy", uint64(i*37%1000)), used("idle", 10), used("coming and going", uint64(i%2*500)))
	}
	if most := seconds/int(reportEvery.Seconds()) + 1; r.n["busy"] > most || r.n["busy"] < most/2 {
		t.Errorf("the busy volume was written %d times, at most %d are allowed", r.n["busy"], most)
	}
	r, rep = newRecorder(t)
	for range seconds {
		r.pass(rep, used("idle", 10))
	}
	if r.n["idle"] != 1 {
		t.Errorf("an idle volume was written %d times", r.n["idle"])
	}
}

// TestReportInterval: a volume that changes all the time is written as seldom as is asked for.
func TestReportInterval(t *testing.T) {
	r, rep := newRecorder(t)
	rep.Every = 5 * time.Minute
	for i := range 3600 {
		r.pass(rep, used("busy", uint64(i*37%1000)))
	}
	if n := r.n["busy"]; n < 10 || n > 13 {
		t.Errorf("written %d times in an hour", n)
	}
}

// TestFirstRates: the rates of a volume that was just attached do not wait for their turn, idle
// as it may be; once, whether the API server answers or not.
func TestFirstRates(t *testing.T) {
	for name, failed := range map[string]error{"written": nil, "not answered": volume.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(noon)
			records := &countingRecords{}
			rep := NewReporter(records, "node-a", clock.Now)
			pass := func(rates bool) {
				s := used("new", 10)
				s.RatesKnown = rates
				rep.Report(t.Context(), Snapshot{Time: clock.Now(), Volumes: []Sample{s}})
				clock.SetTime(clock.Now().Add(passEvery / 4))
			}
			rep.Report(t.Context(), Snapshot{Time: clock.Now()})
			pass(false)
			if records.n != 1 || records.rates {
				t.Fatalf("a new volume is reported at once: %+v", records)
			}
			records.err = failed
			pass(true)
			if records.n != 2 || !records.rates {
				t.Errorf("its first rates are reported at once: %+v", records)
			}
			pass(true)
			if records.n != 2 {
				t.Errorf("reported again, though nothing has changed or nobody answered: %+v", records)
			}
		})
	}
}

// countingRecords count reports.
type countingRecords struct {
	n     int
	rates bool
	err   error
}

func (r *countingRecords) ReportCache(_ context.Context, _ volume.ID, _ string, st *v1alpha1.CacheStatus) error {
	r.n++
	r.rates = st.Performance.ReadIOPS != nil
	return r.err
}

func TestReportLifecycle(t *testing.T) {
	r, rep := newRecorder(t)
	r.pass(rep, used("old", 1))
	if len(r.n) != 0 {
		t.Error("the volumes of a plugin that just started are written at once")
	}
	r.pass(rep, used("old", 1), used("new", 1))
	if r.n["new"] != 1 || r.n["old"] != 0 {
		t.Errorf("writes %v: a new volume is written at once", r.n)
	}
	for range 30 {
		r.pass(rep, used("old", 1), used("new", 1))
	}
	if r.n["old"] != 1 || r.n["new"] != 1 {
		t.Errorf("writes %v", r.n)
	}
	// It leaves and is back soon: unstage has cleared what was written.
	r.pass(rep, used("old", 1))
	for range 60 {
		r.pass(rep, used("old", 1), used("new", 1))
	}
	if r.n["new"] != 2 || r.clear["new"] != 0 {
		t.Errorf("writes %v, cleared %v", r.n, r.clear)
	}
	// It leaves for good; a report that came after unstage is cleared, once.
	retained := used("new", 1)
	retained.Attached = false
	for range 100 {
		r.pass(rep, used("old", 1), retained)
	}
	if r.n["new"] != 2 || r.clear["new"] != 1 || r.shown["new"] != nil {
		t.Errorf("writes %v, cleared %v", r.n, r.clear)
	}
	// Nothing is cleared because the journal could not be read.
	for range 100 {
		rep.Report(t.Context(), Snapshot{Time: r.clock.Now(), Err: fmt.Errorf("journal")})
		r.clock.SetTime(r.clock.Now().Add(time.Second))
	}
	if r.clear["old"] != 0 {
		t.Error("a volume that could not be read was cleared")
	}
}

func TestStatus(t *testing.T) {
	s := Sample{
		Volume: Volume{Mode: volume.ModeWriteback, Cached: true},
		Cache: &Cache{
			Health: NeedsCheck, Mode: volume.ModeWritethrough, SizeBytes: 1000, UsedBytes: 500, DirtyBytes: 10, DirtySince: noon,
		},
		Hits:     HitRatios{Read: Ratio{Value: 0.994, Known: true}, WriteTotal: Ratio{Value: 1, Known: true}},
		Latency:  map[Device]Latency{DeviceSSD: {P50: 150 * time.Microsecond, P99: 2 * time.Millisecond, Known: true}},
		ReadIOPS: 10.6, RatesKnown: true,
	}
	want := v1alpha1.CacheStatus{
		Mode: v1alpha1.CacheModeWritethrough, Health: v1alpha1.CacheNeedsCheck,
		SizeBytes: ptr.To(int64(1000)), UsedBytes: ptr.To(int64(500)), DirtyBytes: ptr.To(int64(10)), DirtySinceTime: metav1.NewTime(noon),
		HitRate: v1alpha1.HitRate{ReadPercent: ptr.To(int32(99)), WriteTotalPercent: ptr.To(int32(100))},
		Performance: v1alpha1.Performance{
			ReadIOPS: ptr.To(int64(11)), WriteIOPS: ptr.To(int64(0)),
			Hit: v1alpha1.Latency{P50Micros: ptr.To(int64(150)), P99Micros: ptr.To(int64(2000))},
		},
		ObservedTime: metav1.NewTime(noon),
	}
	if diff := cmp.Diff(want, Status(s, noon)); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	failed := Status(Sample{Volume: Volume{Mode: volume.ModeWriteback, Cached: true}, Cache: &Cache{Health: Failed}}, noon)
	if failed.Mode != v1alpha1.CacheModeWriteback || failed.Health != v1alpha1.CacheFailed || failed.SizeBytes != nil {
		t.Errorf("failed cache: %+v", failed)
	}
	plain := Status(Sample{Volume: Volume{Mode: volume.ModeNone}}, noon)
	if plain.Mode != v1alpha1.CacheModeNone || plain.Health != "" {
		t.Errorf("no cache: %+v", plain)
	}
}
