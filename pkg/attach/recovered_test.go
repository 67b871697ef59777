package attach_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/dirtylimit"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// crashedLife is a life whose node has stopped below a pod with unflushed writes. Disasters are
// those of what follows.
func crashedLife(t testing.TB, d ...disaster) *life {
	l := newLife(t, volume.ModeWriteback)
	l.req = l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, l.req))
	l.a.podWrites(1, 1, 2, 3)
	l.a.powerLoss()
	l.a.start()
	l.next = d
	l.arm()
	return l
}

// running has the volume staged, if its node has lost its power.
func (l *life) running(p *plugin) error { return l.stageUnlessRunning(l.a, p, l.req) }

// whileRunning has a process do something with the staged volume, and may end in the middle.
func (l *life) whileRunning(what string, do func(p *plugin) error) {
	l.t.Helper()
	l.persist(l.a, what, func(p *plugin) error {
		if err := l.running(p); err != nil {
			return err
		}
		return do(p)
	})
}

// grow has the volume grow.
func (l *life) grow(size int64) {
	l.t.Helper()
	l.lun.Grow(size)
	_, err := l.control.Expand(l.ctx, volumeID, size)
	l.must("expand at the storage server", err)
}

// expand has a process expand it, which may end in the middle.
func (l *life) expand() {
	l.t.Helper()
	l.whileRunning("expand", func(p *plugin) error {
		_, err := p.Expand(l.ctx, volume.ExpandRequest{ID: volumeID, Path: staging, Block: false})
		return err
	})
}

// heldAfterCrash is the life of a volume that is flushed for a hold after its node has stopped,
// and expanded while it is held.
func (l *life) heldAfterCrash() {
	l.t.Helper()
	l.persist(l.a, "stage", l.running)
	l.a.podReads()
	l.hold("t")
	l.whileRunning("flush", func(p *plugin) error {
		if _, err := p.Change(l.ctx); err != nil {
			return err
		}
		if obj := l.record(); obj.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty || obj.Status.Flush.Request != "t" {
			return errNotApplied
		}
		return nil
	})
	write := func(value uint64, at ...int64) {
		l.t.Helper()
		l.a.podWrites(value, at...)
		l.wantClean()
		l.compare("the storage server", l.lun)
	}
	write(2, 1, 2)
	l.grow(2 * lunBytes)
	l.expand()
	write(3, 1, 3)
	l.whileRunning("change", func(p *plugin) error {
		_, err := p.Change(l.ctx)
		return err
	})
	write(4, 2, 4)
	l.hold("")
	l.whileRunning("let go", func(p *plugin) error {
		if _, err := p.Change(l.ctx); err != nil {
			return err
		}
		return l.asAsked(l.a)
	})
	l.a.podWrites(5, 1, 5)
	l.a.podReads()
	l.leave(l.a)
}

// TestKillHeldAfterCrash ends the plugin, or its node, before and after everything that it changes
// in that life. Each table over a recovered cache would call all of it dirty.
func TestKillHeldAfterCrash(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			killEachOf(t, func(d ...disaster) *life { return crashedLife(t, d...) }, power, (*life).heldAfterCrash, nil)
		})
	}
}

// writethroughAfterCrash has a recovered cache flushed for another mode: the cleaner stays.
func writethroughAfterCrash(t testing.TB) *life {
	l := crashedLife(t)
	l.must("stage after a crash", l.a.Stage(l.ctx, l.req))
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode = v1alpha1.CacheModeWritethrough })
	l.persist(l.a, "writethrough", l.apply)
	return l
}

// status is that of the live cache.
func (l *life) status() (s devmapper.CacheStatus, live bool) {
	l.t.Helper()
	s, live, err := l.a.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID))
	l.must("status", err)
	return s, live
}

// TestExpandKilledAfterCrash: an expansion ends behind the journal that denies a recovered cache,
// and is repeated. What the pod writes then is on the storage server, also once the volume has
// left.
func TestExpandKilledAfterCrash(t *testing.T) {
	denied := false
	for n := 1; !denied; n++ {
		l := writethroughAfterCrash(t)
		l.grow(2 * lunBytes)
		l.a.killAfter(n)
		if ended, err := l.a.run(func() error {
			_, err := l.a.Expand(l.ctx, volume.ExpandRequest{ID: volumeID, Path: staging, Block: false})
			return err
		}); ended == "" {
			t.Fatalf("an expansion never denies a live cache: %v", err)
		}
		l.a.start()
		if _, live := l.status(); !live || l.a.entry().Mode != volume.ModeNone {
			continue
		}
		denied = true
		if e := l.a.entry(); !e.Recovered {
			t.Fatalf("the journal has forgotten what the live table is over: %+v", e)
		}
		l.expand()
		l.a.podWrites(2, 1, 2)
		l.compare("the storage server", l.lun)
		l.leave(l.a)
	}
}

// TestExpandInVain: an expansion by which nothing grows leaves a recovered cache alone.
func TestExpandInVain(t *testing.T) {
	l := writethroughAfterCrash(t)
	l.expand()
	if s, live := l.status(); !live || s.Policy != devmapper.PolicyCleaner {
		t.Errorf("live is a cache: %t, %s", live, s.Policy)
	}
	if e := l.a.entry(); !e.Recovered || e.Format() != 8 {
		t.Errorf("the journal says %+v", e)
	}
	l.grow(2 * lunBytes)
	l.expand()
	if e := l.a.entry(); e.Recovered || e.Format() != 0 {
		t.Errorf("the cache is gone, and the journal says %+v", e)
	}
	l.leave(l.a)
}

// dirtyDenied has a table of smq loaded over a recovered cache whose journal says that nothing of
// it can be dirty, as plugins of before did, and the pod write.
func dirtyDenied(t testing.TB, mode volume.CacheMode) *life {
	l := writethroughAfterCrash(t)
	dm := l.a.kernel.Client(nil)
	lines, err := dm.Table(l.ctx, "nf-"+string(volumeID))
	l.must("table", err)
	cache, _ := lines.Cache()
	cache.Policy = devmapper.PolicySMQ
	l.must("load", dm.Load(l.ctx, "nf-"+string(volumeID), devmapper.Table{{Length: lines[0].Length, Target: cache}}))
	l.must("resume", dm.Resume(l.ctx, "nf-"+string(volumeID)))
	l.a.podWrites(2, 1, 2)
	if err := l.differs(l.lun); !errors.Is(err, errDiffers) {
		t.Fatalf("the storage server has what is on the SSD alone: %v", err)
	}
	e := l.a.entry()
	if e.Recovered = false; mode == volume.ModeNone {
		e.Deny()
	}
	l.must("journal", l.a.Journal.Save(string(volumeID), *e))
	return l
}

// TestDirtyDenied: whatever the journal says, what is dirty in the live table is flushed.
func TestDirtyDenied(t *testing.T) {
	unstage := func(l *life) {
		l.persist(l.a, "unstage", func(p *plugin) error { return p.Unstage(l.ctx, volumeID, staging) })
		l.compare("the storage server", l.lun)
	}
	for _, mode := range []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough} {
		for name, do := range map[string]func(*life){
			"leave": unstage,
			"hold": func(l *life) {
				l.hold("t")
				l.persist(l.a, "flush", func(p *plugin) error {
					_, err := p.Change(l.ctx)
					if l.record().Status.Flush.Request != "t" {
						return errors.Join(errNotApplied, err)
					}
					return err
				})
				l.compare("the storage server", l.lun)
				l.a.podWrites(3, 1, 2)
				l.compare("the storage server", l.lun)
				l.leave(l.a)
			},
			"none": func(l *life) {
				l.ask(func(s *v1alpha1.CachedVolumeSpec) {
					s.CacheMode, s.CacheSize, s.ChunkSizeBytes, s.AcceptDirtyLoss = v1alpha1.CacheModeNone, "", nil, ""
				})
				l.persist(l.a, "none", l.apply)
				l.a.podReads()
				l.leave(l.a)
			},
			"fails": func(l *life) {
				err := l.a.DetachCache(l.ctx, l.a.entry(), "it fails")
				if !errors.Is(err, volume.ErrUnavailable) {
					l.t.Fatalf("detached: %v", err)
				}
				l.a.podReads()
				unstage(l)
			},
		} {
			t.Run(string(mode)+"/"+name, func(t *testing.T) {
				l := dirtyDenied(t, mode)
				l.t = t
				do(l)
			})
		}
	}
}

// anew fails unless the cache was made anew, and forgets what has become clean.
func (l *life) anew() {
	l.t.Helper()
	if e := l.a.entry(); e.Recovered || e.Mode != volume.ModeWriteback {
		l.t.Errorf("the journal says %+v (ended: %q)", e, l.ended)
	}
	if s, live := l.status(); !live || s.Mode() != devmapper.Writeback || s.Dirty > 0 {
		l.t.Errorf("live is a cache: %t, in mode %s with %d dirty blocks (ended: %q)", live, s.Mode(), s.Dirty, l.ended)
	}
}

// backAfterCrash is the life of a volume that goes back to writeback once a recovered cache is clean.
func (l *life) backAfterCrash() {
	l.t.Helper()
	l.persist(l.a, "stage", l.running)
	for _, mode := range []v1alpha1.CacheMode{v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback} {
		l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode = mode })
		l.persist(l.a, string(mode), func(p *plugin) error { return errors.Join(l.running(p), l.apply(p)) })
	}
	l.anew()
	l.a.podWrites(2, 1, 2)
	l.a.podReads()
	l.leave(l.a)
}

// limitAfterCrash is that of a volume with a dirty limit, which drains a recovered cache.
func (l *life) limitAfterCrash() {
	l.t.Helper()
	l.persist(l.a, "stage", l.running)
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.MaxDirtyBytes = "1Mi" })
	keeper := func(p *plugin, to dirtylimit.Level) error {
		_, err := p.DirtyLimits().Host.SwapTo(l.ctx, volumeID, l.req.Publication.Fence, to)
		return err
	}
	l.whileRunning("drain", func(p *plugin) error {
		limited, err := p.DirtyLimits().Host.Limited(l.ctx)
		if err == nil && len(limited) == 1 {
			to := dirtylimit.Writeback
			if limited[0].Recovered {
				to = dirtylimit.Draining
			}
			err = keeper(p, to)
		}
		return errors.Join(err, l.apply(p), l.asAsked(l.a))
	})
	l.anew()
	l.a.podWrites(2, 1, 2)
	l.persist(l.a, "drain and go on", func(p *plugin) error {
		return errors.Join(l.running(p), keeper(p, dirtylimit.Draining), keeper(p, dirtylimit.Writeback), l.asAsked(l.a))
	})
	l.a.podReads()
	l.leave(l.a)
}

// TestKillAnew ends the plugin before and after everything that it changes in these lives.
func TestKillAnew(t *testing.T) {
	for name, live := range map[string]func(*life){"back": (*life).backAfterCrash, "limit": (*life).limitAfterCrash} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killEachOf(t, func(d ...disaster) *life { return crashedLife(t, d...) }, false, live, nil)
		})
	}
}
