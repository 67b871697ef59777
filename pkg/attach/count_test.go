package attach_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestCountPowerLoss: a node that loses its power at any step of a count, or after it, still
// has the unflushed writes of the present. LVM has not flushed the tag with the count.
func TestCountPowerLoss(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("stage=%t", again), func(t *testing.T) {
			for n, ended := 1, "?"; ended != ""; n++ {
				l := newLife(t, volume.ModeWriteback)
				req := l.publish(l.a.name)
				l.must("stage", l.a.Stage(l.ctx, req))
				l.a.podWrites(1, 0, 1, 2, 3)
				l.countDue(l.a)
				l.a.killAfter(n)
				var err error
				ended, err = l.a.run(func() error { return l.a.CountUp(l.ctx) })
				l.must("count", err)
				if e, v := l.a.entry(), l.record().Status.Activation; ended == "" && (v.Count == nil || *v.Count != e.ActivationCount) {
					t.Fatalf("the record has %+v, the journal counts %d", v, e.ActivationCount)
				}
				l.a.powerLoss()
				l.a.start()
				l.a.killAfter(0)
				if again {
					l.must(fmt.Sprintf("stage after a power loss %q", ended), l.a.Stage(l.ctx, req))
					l.a.podReads()
					continue
				}
				l.unpublish(l.a.name)
				l.ended = []string{ended}
				l.repairUntilClean(l.a)
				l.compare("the storage server", l.lun)
			}
		})
	}
}

// countDue has the next pass count a node's volume.
func (l *life) countDue(h *host) {
	l.t.Helper()
	e := h.entry()
	e.CountedAt = time.Time{}
	l.must("journal", h.Journal.Save(string(volumeID), *e))
}
