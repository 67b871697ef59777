package attach_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// writtenBack is a life whose pod has written to its writeback cache.
func writtenBack(t *testing.T) *life {
	t.Helper()
	l := newLife(t, volume.ModeWriteback)
	l.req = l.publish(l.a.name)
	l.must("stage", l.a.Stage(l.ctx, l.req))
	l.a.podWrites(1, 0, 1, 2, 3)
	return l
}

// journalLostAfterWrites has the pod write on, and the node lose its power and its journal. The volume comes
// back with what the pod wrote last, and leaves.
func (l *life) journalLostAfterWrites() {
	l.t.Helper()
	l.a.podWrites(2, 1, 2, 3, 4)
	l.a.powerLoss()
	l.a.forgetJournal()
	l.a.start()
	l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, l.req) })
	l.a.podReads()
	l.leave(l.a)
	l.forget()
}

// writesThrough asks for writethrough mode.
func writesThrough(s *v1alpha1.CachedVolumeSpec) {
	s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWritethrough, ""
}

// journalLost has a plugin be killed at every step of taking a cache from below a pod, which writes on. Then the
// node loses its power, and its journal: the cache is never written to the origin.
func journalLost(t *testing.T, begin func(*life), take func(*life, *plugin) error) {
	t.Helper()
	for n := 1; ; n++ {
		l := writtenBack(t)
		begin(l)
		l.a.killAfter(n)
		p := l.a.plugin
		ended, err := p.run(func() error { return take(l, p) })
		p.killAfter(0)
		if ended == "" {
			l.must("taken", err)
		}
		l.journalLostAfterWrites()
		if ended == "" {
			t.Logf("ended at %d steps", n-1)
			return
		}
	}
}

// TestUncachedJournalLost: a cache that nobody wants any more.
func TestUncachedJournalLost(t *testing.T) {
	journalLost(t, func(l *life) { l.ask(changes[4].change) }, // none
		func(l *life, p *plugin) error { return l.apply(p) })
}

// TestFailedOverJournalLost: a cache that had been in writeback mode, and fails.
func TestFailedOverJournalLost(t *testing.T) {
	journalLost(t, func(l *life) {
		l.ask(writesThrough)
		l.must("change", l.apply(l.a.plugin))
		l.a.CacheFaults().Devices = &failedLevel{Client: l.a.DM, name: layout.Device(volumeID, layout.Top)}
	}, func(l *life, p *plugin) error { return p.CacheFaults().Pass(l.ctx) })
}

// modeTags are the modes that the tags of the volume's logical volumes say.
func (h *host) modeTags() (out []volume.CacheMode) {
	h.w.t.Helper()
	lvs, err := h.lvmClient(nil).LVs(h.w.ctx, vgName)
	h.w.must("logical volumes", err)
	for _, lv := range layout.Find(lvs, volumeID).LVs() {
		_, mode := layout.ParseTags(lv.Tags)
		out = append(out, mode)
	}
	return out
}

// TestTagsOfLiveCache: below a pod whose volume leaves writeback mode and comes back, the tags follow. A cache
// on an SSD that loses its power would else be written over newer data, should the journal be lost.
func TestTagsOfLiveCache(t *testing.T) {
	back := func(s *v1alpha1.CachedVolumeSpec) {
		s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss
	}
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("refused=%t", refused), func(t *testing.T) {
			l := writtenBack(t)
			l.ask(writesThrough)
			p, own := l.a.plugin, l.a.Attacher
			if refused {
				d := p.Deps
				d.LVM = tagsRefused{d.LVM}
				p.Attacher = attach.New(p.Config, d)
			}
			if err := l.apply(p); (err != nil) != refused {
				t.Fatalf("writethrough: %v", err)
			}
			if refused {
				if dirty := l.record().Status.DirtyState; dirty != v1alpha1.DirtyStateClean || !l.a.entry().Marked {
					t.Errorf("the tags are left as they are: the record says %s, the journal %+v", dirty, l.a.entry())
				}
				p.Attacher = own
				l.must("writethrough", l.apply(p))
			}
			if modes := l.a.modeTags(); len(modes) != 2 || modes[0] != volume.ModeWritethrough || modes[1] != volume.ModeWritethrough || l.a.entry().Marked {
				t.Errorf("in writethrough mode: %v", modes)
			}
			l.ask(back)
			l.must("writeback", l.apply(p))
			if modes := l.a.modeTags(); len(modes) != 2 || modes[0] != volume.ModeWriteback || modes[1] != volume.ModeWriteback {
				t.Errorf("in writeback mode: %v", modes)
			}
			l.journalLostAfterWrites()
		})
	}
}

// tagsRefused is LVM that changes no modes in tags.
type tagsRefused struct{ lvm.Client }

func (r tagsRefused) ChangeTags(ctx context.Context, vg string, add, remove []string, names ...string) error {
	if slices.ContainsFunc(add, func(tag string) bool { return strings.Contains(tag, string(volume.ModeWritethrough)) }) {
		return errors.New("refused")
	}
	return r.Client.ChangeTags(ctx, vg, add, remove, names...)
}

// TestFallBackJournalLost: the SSD of a retained cache fails as the volume comes back, after its tags say that it
// is in use, and keeps the cache. The volume goes on without, then node and journal are lost: the cache, which
// is older than what the pod wrote past it, is not written over that.
func TestFallBackJournalLost(t *testing.T) {
	l := writtenBack(t)
	l.leave(l.a)
	l.req = l.publish(l.a.name)
	p := l.a.plugin
	d := p.Deps
	d.DM, d.LVM = cacheRefused{d.DM}, kept{d.LVM}
	p.Attacher = attach.New(p.Config, d)
	l.must("stage", p.Stage(l.ctx, l.req))
	if e := l.a.entry(); e.Cached() || len(l.a.modeTags()) != 2 {
		t.Fatalf("there is a cache, or none is left: %+v, %v", e, l.a.modeTags())
	}
	l.journalLostAfterWrites()
}

// cacheRefused makes no cache of data and map that are there.
type cacheRefused struct{ devmapper.Client }

func (r cacheRefused) Create(ctx context.Context, name, uuid string, t devmapper.Table) (devmapper.Info, error) {
	if _, cached := t.Cache(); cached {
		return devmapper.Info{}, errors.New("the SSD fails")
	}
	return r.Client.Create(ctx, name, uuid, t)
}

// kept is LVM that removes nothing.
type kept struct{ lvm.Client }

func (kept) RemoveLVs(context.Context, string, ...string) error { return errors.New("the SSD fails") }
