package attach_test

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ask changes what the record asks for.
func (w *world) ask(change func(*v1alpha1.CachedVolumeSpec)) {
	w.t.Helper()
	obj := w.record()
	change(&obj.Spec)
	obj.Generation++
	w.must("change the record", w.api.Update(w.ctx, obj))
}

var errNotApplied = errors.New("the record is not applied")

// apply does what is asked of the attached volume, once.
func (w *world) apply(p *plugin) error {
	if _, err := p.Change(w.ctx); err != nil {
		return err
	}
	obj := w.record()
	c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionApplied)
	if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != obj.Generation || obj.Spec.FlushRequest != obj.Status.Flush.Request {
		return fmt.Errorf("%w: %+v, flush %q", errNotApplied, c, obj.Status.Flush.Request)
	}
	return nil
}

// lifeChange is what an administrator changes below a pod.
type lifeChange struct {
	name   string
	change func(*v1alpha1.CachedVolumeSpec)
}

// changes are what is asked of a volume below its pod, each after the one before.
var changes = []lifeChange{
	{"flush", func(s *v1alpha1.CachedVolumeSpec) { s.FlushRequest = "once" }},
	{"larger", func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize = "8Mi" }},
	{"writethrough", func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWritethrough, ""
	}},
	{"smaller", func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize = "4Mi" }},
	{"none", func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.CacheSize, s.ChunkSizeBytes = v1alpha1.CacheModeNone, "", nil
	}},
	{"writeback", func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.CacheSize, s.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, "8Mi", v1alpha1.DirtyLossNodeLoss
	}},
}

// unsafeChanges are those of flushes that end at the cache.
var unsafeChanges = []struct {
	name   string
	change func(*v1alpha1.CachedVolumeSpec)
	drops  bool
}{
	{"unsafe", unsafe, true},
	{"unsafe, flush", func(s *v1alpha1.CachedVolumeSpec) { s.FlushRequest = "once" }, true},
	{"unsafe, larger", func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize = "8Mi" }, true},
	{"safe again", func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss
	}, false},
	{"unsafe again", unsafe, true},
	{"writethrough", func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWritethrough, ""
	}, false},
	{"unsafe, of writethrough", unsafe, true},
	{"none", func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.CacheSize, s.ChunkSizeBytes = v1alpha1.CacheModeNone, "", nil
	}, false},
}

func unsafe(s *v1alpha1.CachedVolumeSpec) {
	s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWritebackUnsafe, v1alpha1.DirtyLossPowerLoss
}

// drops reports whether flushes end at the top device.
func (h *host) drops() bool {
	h.w.t.Helper()
	infos, err := h.kernel.Client(nil).Info(h.w.ctx, "nf-"+string(volumeID))
	h.w.must("devices", err)
	top, found := infos["nf-"+string(volumeID)]
	if !found {
		return false
	}
	passes, err := h.machine.PassesFlushes(top.DevNo())
	h.w.must("flushes", err)
	return !passes
}

// beUnsafe has the flushes of one pod's volume dropped and passed on again.
func (l *life) beUnsafe() {
	l.t.Helper()
	var all []lifeChange
	for _, c := range unsafeChanges {
		all = append(all, lifeChange{c.name, c.change})
	}
	l.changed(all, func(i int) {
		if drops := l.a.drops(); drops != unsafeChanges[i].drops {
			l.t.Fatalf("%s: flushes are dropped: %t, want %t", unsafeChanges[i].name, drops, unsafeChanges[i].drops)
		}
	})
}

// beChanged has everything changed below one pod.
func (l *life) beChanged() {
	l.t.Helper()
	l.changed(changes, func(int) {})
}

// changed has changes made below one pod, which goes on writing, and looks after each. One whose node
// loses its power is begun anew.
func (l *life) changed(all []lifeChange, look func(i int)) {
	l.t.Helper()
	req := l.publish(l.a.name)
	begin := func(p *plugin) error { return l.stageUnlessRunning(l.a, p, req) }
	l.persist(l.a, "stage", begin)
	for i, c := range all {
		l.a.podWrites(uint64(i+1), 1, 2, int64(i+3))
		l.ask(c.change)
		l.persist(l.a, c.name, func(p *plugin) error {
			if err := begin(p); err != nil {
				return err
			}
			return l.apply(p)
		})
		l.a.podReads()
		l.wantCache(l.a)
		look(i)
	}
	l.leave(l.a)
}

// wantCache compares the cache with what the record asks for.
func (w *world) wantCache(h *host) {
	w.t.Helper()
	spec := w.record().Spec
	s, found, err := h.kernel.Client(nil).Status(w.ctx, "nf-"+string(volumeID))
	w.must("status", err)
	asked := resource.MustParse(cmp.Or(spec.CacheSize, "0"))
	switch {
	case !found && spec.CacheMode == v1alpha1.CacheModeNone:
	case !found || string(s.Mode()) != strings.TrimSuffix(string(spec.CacheMode), "-unsafe"):
		w.t.Fatalf("the cache is there: %t, in mode %s, and %s is asked for", found, s.Mode(), spec.CacheMode)
	case int64(s.CacheTotal*s.ChunkSectors)*512 != asked.Value():
		w.t.Fatalf("the cache has %d chunks of %d sectors, and %s are asked for", s.CacheTotal, s.ChunkSectors, spec.CacheSize)
	}
}

// TestKillChange ends the plugin, or its node, before and after everything that changes a
// cache below a pod.
func TestKillChange(t *testing.T) {
	for _, power := range []bool{false, true} {
		t.Run(fmt.Sprintf("power=%t", power), func(t *testing.T) {
			t.Parallel()
			killEach(t, volume.ModeWriteback, power, (*life).beChanged, nil)
		})
	}
}
