package attach_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sharedPool is poolOf with a share for each namespace.
type sharedPool struct {
	poolOf
	percent int32
}

func (p sharedPool) View() pool.View {
	v := p.poolOf.View()
	v.NamespaceSharePercent = p.percent
	return v
}

// neighbour is a cache of another volume on a node, as large as that of the volume: 4 MiB of data
// and 12 of map.
type neighbour struct {
	id        volume.ID
	namespace string
	state     state.State
	// age is how long ago it was left.
	age time.Duration
}

// keep has a node have a neighbour's cache.
func (h *host) keep(n neighbour) {
	h.w.t.Helper()
	f := volume.Fence{UID: "uid-" + string(n.id), Generation: 1, Node: h.name}
	activation := volume.Activation{ID: "1", Generation: 1}
	tags := append(layout.Tags(f, volume.ModeWritethrough), layout.ActivationTags(activation)...)
	for name, size := range map[string]int64{layout.MetaLV(n.id): 12 * mib, layout.DataLV(n.id): 4 * mib} {
		h.w.must("logical volume", h.lvmClient(nil).CreateLV(h.w.ctx, lvm.CreateSpec{VG: vgName, Name: name, SizeBytes: size, Tags: tags}))
	}
	h.w.must("entry", h.Journal.Save(string(n.id), state.Entry{
		ID: n.id, Fence: f, State: n.state, ActivationID: activation.ID, Boot: "boot-0", Mode: volume.ModeWritethrough, Activated: true, Clean: n.state == state.Retained,
		DataBytes: 4 * mib, MetaBytes: 12 * mib, Names: state.Names{PV: string(n.id), Namespace: n.namespace, Claim: "c"}, RetainedAt: time.Now().Add(-n.age),
	}))
}

// keeps are the neighbours whose caches the SSD still has.
func (h *host) keeps() string {
	h.w.t.Helper()
	lvs, err := h.lvmClient(nil).LVs(h.w.ctx, vgName)
	h.w.must("logical volumes", err)
	var ids []string
	for _, id := range layout.IDs(lvs) {
		if id != volumeID {
			ids = append(ids, string(id))
		}
	}
	return strings.Join(ids, " ")
}

// conditionOf is what a condition of the record says.
func (w *world) conditionOf(kind string) (status metav1.ConditionStatus, reason, message string) {
	w.t.Helper()
	c := meta.FindStatusCondition(w.record().Status.Conditions, kind)
	if c == nil {
		w.t.Fatalf("the record has no condition %s", kind)
	}
	return c.Status, c.Reason, c.Message
}

// TestShare: a volume whose cache would take its namespace over the share of the pool works without,
// and says why. Retained caches of the namespace give way before that, those of others do not. Of the
// pool's 60 MiB each cache takes 16, and the share is 18.
func TestShare(t *testing.T) {
	full := v1alpha1.ReasonNamespaceShareFull
	for name, tc := range map[string]struct {
		namespace  string
		neighbours []neighbour
		want       string
		keeps      string
		// percent is the share, 30 if it is 0.
		percent int32
	}{
		"alone":                     {"shop", nil, v1alpha1.ReasonCacheActive, "", 0},
		"one of the namespace":      {"shop", []neighbour{{"n1", "shop", state.Staged, 0}}, full, "n1", 0},
		"one of another":            {"shop", []neighbour{{"n1", "bank", state.Staged, 0}}, v1alpha1.ReasonCacheActive, "n1", 0},
		"without a claim on record": {"", []neighbour{{"n1", "", state.Staged, 0}, {"n2", "", state.Staged, 0}}, v1alpha1.ReasonCacheActive, "n1 n2", 0},
		"the oldest retained one of the namespace goes": {
			"shop", []neighbour{{"n1", "bank", state.Retained, 9 * time.Hour}, {"n2", "shop", state.Retained, time.Hour}}, v1alpha1.ReasonCacheActive, "n1", 0,
		},
		"no more of them than have to": {
			"shop", []neighbour{{"n1", "shop", state.Retained, time.Hour}, {"n2", "shop", state.Retained, 9 * time.Hour}}, v1alpha1.ReasonCacheActive, "n1", 60,
		},
		"retained ones of others do not": {
			"shop", []neighbour{{"n1", "bank", state.Retained, 9 * time.Hour}, {"n2", "shop", state.Staged, 0}}, full, "n1 n2", 0,
		},
		"none goes if all would not be enough": {
			"shop", []neighbour{{"n1", "shop", state.Staged, 0}, {"n2", "shop", state.Retained, time.Hour}}, full, "n1 n2", 0,
		},
		"those that are not flushed stay": {
			"shop", []neighbour{{"n1", "shop", state.Flushed, time.Hour}}, full, "n1", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLife(t, volume.ModeWritethrough)
			if tc.namespace != "" {
				l.ask(func(s *v1alpha1.CachedVolumeSpec) {
					s.ClaimRef = &v1alpha1.ClaimReference{Namespace: tc.namespace, Name: "data"}
				})
			}
			l.a.UsePool(sharedPool{percent: cmp.Or(tc.percent, 30)})
			for _, n := range tc.neighbours {
				l.a.keep(n)
			}
			l.must("stage", l.a.Stage(l.ctx, l.publish(l.a.name)))
			_, reason, message := l.conditionOf(v1alpha1.ConditionCached)
			if reason != tc.want {
				t.Errorf("%s: %s, want %s", reason, message, tc.want)
			}
			if tc.want == full && !strings.Contains(message, "namespace shop may take 30% (18Mi)") {
				t.Errorf("the message does not say whose share it is: %s", message)
			}
			if got := l.a.keeps(); got != tc.keeps {
				t.Errorf("the SSD has caches of %q, want %q", got, tc.keeps)
			}
			l.a.podWrites(1, 0, 1, 2)
			l.a.podReads()
		})
	}
}

// TestShareChanges: below a running pod a cache grows up to the share, and is made as soon as there
// is room in it. A share that is lowered takes no cache away, not one that is used again either.
func TestShareChanges(t *testing.T) {
	l := newLife(t, volume.ModeWritethrough)
	l.ask(func(s *v1alpha1.CachedVolumeSpec) {
		s.ClaimRef = &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}
	})
	refused := func(what string) {
		t.Helper()
		if _, err := l.a.Change(l.ctx); err != nil {
			t.Fatal(err)
		}
		if status, reason, message := l.conditionOf(v1alpha1.ConditionApplied); status != metav1.ConditionFalse || reason != v1alpha1.ReasonNamespaceShareFull {
			t.Fatalf("%s: Applied is %s, %s: %s", what, status, reason, message)
		}
	}
	l.a.UsePool(sharedPool{percent: 30})
	l.must("stage", l.a.Stage(l.ctx, l.publish(l.a.name)))
	l.a.podWrites(1, 0, 1)
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize = "12Mi" })
	refused("a cache that grows over the share")
	l.a.podWrites(2, 1, 2)

	l.a.UsePool(sharedPool{percent: 1})
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.CacheSize = "4Mi" })
	l.must("back to what it is", l.apply(l.a.plugin))
	l.wantCache(l.a)
	l.leave(l.a)
	l.must("stage", l.a.Stage(l.ctx, l.publish(l.a.name)))
	l.wantCache(l.a)

	l.ask(func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.CacheSize, s.ChunkSizeBytes = v1alpha1.CacheModeNone, "", nil
	})
	l.must("the cache is given back", l.apply(l.a.plugin))
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.CacheMode, s.CacheSize = v1alpha1.CacheModeWritethrough, "4Mi" })
	refused("a cache over the share")
	l.a.podReads()
	l.a.UsePool(sharedPool{percent: 30})
	l.ask(func(s *v1alpha1.CachedVolumeSpec) { s.FlushRequest = "not to wait" })
	l.must("a larger share", l.apply(l.a.plugin))
	l.wantCache(l.a)
	l.a.podReads()
}

// TestShareOfPrewarm: a cache that is copied before the volume comes counts, and is not copied over
// the share. Nor does the volume get the rest of it: the map is larger than the data here.
func TestShareOfPrewarm(t *testing.T) {
	for name, percent := range map[string]int32{"within": 10, "over": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newWarmLife(t, volume.ModeWritethrough, "")
			l.ask(func(s *v1alpha1.CachedVolumeSpec) {
				s.ClaimRef = &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}
			})
			l.inUse()
			l.b.UsePool(sharedPool{percent: percent})
			l.askPrewarm()
			l.prewarm()
			if e := l.b.entry(); (e != nil) != (name == "within") {
				t.Errorf("the entry is %+v", e)
			}
			l.leave(l.a)
			l.arrive(l.b)
			if _, reason, message := l.conditionOf(v1alpha1.ConditionCached); reason != v1alpha1.ReasonNamespaceShareFull {
				t.Errorf("%s: %s", reason, message)
			}
			l.podReads(l.b)
		})
	}
}

// TestShareOfWarmStart: a cache that fits, but not with what a hydration needs besides, begins cold.
func TestShareOfWarmStart(t *testing.T) {
	l := newWarmLife(t, volume.ModeWritethrough, "")
	l.ask(func(s *v1alpha1.CachedVolumeSpec) {
		s.ClaimRef = &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}
	})
	l.inUse()
	l.b.UsePool(sharedPool{percent: 30})
	l.leave(l.a)
	l.arrive(l.b)
	if _, reason, message := l.conditionOf(v1alpha1.ConditionCached); reason != v1alpha1.ReasonCacheActive {
		t.Errorf("%s: %s", reason, message)
	}
	if e := l.b.entry(); e.Hydration != nil {
		t.Errorf("the cache is filled: %+v", e.Hydration)
	}
	l.podReads(l.b)
}

// TestShareMirror: both copies of a volume that asks for two count. Of a pool of 120 MiB they take 32.
func TestShareMirror(t *testing.T) {
	for percent, want := range map[int32]string{25: v1alpha1.ReasonNamespaceShareFull, 27: v1alpha1.ReasonCacheActive} {
		t.Run(want, func(t *testing.T) {
			l := newLife(t, volume.ModeWritethrough)
			l.a.pair()
			l.ask(func(s *v1alpha1.CachedVolumeSpec) {
				s.ClaimRef, s.Redundancy = &v1alpha1.ClaimReference{Namespace: "shop", Name: "data"}, v1alpha1.RedundancyMirror
			})
			l.a.UsePool(sharedPool{poolOf: poolOf{second: otherSSD}, percent: percent})
			l.must("stage", l.a.Stage(l.ctx, l.publish(l.a.name)))
			if _, reason, message := l.conditionOf(v1alpha1.ConditionCached); reason != want {
				t.Errorf("with a share of %d%%: %s: %s", percent, reason, message)
			}
		})
	}
}
