package hydration

import (
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestCopyAtATime(t *testing.T) {
	for name, tc := range map[string]struct {
		ios       uint64
		elapsed   time.Duration
		bandwidth int64
		want      int64
	}{
		"nothing":            {ios: 0, elapsed: tick, want: copyAlone},
		"now and then":       {ios: 4, elapsed: tick, want: copyAlone},
		"a pod at work":      {ios: 5, elapsed: tick, want: CopyBeside},
		"a long look":        {ios: 20, elapsed: 2 * time.Second, want: copyAlone},
		"a look at once":     {ios: 1, elapsed: time.Millisecond, want: CopyBeside},
		"no time has passed": {ios: 0, elapsed: 0, want: CopyBeside},
		"the default limit":  {elapsed: tick, bandwidth: 64 << 20, want: copyAlone},
		"a low limit":        {elapsed: tick, bandwidth: 1 << 20, want: 419430},
		"a lower one":        {elapsed: tick, bandwidth: 1 << 10, want: CopyBeside},
	} {
		t.Run(name, func(t *testing.T) {
			if got := copyAtATime(tc.ios, tc.elapsed, tc.bandwidth); got != tc.want {
				t.Errorf("got %d bytes, want %d", got, tc.want)
			}
		})
	}
	if got := (&state.Hydration{RegionSectors: 64}).Regions(CopyBeside); got != 4 {
		t.Errorf("%d regions of 32 KiB", got)
	}
	if got := (&state.Hydration{RegionSectors: 2048}).Regions(CopyBeside); got != 1 {
		t.Errorf("%d regions of 1 MiB: without one there is no copy", got)
	}
}

// TestHydrationsRemembered: clones are looked at again at once if a copy is near its bandwidth
// or has just begun, and in time if none is.
func TestHydrationsRemembered(t *testing.T) {
	now := time.Now()
	r := newRunner(func() time.Time { return now })
	f := r.memory
	f.begin("v", now)
	if f.remembered(now) != nil {
		t.Error("a hydration that has just begun was not looked at")
	}
	f.remember(map[string]devmapper.CloneStatus{"nf-v.data": {}})
	e := &state.Entry{ID: "v", Hydration: &state.Hydration{RegionSectors: 64, Bandwidth: 64 << 20}}
	memo := f.memo("v")
	poll := func(hydrated uint64) bool {
		now = now.Add(tick)
		r.reckon(e, memo, devmapper.CloneStatus{Hydrated: hydrated, Regions: 1 << 20}, 1)
		return f.remembered(now) != nil
	}
	const mib = 32 // regions
	poll(0)
	poll(1 * mib)
	memo.speed = 14 << 20 // what the copy reached in a pulse
	if !poll(6 * mib) {
		t.Error("a copy far below its bandwidth is looked at again and again")
	}
	if now = now.Add(2*idlePoll + tick); f.remembered(now) != nil {
		t.Error("it was not looked at for too long")
	}
	if poll(1000 * mib) {
		t.Error("a copy beyond its bandwidth is let run")
	}
	poll(1001 * mib)
	f.begin("w", now)
	if f.remembered(now) != nil {
		t.Error("another hydration has begun, and was not looked at")
	}
}

// TestHydrationsSettle: a copy waits for the start of the pod also if the hydration was found
// while its volume was being prestaged.
func TestHydrationsSettle(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		begins []time.Time
		want   bool
	}{
		"begun by the stage":                       {begins: []time.Time{now}, want: true},
		"found in the journal":                     {begins: []time.Time{{}}},
		"found, then begun":                        {begins: []time.Time{{}, now}, want: true},
		"begun, then found":                        {begins: []time.Time{now, {}}, want: true},
		"begun long ago, and again by a new pod's": {begins: []time.Time{now.Add(-time.Hour), now}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(func() time.Time { return now })
			r.Settle = time.Second
			for _, since := range tc.begins {
				r.memory.begin("v", since)
			}
			if got := r.settling(r.memory.memo("v")); got != tc.want {
				t.Errorf("settling: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestHydrationsNearTheEnd: the end of a copy is not noticed seconds later.
func TestHydrationsNearTheEnd(t *testing.T) {
	now := time.Now()
	r := newRunner(func() time.Time { return now })
	const perPoll, total = 100, 1200 // regions
	e, memo := &state.Entry{ID: "v", Hydration: &state.Hydration{RegionSectors: 64}}, &account{}
	for hydrated := uint64(0); hydrated < total; hydrated += perPoll {
		r.reckon(e, memo, devmapper.CloneStatus{Hydrated: hydrated, Regions: total}, 1)
		looks := float64(total-hydrated) / perPoll
		if near := looks*tick.Seconds() < idlePoll.Seconds(); hydrated > 0 && memo.idle == near {
			t.Errorf("%.0f looks before the end: idle %t", looks, memo.idle)
		}
		now = now.Add(tick)
	}
}

// TestHydrationWithoutShape: what was seen of a volume whose stage has just begun anew is the
// clone of the stage before.
func TestHydrationWithoutShape(t *testing.T) {
	r := newRunner(time.Now)
	e := &state.Entry{ID: "v", State: state.Staging, Mode: volume.ModeWritethrough, Hydration: &state.Hydration{From: &volume.WarmSource{Node: "b"}}}
	poll := snapshot{clones: map[string]devmapper.CloneStatus{"nf-v.data": {Regions: 8}}, infos: map[string]devmapper.Info{"nf-v.data": {HasLive: true}}}
	f, err := r.gather(t.Context(), e, &account{known: true}, poll)
	if err != nil || f.Clone || decide(f) != stepNothing {
		t.Errorf("facts %+v, %v", f, err)
	}
}

func newRunner(now func() time.Time) *Runner {
	return New(Config{Now: now, NodeBandwidth: func() int64 { return 0 }})
}
