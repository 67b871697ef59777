package attach_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKillUnsafe ends the plugin, or its node, before and after everything that it changes while
// flushes begin to be dropped, and are passed on again.
func TestKillUnsafe(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			killEach(t, volume.ModeWriteback, power, (*life).beUnsafe, nil)
		})
	}
}

// stagedUnsafe is a life whose volume drops flushes, and has unflushed writes.
func stagedUnsafe(t *testing.T) *life {
	t.Helper()
	l := newLife(t, volume.ModeWriteback)
	l.req = l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, l.req))
	l.ask(unsafe)
	l.must("change", l.apply(l.a.plugin))
	l.a.podWrites(1, 1, 2, 3)
	if !l.a.drops() {
		t.Fatal("flushes are passed on")
	}
	if c := meta.FindStatusCondition(l.record().Status.Conditions, v1alpha1.ConditionCached); c == nil || c.Reason != v1alpha1.ReasonFlushesDropped {
		t.Errorf("the record says %+v of dropped flushes", c)
	}
	return l
}

// torn is what the record says of an unclean stop.
func (l *life) torn() *metav1.Condition {
	return meta.FindStatusCondition(l.record().Status.Conditions, v1alpha1.ConditionConsistent)
}

// TestUnsafeStops: what was dropped is said after an unclean stop, whoever flushes the cache, before
// the record says Clean; and never after anything else.
func TestUnsafeStops(t *testing.T) {
	for name, c := range map[string]struct {
		stop func(*life)
		torn bool
	}{
		"the plugin ends": {func(l *life) {
			l.a.start()
			l.must("change", l.apply(l.a.plugin))
			if !l.a.drops() {
				l.t.Error("another plugin passes flushes on")
			}
			l.leave(l.a)
		}, false},
		"the volume leaves": {func(l *life) { l.leave(l.a) }, false},
		"the node stops, and repair flushes": {func(l *life) {
			l.a.powerLoss()
			l.a.start()
			l.repairUntilClean(l.a)
		}, true},
		"the node stops, and the pod comes back": {func(l *life) {
			l.a.powerLoss()
			l.a.start()
			l.must("stage", l.a.Stage(l.ctx, l.req))
			l.must("change", l.apply(l.a.plugin))
			l.a.podReads()
			if !l.a.drops() {
				l.t.Error("flushes are passed on, and nobody has asked for that")
			}
			l.leave(l.a)
		}, true},
		"the node stops with its journal": {func(l *life) {
			l.a.powerLoss()
			l.a.forgetJournal()
			l.a.start()
			l.must("stage", l.a.Stage(l.ctx, l.req))
			l.must("change", l.apply(l.a.plugin))
			l.leave(l.a)
		}, true},
		"the node stops after writeback is safe again": {func(l *life) {
			l.ask(func(s *v1alpha1.CachedVolumeSpec) {
				s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss
			})
			l.must("change", l.apply(l.a.plugin))
			l.a.powerLoss()
			l.a.start()
			l.repairUntilClean(l.a)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := stagedUnsafe(t)
			c.stop(l)
			l.compare("the storage server", l.lun)
			if got := l.torn(); (got != nil && got.Status == metav1.ConditionFalse) != c.torn {
				t.Errorf("the record says %+v of an unclean stop, want one: %t", got, c.torn)
			}
		})
	}
}

// forgetJournal loses the node's journal, which lies on another disk than its caches.
func (h *host) forgetJournal() {
	h.w.t.Helper()
	h.w.must("lose the journal", os.Remove(filepath.Join(h.files(), "journal", string(volumeID)+".json")))
}

// TestUnsafeStopTold ends a repair anywhere after an unclean stop, and has the volume come back: whatever
// the stage makes of the cache, the record hears of the stop.
func TestUnsafeStopTold(t *testing.T) {
	for n := 1; ; n++ {
		l := stagedUnsafe(t)
		l.unpublish(l.a.name)
		l.a.powerLoss()
		l.a.start()
		l.a.killAfter(n)
		p := l.a.plugin
		ended, _ := p.run(func() error { return p.Repair(l.ctx) })
		p.killAfter(0)
		if ended != "" {
			l.a.powerLoss()
			l.a.start()
		}
		l.req = l.publish(l.a.name)
		l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, l.req) })
		l.leave(l.a)
		if got := l.torn(); got == nil || got.Status != metav1.ConditionFalse {
			t.Fatalf("repair ended %q: the record says %+v of the unclean stop", ended, got)
		}
		l.forget()
		if ended == "" {
			t.Logf("ended at %d steps", n-1)
			return
		}
	}
}
