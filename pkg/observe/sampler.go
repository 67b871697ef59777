package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/reuse"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// passEvery is the pause of the background passes, from which the recent
	// figures are made.
	passEvery = 15 * time.Second
	// passFresh is how long a pass is good for all who ask.
	passFresh = time.Second
	// passTimeout bounds a pass: an SSD that does not answer holds up dmsetup.
	passTimeout = 5 * time.Second
	// hungPause is how long dmsetup is left alone after it took too long: each one
	// that waits for an SSD stays until the SSD answers.
	hungPause = time.Minute
	// saveEvery is how often the background saves totals that changed, and
	// saveForScrape the least time between two saves on behalf of scrapes.
	saveEvery, saveForScrape = 30 * time.Second, 5 * time.Second
)

// Kernel is what a Sampler reads; devmapper.Client is one.
type Kernel interface {
	StatusAll(ctx context.Context) (map[string]devmapper.CacheStatus, error)
	StatsAll(ctx context.Context, prefix string) (map[string]devmapper.Stats, error)
}

// Config are the sources of a Sampler.
type Config struct {
	Kernel Kernel
	// Volumes lists what the journal knows. With an error, it returns what it
	// could read, and no volume is forgotten.
	Volumes func() ([]Volume, error)
	// Reuse returns what is known of a volume's reuse; nil if nobody looks.
	Reuse func(volume.ID) (s reuse.Summary, found bool)
	// Dir is a directory of its own on a disk that outlives the machine's
	// reboots.
	Dir string
	Now func() time.Time
}

// Sampler keeps the totals of a node's volumes. It is safe for concurrent use.
type Sampler struct {
	cfg   Config
	store *journal.Store[state]
	// lock is held while it is full; unlike a mutex it can be waited for with a
	// context.
	lock chan struct{}
	// begun counts the passes that were begun.
	begun atomic.Int64

	// All below is guarded by lock.
	state   state
	windows map[volume.ID]*windows
	// last is the latest pass, durable the latest whose totals are saved.
	last, durable Snapshot
	// unsaved is true if the totals are not those of the file.
	unsaved bool
	savedAt time.Time
	saveErr error
	// hung is what was said when dmsetup took too long, nil if it did not, and
	// hungAt when.
	hung   error
	hungAt time.Time
}

// windows are the recent totals of a volume.
type windows struct {
	counts window[Counts]
	io     map[Device]*window[IO]
}

// Open loads the totals of earlier runs. If their file is corrupt they begin at
// zero; the file is kept, and the first pass says so. Those of a newer version are
// kept for it, and nothing is saved here.
func Open(c Config) (*Sampler, error) {
	store, st, err := openState(c.Dir)
	if err != nil && !errors.Is(err, journal.ErrCorrupt) && !errors.Is(err, journal.ErrNewer) {
		return nil, err
	}
	return &Sampler{
		cfg: c, store: store, lock: make(chan struct{}, 1), state: st, windows: map[volume.ID]*windows{},
		saveErr: err, unsaved: err != nil,
	}, nil
}

// Run takes a pass every 15 seconds until ctx ends, and saves what changed. After
// each pass it calls then, if given.
func (s *Sampler) Run(ctx context.Context, then func(context.Context, Snapshot)) {
	passes.Repeat(ctx, passEvery, func(ctx context.Context) error {
		snap := s.background(ctx)
		if then != nil && ctx.Err() == nil {
			then(ctx, snap)
		}
		return snap.Err
	}, func(err error) { klog.FromContext(ctx).Error(err, "Volumes could not be measured completely") })
	s.close(ctx)
}

func (s *Sampler) background(ctx context.Context) Snapshot {
	if err := s.acquire(ctx); err != nil {
		return Snapshot{Err: err}
	}
	defer s.release()
	s.pass(ctx, passFresh)
	if s.cfg.Now().Sub(s.savedAt) >= saveEvery {
		s.save()
	}
	return s.withSaveError(s.last)
}

// close saves the totals of a plugin that ends.
func (s *Sampler) close(ctx context.Context) {
	if err := s.acquire(context.WithoutCancel(ctx)); err != nil {
		return
	}
	defer s.release()
	if s.save(); s.saveErr != nil {
		klog.FromContext(ctx).Error(s.saveErr, "Totals of the volumes could not be saved")
	}
}

// Scrape returns a pass whose totals are durable. Those who ask within a second
// share one pass, and within five seconds one save: until then they get what was
// saved last. If nothing can be saved, the figures are served all the same, and
// the snapshot's Err says so.
func (s *Sampler) Scrape(ctx context.Context) Snapshot {
	if err := s.acquire(ctx); err != nil {
		return Snapshot{Err: fmt.Errorf("measure volumes: %w", err)}
	}
	defer s.release()
	s.pass(ctx, passFresh)
	if s.durable.Time.IsZero() || s.cfg.Now().Sub(s.savedAt) >= saveForScrape {
		s.save()
	}
	switch {
	case s.saveErr != nil:
		return s.withSaveError(s.last)
	case s.unsaved:
		return s.durable
	}
	return s.last
}

// Current returns a pass of this second, which those share who ask within one. Unlike Scrape it
// saves nothing: its totals may go back after a power cut, its recent figures do not. Who gives up
// ends no pass: others wait for it, and it may not count as one of an SSD that hangs.
func (s *Sampler) Current(ctx context.Context) Snapshot {
	if err := s.acquire(ctx); err != nil {
		return Snapshot{Err: fmt.Errorf("measure volumes: %w", err)}
	}
	defer s.release()
	s.pass(context.WithoutCancel(ctx), passFresh)
	return s.last
}

// Final takes the last counts of a volume and saves them. It is called just
// before the volume's cache gets another table or is taken down: what was counted
// since the pass before would be lost. It is best effort, and takes no longer
// than ctx allows.
func (s *Sampler) Final(ctx context.Context, id volume.ID) {
	log := klog.FromContext(ctx)
	asked := s.begun.Load()
	if err := s.acquire(ctx); err != nil {
		log.Info("Last counts of the volume not taken", "volume", id, "reason", err.Error())
		return
	}
	defer s.release()
	s.passSince(ctx, asked)
	s.save()
	if err := s.withSaveError(s.last).Err; err != nil {
		log.Info("Last counts of the volume may be incomplete", "volume", id, "reason", err.Error())
	}
}

// Count takes a pass now. Unlike Final it does not wait for a disk.
func (s *Sampler) Count(ctx context.Context) {
	asked := s.begun.Load()
	if err := s.acquire(ctx); err != nil {
		return
	}
	defer s.release()
	s.passSince(ctx, asked)
}

// passSince takes a pass, unless one was begun and done since asked passes had been
// begun: that has what was counted until then. A pass reads all volumes, and all
// volumes of a node may leave it at the same time. The caller holds the lock.
func (s *Sampler) passSince(ctx context.Context, asked int64) {
	if s.begun.Load() == asked || s.last.Err != nil {
		s.pass(ctx, 0)
	}
}

// DirtySince is when the cache of a volume was last seen without a dirty block, also
// by a plugin before this one: nothing that is dirty is older. It is zero if that is
// not known.
func (s *Sampler) DirtySince(ctx context.Context, id volume.ID) time.Time {
	if err := s.acquire(ctx); err != nil {
		return time.Time{}
	}
	defer s.release()
	if vs := s.state.Volumes[id]; vs != nil {
		return vs.Clean
	}
	return time.Time{}
}

func (s *Sampler) acquire(ctx context.Context) error {
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sampler) release() { <-s.lock }

func (s *Sampler) withSaveError(snap Snapshot) Snapshot {
	if s.saveErr != nil {
		snap.Err = errors.Join(snap.Err, s.saveErr)
	}
	return snap
}

// save makes the totals durable; the caller holds the lock.
func (s *Sampler) save() {
	s.savedAt = s.cfg.Now()
	if s.unsaved {
		if s.saveErr = s.store.Save(stateKey, s.state); s.saveErr != nil {
			return
		}
		s.unsaved = false
	}
	s.durable = s.last
}

// pass reads the kernel unless the last pass is younger than fresh; the caller
// holds the lock.
func (s *Sampler) pass(ctx context.Context, fresh time.Duration) {
	began := s.cfg.Now()
	if age := began.Sub(s.last.Time); age >= 0 && age < fresh {
		return
	}
	s.begun.Add(1)
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	// The journal first: if a table is swapped meanwhile, counters of the new one
	// meet the old activation, which shows; the other way round it would not.
	volumes, listErr := s.cfg.Volumes()
	status, statusErr := s.status(ctx, began)
	stats, statsErr := s.cfg.Kernel.StatsAll(ctx, layout.DevicePrefix)
	now := s.cfg.Now()
	snap := Snapshot{Time: now, Err: errors.Join(listErr, statusErr, statsErr)}
	slices.SortFunc(volumes, func(a, b Volume) int { return strings.Compare(string(a.ID), string(b.ID)) })
	known := make(map[volume.ID]bool, len(volumes))
	for _, v := range volumes {
		known[v.ID] = true
		st, active := layout.CacheStatus(status, v.ID)
		if st.Unparsed != "" {
			snap.Err = errors.Join(snap.Err, fmt.Errorf("status of volume %s cannot be read: %q", v.ID, st.Unparsed))
		}
		var cache *devmapper.CacheStatus
		if active && !st.Silent {
			cache = &st
		}
		sample := s.sample(v, cache, stats, now)
		if st.Silent {
			snap.Err = errors.Join(snap.Err, fmt.Errorf("volume %s: its device does not answer", v.ID))
		}
		if statusErr != nil || st.Silent {
			sample.Cache = s.lastCache(v.ID)
		}
		if s.cfg.Reuse != nil && v.Attached {
			if known, found := s.cfg.Reuse(v.ID); found {
				sample.Reuse = &known
			}
		}
		snap.Volumes = append(snap.Volumes, sample)
	}
	if listErr == nil {
		s.forget(known)
	}
	snap.Duration = s.cfg.Now().Sub(began)
	s.last = snap
}

// status reads the status of all caches, unless that took too long lately.
func (s *Sampler) status(ctx context.Context, now time.Time) (map[string]devmapper.CacheStatus, error) {
	if s.hung != nil && now.Sub(s.hungAt) < hungPause && !now.Before(s.hungAt) {
		return nil, s.hung
	}
	status, err := s.cfg.Kernel.StatusAll(ctx)
	s.hung, s.hungAt = nil, now
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, hostexec.ErrStuck) {
		s.hung = err
	}
	return status, err
}

// lastCache is what the pass before saw: a dmsetup that fails says nothing about
// the health of a cache.
func (s *Sampler) lastCache(id volume.ID) *Cache {
	for i := range s.last.Volumes {
		if s.last.Volumes[i].ID == id {
			return s.last.Volumes[i].Cache
		}
	}
	return nil
}

// forget drops what the journal does not know any more.
func (s *Sampler) forget(known map[volume.ID]bool) {
	for id := range s.state.Volumes {
		if !known[id] {
			delete(s.state.Volumes, id)
			delete(s.windows, id)
			s.unsaved = true
		}
	}
}
