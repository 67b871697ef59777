package attach_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/volume"
)

// journalLost has a plugin be killed at every step of taking a cache from below a pod, which writes on. Then the
// node loses its power, and its journal: the cache is never written to the origin.
func journalLost(t *testing.T, begin func(*life), take func(*life, *plugin) error) {
	t.Helper()
	for n := 1; ; n++ {
		l := newLife(t, volume.ModeWriteback)
		l.req = l.publish(l.a.name)
		l.must("stage", l.a.Stage(l.ctx, l.req))
		l.a.podWrites(1, 0, 1, 2, 3)
		begin(l)
		l.a.killAfter(n)
		p := l.a.plugin
		ended, err := p.run(func() error { return take(l, p) })
		p.killAfter(0)
		if ended == "" {
			l.must("taken", err)
		}
		l.a.podWrites(2, 1, 2, 3, 4)
		l.a.powerLoss()
		l.a.forgetJournal()
		l.a.start()
		l.persist(l.a, "stage", func(p *plugin) error { return p.Stage(l.ctx, l.req) })
		l.a.podReads()
		l.leave(l.a)
		l.forget()
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
		l.ask(func(s *v1alpha1.CachedVolumeSpec) {
			s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWritethrough, ""
		})
		l.must("change", l.apply(l.a.plugin))
		l.a.CacheFaults().Devices = &failedLevel{Client: l.a.DM, name: layout.Device(volumeID, layout.Top)}
	}, func(l *life, p *plugin) error { return p.CacheFaults().Pass(l.ctx) })
}
