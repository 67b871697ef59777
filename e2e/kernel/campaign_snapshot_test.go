//go:build kernel

package kernel

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The kinds of disaster of the campaign that come while a snapshot is made.

// snap asks for a snapshot that has a name of its own.
func (c *campaign) snap() *shot {
	c.t.Helper()
	s := c.shoot(fmt.Sprintf("snapshot-%s-%d", c.req.ID, c.r.Uint64()))
	s.haphazard(c.r)
	return s
}

// mustBe judges a snapshot, lets the volume be written to, and judges that too.
func (c *campaign) mustBe(s *shot) {
	c.t.Helper()
	r := s.judge()
	for v, n := range r.Verdicts {
		c.counts[c.kind].verdicts[v] += n
	}
	if err := r.Err(); err != nil {
		c.t.Fatalf("%s, %s: snapshot: %v", c.mode, c.kind, err)
	}
	c.change()
	if st, found := c.cache(); !found || string(st.Mode()) != string(c.mode) {
		c.t.Errorf("%s, %s: the cache is in mode %s once nothing holds it (%t)", c.mode, c.kind, st.Mode(), found)
	}
	c.write(c.load(c.r), 200*time.Millisecond)
	s.end()
	c.must(checker.LossNothing)
}

// snapshotUnderLoad: the controller is killed at one of its steps, or the storage service ends in
// the middle of the cut, or neither.
func (c *campaign) snapshotUnderLoad() {
	end := c.begin(c.load(c.r))
	s := c.snap()
	s.insist(c.drain)
	end()
	c.mustBe(s)
}

// snapshotKilled: the plugin is killed while it flushes for the snapshot, or goes back.
func (c *campaign) snapshotKilled() {
	end := c.begin(c.load(c.r))
	s := c.snap()
	for range 1 + c.r.IntN(3) {
		if s.ask() {
			break
		}
	}
	c.killAt(c.point("change.cleaner", "change.cleaned", "change.tagged", "change.writeback", "reload."), c.order(order{Change: true}))
	c.repair()
	s.insist(c.drain)
	end()
	c.mustBe(s)
}

// snapFor asks for a snapshot under load, for a while; done says that it was made.
func (c *campaign) snapFor() (s *shot, done bool) {
	end := c.begin(c.load(c.r))
	defer end()
	s = c.snap()
	done = s.ask()
	for range c.r.IntN(4) {
		c.drain()
		done = done || s.ask()
	}
	return s, done
}

// finish has such a snapshot made under load, unless it was, and judged.
func (c *campaign) finish(s *shot, done bool) {
	end := c.begin(c.load(c.r))
	if !done {
		s.insist(c.drain)
	}
	end()
	c.mustBe(s)
}

// snapshotStopped: the node stops on the way, and flushes when it is back.
func (c *campaign) snapshotStopped() {
	s, done := c.snapFor()
	c.stop(false, c.load(c.r))
	c.repairSometimes()
	c.again(checker.LossNode)
	c.finish(s, done)
}

// snapshotAtRest: the volume leaves its node on the way, and comes to the other one.
func (c *campaign) snapshotAtRest() {
	s, done := c.snapFor()
	c.leave()
	ctx := c.t.Context()
	mustPass(c.t, "unpublish", c.m.svc.UnexportVolume(ctx, string(c.req.ID), "", ""))
	mustPass(c.t, "record", c.rec.update(c.req.ID, func(r *fileRecord) error {
		r.Volume.Published = false
		return nil
	}))
	if !done && c.r.IntN(2) == 0 {
		s.insist(func() {})
		done = true
	}
	_, other := c.here()
	c.goTo(other)
	c.use()
	c.finish(s, done)
}

// cutUndrained: the storage server is not asked for what the SSD alone has.
func cutUndrained(t *testing.T, m *machine, name string) checker.Report {
	w := newWatched(t, m, name, volume.ModeWriteback)
	w.use()
	w.dirty(w.load(seeded()))
	end := w.begin(w.load(seeded())) // an idle volume is clean before it is cut
	s := w.shoot("snapshot-" + name)
	s.insist(w.drain)
	end()
	r := s.judge()
	r.Verdicts[checker.Stale] += r.Verdicts[checker.OutOfOrder]
	s.end()
	w.change()
	w.leave()
	w.end()
	return r
}
