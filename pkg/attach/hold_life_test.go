package attach_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cutting has the storage server copy the LUN when it cuts the volume, and returns what the last
// copy has at each place.
func (w *world) cutting() (cut map[int64]uint64) {
	cut = map[int64]uint64{}
	w.storage.Step = func(op string, done bool) error {
		if op != "cut" || !done {
			return nil
		}
		b := make([]byte, 8)
		for place := range int64(places) {
			if _, err := w.lun.ReadAt(b, offset(place)); err != nil {
				return err
			}
			cut[place] = binary.LittleEndian.Uint64(b)
		}
		return nil
	}
	return cut
}

const (
	// first and second are written one after the other, first before second.
	first, second = 6, 7
)

// snapshot has the volume cut while its pod goes on, and judges the cut: everything that was
// acknowledged before is in it, and of what came later nothing without what came before it.
func (l *life) snapshot(name volume.SnapshotID, again func(*plugin) error) {
	l.t.Helper()
	cut := l.cutting()
	before := make(map[int64]uint64, len(l.written))
	for place, v := range l.written {
		before[place] = v
	}
	const tries = 100
	for i := range uint64(tries) {
		_, err := l.control.CreateSnapshot(l.ctx, name, volumeID, volume.SnapshotClass{})
		if err == nil {
			break
		}
		if !errors.Is(err, volume.ErrBusy) || i == tries-1 {
			l.t.Fatalf("snapshot %s: %v (ended: %q)", name, err, l.ended)
		}
		l.a.podWrites(before[first]+i+1, first)
		l.a.podWrites(before[first]+i+1, second)
		l.persist(l.a, "change", func(p *plugin) error {
			if err := again(p); err != nil {
				return err
			}
			_, err := p.Change(l.ctx)
			return err
		})
	}
	if l.record().Spec.Hold != nil {
		l.t.Fatalf("the volume is held for a snapshot that there is (ended: %q)", l.ended)
	}
	for place := range int64(places) {
		if was, now := before[place], l.written[place]; cut[place] < was || cut[place] > now {
			l.t.Errorf("place %d of the snapshot has %d; the pod had written %d before, and %d since (ended: %q)", place, cut[place], was, now, l.ended)
		}
	}
	if f, s := cut[first], cut[second]; s > f || f-s > 1 {
		l.t.Errorf("the snapshot has write %d, and the one behind it %d (ended: %q)", f, s, l.ended)
	}
}

// beCut has a volume cut below its pod, twice, and when it is detached.
func (l *life) beCut() {
	l.t.Helper()
	req := l.publish(l.a.name)
	begin := func(p *plugin) error { return l.stageUnlessRunning(l.a, p, req) }
	l.persist(l.a, "stage", begin)
	for i, name := range []volume.SnapshotID{"s-1", "s-2"} {
		l.a.podWrites(uint64(100*(i+1)), 1, 2, first, second, int64(i+3))
		l.snapshot(name, begin)
		l.a.podReads()
		l.persist(l.a, "let go", func(p *plugin) error {
			if err := begin(p); err != nil {
				return err
			}
			if _, err := p.Change(l.ctx); err != nil {
				return err
			}
			return l.asAsked(l.a)
		})
	}
	l.a.podWrites(1000, 1, 2, first, second)
	l.leave(l.a)
	l.snapshot("s-3", func(*plugin) error { return nil })
	l.stay(l.b, 2000, 1)
}

var errMode = errors.New("the cache is not in the mode that is asked for")

// asAsked compares the live mode with the record's.
func (l *life) asAsked(h *host) error {
	s, found, err := h.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID))
	if err != nil {
		return err
	}
	if want := l.record().Spec.CacheMode; found != (want != v1alpha1.CacheModeNone) || found && string(s.Mode()) != string(want) {
		return fmt.Errorf("%w: %t, %s, want %s", errMode, found, s.Mode(), want)
	}
	return nil
}

// TestCut: a volume is cut in each mode, with nothing in the way.
func TestCut(t *testing.T) {
	for _, mode := range cacheModes {
		t.Run(string(mode), func(t *testing.T) { newLife(t, mode).beCut() })
	}
}

// TestKillCut ends the plugin, or its node, before and after everything that it changes while
// its volume is cut.
func TestKillCut(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			killEach(t, volume.ModeWriteback, power, (*life).beCut, nil, "after a change of the record's status")
		})
	}
}

// hold has the volume held as the controller does.
func (w *world) hold(token string) {
	w.t.Helper()
	w.ask(func(s *v1alpha1.CachedVolumeSpec) {
		s.Hold, s.FlushRequest = nil, token
		if token != "" {
			s.Hold = &v1alpha1.VolumeHold{Name: "s", Token: token, Since: metav1.Now()}
		}
	})
}

// TestHoldBeforeMark: a hold that comes between a stage's look and its mark refuses the mark, and
// the stage that is repeated goes on without it.
func TestHoldBeforeMark(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	l.stay(l.a, 1, 0, 1) // leaves a cache that is used again
	for _, h := range []*host{l.a, l.b} {
		held, api := false, l.api
		l.api = interceptor.NewClient(api, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				err := c.Get(ctx, key, obj, opts...)
				if _, record := obj.(*v1alpha1.CachedVolume); record && !held && err == nil {
					held = true
					other := &v1alpha1.CachedVolume{}
					l.must("read", c.Get(ctx, key, other))
					other.Spec.Hold = &v1alpha1.VolumeHold{Name: "s", Token: "t-" + h.name, Since: metav1.Now()}
					other.Spec.FlushRequest = "t-" + h.name
					l.must("hold", c.Update(ctx, other))
				}
				return err
			},
		})
		h.start()
		l.api = api
		req := l.publish(h.name)
		if err := h.Stage(l.ctx, req); !errors.Is(err, volume.ErrBusy) {
			t.Fatalf("stage below a hold that came between: %v, want it busy", err)
		}
		l.wantClean()
		l.must("stage again", h.Stage(l.ctx, req))
		h.podReads()
		h.podWrites(2, 1, 2)
		l.wantClean()
		l.compare("the storage server", l.lun)
		l.must("change", ignoreBusy(h.Change(l.ctx)))
		if got := l.record().Status.Flush.Request; got != "t-"+h.name {
			t.Errorf("flush %q is reported", got)
		}
		l.hold("")
		l.persist(h, "let go", func(p *plugin) error {
			if _, err := p.Change(l.ctx); err != nil {
				return err
			}
			return l.asAsked(h)
		})
		if l.record().Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
			t.Error("it takes writes again below a record that says clean (I2)")
		}
		l.leave(h)
	}
}

func ignoreBusy(_ bool, err error) error { return err }

func (w *world) wantClean() {
	w.t.Helper()
	if s := w.record().Status.DirtyState; s == v1alpha1.DirtyStatePossiblyDirty {
		w.t.Fatalf("the record says %s below a hold", s)
	}
}

// TestHoldAbandoned: writes that were abandoned, and can be read, are flushed before a pod of a
// volume that is held can write: nobody may mark it.
func TestHoldAbandoned(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	l.a.podWrites(1, 1, 2)
	l.a.powerLoss()
	l.a.start()
	l.unpublish(l.a.name)
	l.abandon()
	req = l.publish(l.a.name)
	l.hold("t")
	l.persist(l.a, "stage", func(p *plugin) error {
		err := p.Stage(l.ctx, req)
		if err != nil && !errors.Is(err, volume.ErrBusy) {
			t.Fatalf("stage: %v", err)
		}
		l.wantClean()
		return err
	})
	l.compare("the storage server", l.lun)
	l.a.podWrites(2, 2, 3)
	l.compare("the storage server", l.lun)
	l.hold("")
	l.leave(l.a)
}

// TestHoldBelowPod: a volume whose writes were abandoned while its pod went on is not marked
// below a hold, and no other pod gets it before it is flushed.
func TestHoldBelowPod(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	l.a.podWrites(1, 1, 2)
	l.abandon()
	l.hold("t")
	pod := volume.PublishRequest{ID: volumeID, StagingPath: staging, TargetPath: "/pod", FSType: "ext4"}
	if err := l.a.Publish(l.ctx, pod); !errors.Is(err, volume.ErrBusy) {
		t.Fatalf("published below a hold and unmarked: %v, want it busy", err)
	}
	l.persist(l.a, "flush", func(p *plugin) error {
		if _, err := p.Change(l.ctx); err != nil {
			return err
		}
		l.wantClean()
		if l.record().Status.Flush.Request != "t" {
			return errNotApplied
		}
		return nil
	})
	l.compare("the storage server", l.lun)
	l.must("publish", l.a.Publish(l.ctx, pod))
	s, _, err := l.a.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID))
	if err != nil || s.Mode() != devmapper.Writethrough {
		t.Errorf("live is %s, %v", s.Mode(), err)
	}
	l.must("unpublish", l.a.Unpublish(l.ctx, volumeID, "/pod"))
	l.leave(l.a)
}

// setBack gives the record an earlier status, as a restore of etcd does.
func (l *life) setBack(to v1alpha1.CachedVolumeStatus) {
	l.t.Helper()
	before := l.record()
	to.DeepCopyInto(&before.Status)
	l.must("set the record back", l.api.Status().Update(l.ctx, before))
}

// TestHoldReleased: the record of a volume is of before a restore of etcd, and says that its node
// has released it. The node says that it has nothing of the volume once that is so.
func TestHoldReleased(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	answered := func() bool {
		t.Helper()
		l.must("change", ignoreBusy(l.a.Change(l.ctx)))
		return l.record().Status.Flush.Request == "t"
	}
	l.stay(l.a, 1, 0, 1) // leaves a clean cache
	released := l.record().Status
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	l.a.podWrites(2, 1, 2)
	l.setBack(released)
	l.hold("t")
	l.must("repair", l.a.Repair(l.ctx)) // its pod has the volume
	if answered() {
		t.Fatal("it says that it has nothing of a volume whose pod writes")
	}
	l.persist(l.a, "unstage", func(p *plugin) error { return p.Unstage(l.ctx, volumeID, staging) })
	l.compare("the storage server", l.lun)
	if !answered() {
		t.Error("it does not say that it has nothing")
	}
	l.hold("") // nobody asks
	l.hold("u")
	if l.must("change", ignoreBusy(l.a.Change(l.ctx))); l.record().Status.Flush.Request != "u" {
		t.Error("it answers once")
	}
}

// TestHoldLostJournal: a node whose journal is lost has unflushed writes on its SSD, of which the
// record of a backup does not know. It does not say that it has nothing, also if repair could not
// look at that volume.
func TestHoldLostJournal(t *testing.T) {
	for _, seen := range []bool{false, true} {
		t.Run(fmt.Sprintf("seen=%t", seen), func(t *testing.T) {
			l := newLife(t, volume.ModeWriteback)
			l.stay(l.a, 1, 0, 1)
			released := l.record().Status
			l.stay(l.b, 2, 1)
			req := l.publish(l.a.name)
			l.must("stage", l.a.Stage(l.ctx, req))
			l.a.podWrites(3, 1, 2)
			l.setBack(released)
			l.a.powerLoss()
			l.must("lose the journal", os.Remove(l.a.gate.journal))
			l.a.start()
			l.hold("t")
			unlock := func() {}
			if !seen {
				unlock, _ = l.a.Locks.TryLock(string(volumeID))
			}
			l.must("repair", l.a.Repair(l.ctx))
			unlock()
			l.must("change", ignoreBusy(l.a.Change(l.ctx)))
			if l.record().Status.Flush.Request == "t" {
				t.Error("it says that it has nothing of a volume whose writes are on its SSD alone")
			}
		})
	}
}

var errNoAnswer = errors.New("the API server does not answer")

// TestShutOutMarked: a volume is flushed for a hold, and deleted before its node could say so. The
// server never lets the node in again, which has nothing that is not there, and leaves.
func TestShutOutMarked(t *testing.T) {
	l := newLife(t, volume.ModeWriteback)
	api := l.api
	l.api = interceptor.NewClient(api, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if o, record := obj.(*v1alpha1.CachedVolume); record && o.Spec.Hold != nil && o.Status.DirtyState == v1alpha1.DirtyStateClean {
				return errNoAnswer
			}
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	})
	l.a.start()
	l.api = api
	req := l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, req))
	l.a.podWrites(1, 1, 2)
	l.hold("t")
	for range 20 {
		_, _ = l.a.Change(l.ctx)
	}
	if e := l.a.entry(); e.Mode != volume.ModeWritethrough || !e.Marked {
		t.Fatalf("the journal says %s, marked %t", e.Mode, e.Marked)
	}
	l.unpublish(l.a.name)
	l.must("delete", l.control.Delete(l.ctx, volumeID))
	l.a.start()
	l.persist(l.a, "unstage", func(p *plugin) error { return p.Unstage(l.ctx, volumeID, staging) })
	devices, err := l.a.kernel.Client(nil).Info(l.ctx, "nf-")
	l.must("devices", err)
	if e := l.a.entry(); e != nil || len(devices) > 0 || len(l.a.sessions) > 0 {
		t.Errorf("left: %+v, devices %v, sessions %v", e, devices, l.a.sessions)
	}
}

// TestHoldAfterCrash: a cache that was recovered is flushed for a hold, or for another mode. What its
// pod writes after that is on the storage server: the next table would call all of it dirty again.
func TestHoldAfterCrash(t *testing.T) {
	for name, ask := range map[string]func(*life){
		"held": func(l *life) { l.hold("t") },
		"writethrough": func(l *life) {
			l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode = v1alpha1.CacheModeWritethrough })
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, volume.ModeWriteback)
			req := l.publish(l.a.name)
			l.must("stage", l.a.Stage(l.ctx, req))
			l.a.podWrites(1, 1, 2, 3)
			l.a.powerLoss()
			l.a.start()
			l.must("stage after a crash", l.a.Stage(l.ctx, req))
			ask(l)
			l.persist(l.a, "flush", func(p *plugin) error {
				if _, err := p.Change(l.ctx); err != nil {
					return err
				}
				if e := l.a.entry(); e.Mode != volume.ModeWritethrough || e.Marked {
					return errNotApplied
				}
				return nil
			})
			for i := range uint64(3) {
				l.must("change", ignoreBusy(l.a.Change(l.ctx)))
				l.a.podWrites(2+i, 1, 2)
				l.compare("the storage server", l.lun)
				l.wantClean()
				if s, _, err := l.a.kernel.Client(nil).Status(l.ctx, "nf-"+string(volumeID)); err != nil || s.Policy != devmapper.PolicyCleaner {
					t.Fatalf("live is %s, %s, %v: every block of it is dirty again", s.Policy, s.Mode(), err)
				}
			}
			size, err := l.a.Expand(l.ctx, volume.ExpandRequest{ID: volumeID, Path: staging, Block: false, Size: lunBytes})
			if l.must("expand", err); size != lunBytes {
				t.Errorf("%d bytes after an expansion", size)
			}
			l.a.podWrites(9, 1, 3)
			l.compare("the storage server", l.lun)
			l.hold("")
			l.persist(l.a, "let go", func(p *plugin) error {
				if _, err := p.Change(l.ctx); err != nil {
					return err
				}
				return l.asAsked(l.a)
			})
			l.a.podReads()
			l.leave(l.a)
		})
	}
}
