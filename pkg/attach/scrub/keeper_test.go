package scrub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// world is a node with one volume, whose cache is a bench's: block i of the cache holds block i+1 of
// the origin.
type world struct {
	*Keeper
	*bench

	t       *testing.T
	now     time.Time
	cache   Cache
	volumes []Volume
	// maps is how often the map was read.
	maps int
	// settle ends what a pod has under way.
	settle func()
	// write is what a pod writes before each step.
	write      func(step int)
	steps      int
	judgeErr   error
	reportErr  error
	reports    []volume.ScrubReport
	failedOver string
	// failErr are the errors of the next failovers.
	failErr []error
	orders  []Order
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, bench: newBench(false), now: time.Unix(1e9, 0), volumes: []Volume{{ID: "v", Request: "r"}}}
	w.cache = Cache{
		Verdict: Compare, ID: "one", Top: "nf-v", Data: "data", Origin: "origin", Writethrough: true,
		ChunkSectors: testBlock / 512, DataSectors: 4 * testBlock / 512, OriginSectors: 5 * testBlock / 512,
	}
	w.Keeper = &Keeper{Host: w, Judge: w, Open: w.open, Now: func() time.Time { return w.now }}
	return w
}

func (w *world) open(path string, _ int) (blockdev.File, error) {
	if path == "data" {
		return w.ssd, nil
	}
	return w.remote, nil
}

func (w *world) Due(context.Context) ([]Volume, error) { return w.volumes, nil }

func (w *world) Look(context.Context, Volume) (Cache, func(), error) { return w.cache, func() {}, nil }

func (w *world) Map(context.Context, Volume, Cache) (cachemap.Map, error) {
	w.maps++
	m := cachemap.Map{ChunkSectors: w.cache.ChunkSectors, CacheBlocks: 4}
	for i, b := range w.mapped {
		if b.Mapped {
			m.Entries = append(m.Entries, cachemap.Entry{Cache: uint64(i), Origin: b.Origin})
		}
		if b.Dirty && w.suspendedBefore() {
			m.DirtyBlocks, m.Dirty = append(m.DirtyBlocks, uint64(i)), m.Dirty+1
		}
	}
	return m, nil
}

// suspendedBefore: the metadata know what is dirty since the device was suspended.
func (w *world) suspendedBefore() bool { return len(w.orders) > 0 }

func (w *world) FailOver(_ context.Context, _ volume.ID, cause string) error {
	if len(w.failErr) > 0 {
		err := w.failErr[0]
		w.failErr = w.failErr[1:]
		return err
	}
	w.failedOver, w.cache.Verdict = cause, NoCache
	return nil
}

func (w *world) Report(_ context.Context, v Volume, r volume.ScrubReport) error {
	if w.reportErr != nil {
		return w.reportErr
	}
	w.reports = append(w.reports, r)
	if r.Done {
		w.volumes, w.listed = nil, time.Time{}
	}
	return nil
}

// Judge implements Judge with a guard over memory.
func (w *world) Judge(_ context.Context, o Order) (Result, error) {
	w.orders = append(w.orders, o)
	if w.judgeErr != nil {
		return Result{}, w.judgeErr
	}
	if w.settle != nil {
		w.settle()
	}
	g := newBench(o.Renew)
	g.ssd, g.remote, g.mapped, g.guard.order = w.ssd, w.remote, w.mapped, o
	g.data, g.origin = w.ssd, w.remote
	g.order.Meta, g.order.Data, g.order.Origin = "/dev/dm-1", "/dev/dm-2", "/dev/dm-3"
	if !w.cache.Writethrough {
		g.becomes(devmapper.CacheTarget{Mode: devmapper.Writeback})
	}
	return g.run()
}

func (w *world) Left(context.Context) ([]volume.ID, error) { return nil, nil }
func (w *world) Recover(context.Context, volume.ID) error  { return nil }

// passes takes steps until nothing is due, or so many were taken.
func (w *world) passes(most int) {
	w.t.Helper()
	for range most {
		if w.write != nil {
			w.write(w.steps)
		}
		w.steps++
		pause, _ := w.Step(w.t.Context())
		w.now = w.now.Add(max(pause, 10*time.Millisecond))
		if len(w.volumes) == 0 {
			return
		}
	}
}

func (w *world) last() volume.ScrubReport {
	w.t.Helper()
	if n := len(w.reports); n > 0 && w.reports[n-1].Done {
		return w.reports[n-1]
	}
	w.t.Fatalf("no end: %+v", w.reports)
	return volume.ScrubReport{}
}

func TestKeeperIntact(t *testing.T) {
	w := newWorld(t)
	w.passes(1000)
	if r := w.last(); r.CheckedBytes != 4*testBlock || r.Corrupted+r.Renewed+r.Unjudged != 0 || len(w.reports) != 1 || len(w.orders) > 0 {
		t.Errorf("%+v, %d suspensions", w.reports, len(w.orders))
	}
}

// TestKeeperFinds: a finding is told before it is replaced, and the end has it too.
func TestKeeperFinds(t *testing.T) {
	w := newWorld(t)
	w.ssd.b[2*testBlock+7] ^= 4
	w.passes(5000)
	r := w.last()
	if r.Corrupted != 1 || r.Renewed != 1 || w.ssd.b[2*testBlock+7] != w.remote.b[3*testBlock+7] {
		t.Errorf("%+v", r)
	}
	if first := w.reports[0]; first.Renewed != 0 || !strings.Contains(first.Message, fmt.Sprint(3*testBlock)) {
		t.Errorf("%+v", first)
	}
	if len(w.orders) != 2 || w.orders[0].Renew || !w.orders[1].Renew {
		t.Errorf("%+v", w.orders)
	}
	if u := w.Uses(); len(u) != 1 || u[0].Corrupted != 1 || u[0].Suspensions != 2 {
		t.Errorf("%+v", u)
	}
}

// TestKeeperUntold: what could not be told of is not replaced, and is found again.
func TestKeeperUntold(t *testing.T) {
	w := newWorld(t)
	w.ssd.b[7] ^= 4
	w.reportErr = errors.New("no API server")
	w.passes(300)
	if w.ssd.writes > 0 {
		t.Error("the evidence was replaced")
	}
	w.reportErr = nil
	w.passes(5000)
	w.passes(5000)
	if w.last(); w.ssd.writes == 0 && w.reports[0].Message == "" {
		t.Errorf("%+v", w.reports)
	}
}

// TestKeeperWrites: a pod writes to what is compared all the time, in every order of SSD and origin.
func TestKeeperWrites(t *testing.T) {
	for _, only := range []string{"ssd first", "origin first", "always"} {
		w := newWorld(t)
		w.write = func(step int) {
			at := step % 4 * testBlock
			ssd, origin := only != "origin first" || step%2 == 1, only != "ssd first" || step%2 == 1
			if step > 40 && only != "always" {
				ssd, origin = true, true
			}
			if only == "always" {
				w.ssd.b[at] = byte(step)
			}
			if ssd {
				w.ssd.b[at+5000] = byte(step)
			}
			if origin {
				w.remote.b[at+testBlock+5000] = byte(step)
			}
		}
		w.settle = func() {
			for at := 5000; at < len(w.ssd.b); at += testBlock {
				w.remote.b[at+testBlock] = w.ssd.b[at]
			}
		}
		if only == "always" {
			// The kernel ends what is under way before the device is suspended.
			w.judgeErr = errors.New("never suspended")
		}
		w.passes(5000)
		for _, r := range w.reports {
			if r.Corrupted > 0 || r.Message != "" {
				t.Errorf("%s: %+v", only, r)
			}
		}
		if only == "always" && w.last().Unjudged == 0 {
			t.Errorf("%s: what never came to rest was judged: %+v", only, w.last())
		}
	}
}

// TestKeeperDirty: dirty blocks are written down first, left alone, and never replaced.
func TestKeeperDirty(t *testing.T) {
	w := newWorld(t)
	w.cache.Writethrough, w.cache.Dirty = false, true
	w.mapped[1].Dirty = true
	w.ssd.b[testBlock+9] ^= 1
	w.write = func(step int) {
		if step == 2 { // behind the map
			w.mapped[3].Dirty = true
			w.ssd.b[3*testBlock+9] ^= 1
		}
	}
	before := append([]byte{}, w.ssd.b...)
	w.passes(5000)
	if r := w.last(); r.Corrupted+r.Renewed+r.Unjudged > 0 || r.CheckedBytes == 0 {
		t.Errorf("%+v", r)
	}
	before[3*testBlock+9] ^= 1
	if string(before) != string(w.ssd.b) || w.ssd.writes > 0 {
		t.Error("a dirty block was touched")
	}
	if len(w.orders) == 0 || len(w.orders[0].Pieces) > 0 {
		t.Errorf("what is dirty was not written down first: %+v", w.orders)
	}
}

// TestKeeperNotKept: an SSD that keeps nothing loses its cache.
func TestKeeperNotKept(t *testing.T) {
	w := newWorld(t)
	w.ssd.lossy = true
	w.ssd.b[7] ^= 4
	w.passes(5000)
	if told := w.reports[1]; !told.NotKept || w.failedOver == "" {
		t.Errorf("%+v, failed over %q", told, w.failedOver)
	}
	if told := w.last(); !told.NotKept || told.Message == "" {
		t.Errorf("the end tells of another SSD: %+v", told)
	}
}

// TestKeeperFailOverFails: a failover that fails is tried again, by another scrub.
func TestKeeperFailOverFails(t *testing.T) {
	w := newWorld(t)
	w.ssd.lossy, w.failErr = true, []error{errors.New("the journal cannot be written")}
	w.ssd.b[7] ^= 4
	w.passes(5000)
	if w.failedOver == "" || !w.last().NotKept {
		t.Errorf("failed over %q, %+v", w.failedOver, w.reports)
	}
}

// TestKeeperWriteback: what differs in a writeback cache is told of and not replaced, because the
// storage server may be the one that has lost it.
func TestKeeperWriteback(t *testing.T) {
	w := newWorld(t)
	w.cache.Writethrough = false
	clear(w.remote.b[2*testBlock : 2*testBlock+4096]) // looks discarded
	for at := 4 * testBlock; at < 4*testBlock+512; at++ {
		w.remote.b[at] ^= 0x55 // what the server had before the write that it lost
	}
	before := append([]byte{}, w.ssd.b...)
	w.passes(5000)
	r := w.last()
	if r.Corrupted != 1 || !r.Untouched || r.Renewed != 0 || r.Discarded != 1 || r.Unjudged != 0 || r.NotKept || w.failedOver != "" {
		t.Errorf("%+v, failed over %q", r, w.failedOver)
	}
	if w.ssd.writes > 0 || string(before) != string(w.ssd.b) {
		t.Error("the only right copy, as it may be, was replaced")
	}
	if first := w.reports[0]; first.Done || !strings.Contains(first.Message, "nothing is replaced") || !strings.Contains(first.Message, fmt.Sprint(4*testBlock)) {
		t.Errorf("%+v", first)
	}
	for _, o := range w.orders {
		if o.Renew {
			t.Errorf("%+v", o)
		}
	}
	if u := w.Uses(); len(u) != 1 || u[0].Corrupted != 1 || u[0].Discarded != 1 {
		t.Errorf("%+v", u)
	}
}

// TestKeeperAnotherCache: what a scrub knows of a cache is not used for the next one, of whichever
// stage.
func TestKeeperAnotherCache(t *testing.T) {
	for name, change := range map[string]func(*Cache){
		"made anew":      func(c *Cache) { c.ID = "two" },
		"other blocks":   func(c *Cache) { c.ChunkSectors /= 2 },
		"another length": func(c *Cache) { c.DataSectors *= 2 },
		"another place":  func(c *Cache) { c.Meta = "other" },
		"another mode":   func(c *Cache) { c.Writethrough = false },
	} {
		for _, until := range []func(*run) bool{
			func(r *run) bool { return r.m != nil },
			func(r *run) bool { return len(r.suspects) > 0 },
			func(r *run) bool { return len(r.renew) > 0 },
		} {
			w := newWorld(t)
			w.ssd.b[7] ^= 4
			for r := (*run)(nil); r == nil || !until(r); r = w.runs["v"] {
				if w.passes(1); w.steps > 5000 {
					t.Fatalf("%s: the scrub does not come there", name)
				}
			}
			orders, old := len(w.orders), w.runs["v"]
			change(&w.cache)
			for range 3 {
				w.passes(1)
			}
			if len(w.orders) > orders || w.ssd.writes > 0 || w.runs["v"] == old {
				t.Errorf("%s: the scrub goes on: %+v", name, w.orders)
			}
		}
	}
	w := newWorld(t)
	w.ssd.b[7] ^= 4
	w.write = func(step int) { w.cache.Dirty, w.cache.Discards = step%2 == 0, step%3 == 0 }
	if w.passes(5000); w.last().Renewed != 1 {
		t.Errorf("begun anew though it is the same cache: %+v", w.reports)
	}
}

// TestKeeperWaits: nothing is read while the cache may not be compared, and others go on meanwhile.
func TestKeeperWaits(t *testing.T) {
	for verdict, done := range map[Verdict]bool{Wait: false, Gone: false, NoCache: true} {
		w := newWorld(t)
		w.cache.Verdict = verdict
		w.ssd.b[7] ^= 4
		w.passes(300)
		if w.ssd.reads+w.remote.reads+w.maps+len(w.orders) > 0 || (len(w.reports) > 0) != done {
			t.Errorf("%s: %d reads, %d suspensions, %+v", verdict, w.ssd.reads, len(w.orders), w.reports)
		}
		if verdict == Wait {
			w.cache.Verdict = Compare
			w.passes(5000)
			if w.last().Corrupted != 1 {
				t.Errorf("%+v", w.reports)
			}
		}
	}
}

// TestKeeperRate: the pauses keep the rate.
func TestKeeperRate(t *testing.T) {
	w := newWorld(t)
	w.Rate = testBlock
	began := w.now
	w.passes(1000)
	if took := w.now.Sub(began); took < 4*time.Second || took > 8*time.Second {
		t.Errorf("4 blocks at one a second took %s", took)
	}
}

func TestDecideStage(t *testing.T) {
	now := time.Unix(1e9, 0)
	whole, none := &cachemap.Map{Entries: make([]cachemap.Entry, 3)}, []suspect(nil)
	some := make([]suspect, 3)
	fresh := []suspect{{at: now}}
	cases := map[string]struct {
		r     run
		dirty bool
		want  stage
	}{
		"begins":                        {run{}, false, stageMap},
		"begins with dirty blocks":      {run{}, true, stageWriteDown},
		"dirty blocks are written down": {run{written: true, suspendedAt: now}, true, stageMap},
		"suspended of late":             {run{suspendedAt: now}, true, stageRest},
		"compares":                      {run{m: whole}, true, stageCompare},
		"compares first":                {run{m: whole, suspects: some}, false, stageCompare},
		"enough suspects":               {run{m: whole, suspects: make([]suspect, MostPieces)}, false, stageJudge},
		"enough, but suspended of late": {run{m: whole, suspects: make([]suspect, MostPieces), suspendedAt: now}, false, stageCompare},
		"looks again":                   {run{m: whole, next: 3, pending: some}, false, stageCompare},
		"looks again later":             {run{m: whole, next: 3, pending: fresh, suspects: some}, false, stageRest},
		"the last suspects":             {run{m: whole, next: 3, suspects: some}, false, stageJudge},
		"the last suspects, later":      {run{m: whole, next: 3, suspects: some, suspendedAt: now}, false, stageRest},
		"suspended too often":           {run{m: whole, next: 3, suspects: some, suspensions: mostSuspensions}, false, stageDone},
		"renews":                        {run{m: whole, renew: some, suspensions: mostSuspensions}, false, stageRenew},
		"renews later":                  {run{m: whole, next: 3, renew: some, suspendedAt: now}, false, stageRest},
		"done":                          {run{m: whole, next: 3, suspects: none}, true, stageDone},
		"an empty cache":                {run{m: &cachemap.Map{}}, false, stageDone},
	}
	for name, tc := range cases {
		tc.r.every = time.Second
		if got := decideStage(&tc.r, tc.dirty, now); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// TestUseful: a map that was torn, or is another cache's, is not gone by.
func TestUseful(t *testing.T) {
	c := Cache{ChunkSectors: 128, DataSectors: 1280}
	for name, m := range map[string]cachemap.Map{
		"other chunks":   {ChunkSectors: 256},
		"behind the end": {ChunkSectors: 128, Entries: []cachemap.Entry{{Cache: 10}}},
	} {
		if err := useful(m, c); !errors.Is(err, devmapper.ErrMetadata) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := useful(cachemap.Map{ChunkSectors: 128, Entries: []cachemap.Entry{{Cache: 9}}}, c); err != nil {
		t.Error(err)
	}
}

// TestKeeperUnreadable: what one side does not return is no finding. The SSD's is gone past, and for
// the origin's is waited.
func TestKeeperUnreadable(t *testing.T) {
	w := newWorld(t)
	w.ssd.readErr = errors.New("medium error")
	w.passes(300)
	if r := w.last(); r.Unjudged != 4 || r.CheckedBytes != 0 || r.Corrupted > 0 {
		t.Errorf("%+v", r)
	}
	w = newWorld(t)
	w.remote.readErr = errors.New("no path")
	w.passes(300)
	if len(w.reports) > 0 {
		t.Errorf("%+v", w.reports)
	}
	w.remote.readErr = nil
	w.passes(300)
	if r := w.last(); r.Unjudged > 0 || r.CheckedBytes != 4*testBlock {
		t.Errorf("%+v", r)
	}
}
