package attach_test

import (
	"os"
	"testing"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestOldJournal: the system disk of a node is restored from a backup, and its SSD is not.
// What is unflushed there is recovered, whatever the journal says of the time of before.
func TestOldJournal(t *testing.T) {
	stagedOnA := func(l *life) []byte {
		l.begin(l.a)
		data, err := os.ReadFile(l.a.gate.journal)
		l.must("back the journal up", err)
		return data
	}
	for name, backup := range map[string]func(l *life) []byte{
		"of an earlier generation": func(l *life) []byte {
			l.req = l.publish(l.a.name)
			data := stagedOnA(l)
			l.a.podWrites(1, 0, 1)
			l.leave(l.a)
			l.stay(l.b, 2, 1)
			l.req = l.publish(l.a.name)
			return data
		},
		"of writethrough": func(l *life) []byte {
			l.ask(func(s *v1alpha1.CachedVolumeSpec) {
				s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWritethrough, ""
			})
			l.mode = volume.ModeWritethrough
			l.req = l.publish(l.a.name)
			data := stagedOnA(l)
			l.ask(func(s *v1alpha1.CachedVolumeSpec) {
				s.CacheMode, s.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss
			})
			l.mode = volume.ModeWriteback
			l.persist(l.a, "writeback", l.apply)
			return data
		},
		"of a stay without a cache": func(l *life) []byte {
			l.ask(func(s *v1alpha1.CachedVolumeSpec) {
				s.CacheMode, s.CacheSize, s.ChunkSizeBytes, s.AcceptDirtyLoss = v1alpha1.CacheModeNone, "", nil, ""
			})
			l.req = l.publish(l.a.name)
			data := stagedOnA(l)
			l.leave(l.a)
			l.ask(func(s *v1alpha1.CachedVolumeSpec) {
				s.CacheMode, s.CacheSize, s.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, "4Mi", v1alpha1.DirtyLossNodeLoss
			})
			l.req = l.publish(l.a.name)
			return data
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, volume.ModeWriteback)
			data := backup(l)
			l.begin(l.a)
			l.a.podWrites(3, 2, 3)
			l.a.powerLoss()
			l.must("restore the journal", os.WriteFile(l.a.gate.journal, data, 0o600))
			l.a.start()
			for range 3 {
				_ = l.a.Repair(l.ctx) // whatever it says: nothing is destroyed
			}
			l.begin(l.a)
			l.a.podReads()
			l.leave(l.a)
		})
	}
}
