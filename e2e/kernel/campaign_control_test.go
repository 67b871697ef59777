//go:build kernel

package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The kinds of disaster of the campaign that come from what is around the nodes: the
// records, the clock, requests that meet.

// loseRecords: nobody can read or write the records, while the volume leaves, comes
// and moves.
func (c *campaign) loseRecords() {
	ctx := c.t.Context()
	c.close()
	mustPass(c.t, "records", c.rec.hide(true))
	err := c.n.Unstage(ctx, c.req.ID, c.req.StagingPath)
	if c.mode == volume.ModeWriteback && !errors.Is(err, volume.ErrUnavailable) {
		c.t.Errorf("unstage without a record that could be marked clean: %v", err)
	}
	if err := c.n.Stage(ctx, c.req); !errors.Is(err, volume.ErrUnavailable) {
		c.t.Errorf("stage without a record: %v", err)
	}
	mustPass(c.t, "records", c.rec.hide(false))
	c.unstage()
	c.h.Drained()
	c.insist(func() error { return c.n.Stage(ctx, c.req) })
	c.again(checker.LossNothing)
	c.write(c.load(c.r), 200*time.Millisecond)
	c.close()
	c.insist(func() error { return c.n.Unstage(ctx, c.req.ID, c.req.StagingPath) })
	c.h.Drained()
	_, other := c.here()
	c.goTo(other)
	c.insist(func() error { return c.n.Stage(ctx, c.req) })
	c.again(checker.LossNothing)
}

// insist repeats a request while the records come and go, until it succeeds, as the
// kubelet does.
func (c *campaign) insist(request func() error) {
	c.t.Helper()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	pauses := rand.New(rand.NewPCG(c.r.Uint64(), 0))
	go func() {
		var err error
		for hidden := true; ; hidden = !hidden {
			longest := 1500 // there for so long
			if !hidden {
				longest = 300
			}
			select {
			case <-stop:
				stopped <- errors.Join(err, c.rec.hide(false))
				return
			case <-time.After(time.Duration(5+pauses.IntN(longest)) * time.Millisecond):
				err = errors.Join(err, c.rec.hide(hidden))
			}
		}
	}()
	var err error
	for range 60 {
		if err = request(); !errors.Is(err, volume.ErrUnavailable) && !errors.Is(err, volume.ErrBusy) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	close(stop)
	mustPass(c.t, "records", <-stopped)
	mustPass(c.t, "request while the records come and go", err)
}

// removeRecord: the node stops under load, and comes back to a volume that has no record
// (I9). Then that is there again, out of a backup tool with another UID or not.
func (c *campaign) removeRecord() {
	c.stop(false, c.load(c.r))
	backup, err := c.rec.load(c.req.ID)
	mustPass(c.t, "record", err)
	mustPass(c.t, "remove record", os.Remove(filepath.Join(c.rec.dir, string(c.req.ID))))
	for range c.r.IntN(3) {
		c.repair()
	}
	anew := c.r.IntN(2) == 0
	if anew {
		backup.Volume.Fence.UID = fmt.Sprintf("uid-anew-%d", c.r.Uint64())
		backup.Volume.WarmSource, backup.Volume.Filesystem = nil, volume.FormatDone
	}
	mustPass(c.t, "restore", c.rec.store(c.req.ID, backup))
	if !anew {
		c.repairSometimes()
		c.again(checker.LossNode)
		return
	}
	if c.mode == volume.ModeWriteback {
		c.flushed()
	}
	n := c.n
	if c.r.IntN(2) == 0 {
		_, n = c.here()
	}
	before := c.req.Publication.Fence
	c.take(n)
	c.again(checker.LossNode)
	// Clean caches of the old UID would stay until their time is up.
	for _, n := range []*node{c.a, c.b} {
		mustPass(c.t, "deleted", n.deleted(c.t.Context(), c.req.ID, before))
	}
}

// jumpClock: the clock of the machine is set forward or back under load.
func (c *campaign) jumpClock() {
	by := []time.Duration{-48 * time.Hour, -10 * time.Minute, 10 * time.Minute, 400 * 24 * time.Hour}[c.r.IntN(4)]
	end := c.begin(c.load(c.r))
	c.jump(by)
	time.Sleep(200 * time.Millisecond)
	end()
	c.must(checker.LossNothing)
	c.leave()
	c.repair()
	if c.r.IntN(2) == 0 {
		_, other := c.here()
		c.goTo(other)
	}
	c.again(checker.LossNothing)
	end = c.begin(c.load(c.r))
	c.jump(-by)
	time.Sleep(100 * time.Millisecond)
	end()
	c.must(checker.LossNothing)
	c.repair()
}

// jump sets the clock.
func (c *campaign) jump(by time.Duration) {
	c.t.Helper()
	tv := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
	mustPass(c.t, "clock", unix.Settimeofday(&tv))
}

// stageAtOnce: both nodes are asked for the volume at the same time, each with every
// publication that there is.
func (c *campaign) stageAtOnce() {
	from, old := c.n, c.req
	c.leave()
	_, other := c.here()
	c.goTo(other)
	type try struct {
		n   *node
		req volume.StageRequest
		err error
	}
	tries := []*try{{n: from, req: old}, {n: other, req: c.req}, {n: from, req: c.req}, {n: other, req: old}, {n: other, req: c.req}, {n: from, req: old}}
	var all sync.WaitGroup
	for _, t := range tries {
		all.Go(func() { t.err = t.n.Stage(c.t.Context(), t.req) })
	}
	all.Wait()
	for _, t := range tries {
		entitled := t.n == other && t.req.Publication.Fence == c.req.Publication.Fence
		if entitled && t.err != nil || !entitled && !errors.Is(t.err, volume.ErrFenced) {
			c.t.Errorf("stage of generation %d, entitled %t: %v", t.req.Publication.Fence.Generation, entitled, t.err)
		}
	}
	c.again(checker.LossNothing)
}

// flushed lets repair bring the volume down.
func (c *campaign) flushed() {
	c.t.Helper()
	for range 20 {
		c.repair()
		if c.n.atRest(c.req.ID) {
			return
		}
	}
	c.t.Fatalf("%s: repair does not flush", c.kind)
}

// restoreRecords: the volume has moved, and the record comes back from a backup of
// before (states.md, A record that is older than the truth).
func (c *campaign) restoreRecords() {
	old := c.req
	backup, err := c.rec.load(c.req.ID)
	mustPass(c.t, "record", err)
	c.leave()
	if c.r.IntN(2) == 0 { // or of after it had left
		backup, err = c.rec.load(c.req.ID)
		mustPass(c.t, "record", err)
	}
	_, other := c.here()
	c.goTo(other)
	c.use()
	c.write(c.load(c.r), 500*time.Millisecond)
	loss, stopped := checker.LossNothing, c.r.IntN(2) == 0
	if stopped {
		loss = checker.LossNode
		c.stop(false, c.load(c.r))
	}
	mustPass(c.t, "restore", c.rec.store(c.req.ID, backup))
	// The node that has written brings it to the storage server, whatever the record
	// says by now: as it starts, or as the kubelet ends the pod that nobody knows.
	if stopped {
		c.flushed()
	} else {
		c.close()
		c.unstage()
		c.h.Drained()
	}
	e, err := c.n.Journal.Load(string(c.req.ID))
	if err != nil && !stopped || e.MayBeDirty() || c.mode == volume.ModeWriteback && (err != nil || e.State != state.Retained) {
		c.t.Errorf("the journal of the node that has written says %s, %v", e.State, err)
	}
	// The one before has an attachment that the record agrees with.
	_, from := c.here()
	refusesGivenAway(c.t, from, old)
	if c.r.IntN(2) == 0 {
		mustPass(c.t, "unstage", unstage(c.t.Context(), from, old))
	}
	// The controller learns from the storage server who the last owner was.
	mustPass(c.t, "record", c.rec.update(c.req.ID, func(r *fileRecord) error {
		r.Volume.Fence, r.Volume.PossiblyDirty = c.req.Publication.Fence, c.mode == volume.ModeWriteback
		return nil
	}))
	c.repair()
	c.goTo(from)
	c.again(loss)
}
