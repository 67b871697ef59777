package attach_test

import (
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestUncachedJournalLost: a cache that was taken from below a pod is never written to the origin, wherever
// the plugin was killed, and though the journal is lost before its logical volumes are removed.
func TestUncachedJournalLost(t *testing.T) {
	for n := 1; ; n++ {
		l := newLife(t, volume.ModeWriteback)
		l.req = l.publish(l.a.name)
		l.must("stage", l.a.Stage(l.ctx, l.req))
		l.a.podWrites(1, 0, 1, 2, 3)
		l.ask(func(s *v1alpha1.CachedVolumeSpec) {
			s.CacheMode, s.CacheSize, s.ChunkSizeBytes = v1alpha1.CacheModeNone, "", nil
		})
		l.a.killAfter(n)
		p := l.a.plugin
		ended, _ := p.run(func() error { return l.apply(p) })
		p.killAfter(0)
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

// TestFailedOverJournalLost is the same of a cache that had been in writeback mode, and failed.
func TestFailedOverJournalLost(t *testing.T) {
	for n := 1; ; n++ {
		l := newLife(t, volume.ModeWriteback)
		l.req = l.publish(l.a.name)
		l.must("stage", l.a.Stage(l.ctx, l.req))
		l.a.podWrites(1, 0, 1, 2, 3)
		l.ask(func(s *v1alpha1.CachedVolumeSpec) {
			s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWritethrough, ""
		})
		l.must("change", l.apply(l.a.plugin))
		p := l.a.plugin
		p.CacheFaults().Devices = &failedLevel{Client: p.DM, name: layout.Device(volumeID, layout.Top)}
		l.a.killAfter(n)
		ended, err := p.run(func() error { return p.CacheFaults().Pass(l.ctx) })
		p.killAfter(0)
		if ended == "" {
			l.must("failover", err)
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
