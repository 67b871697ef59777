//go:build kernel

package kernel

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/volume"
)

func init() {
	disasters["move by stream"] = (*campaign).moveByStream
	disasters["plugins killed during a stream"] = (*campaign).killStream
	disasters["source node lost during a stream"] = (*campaign).loseStream
	disasters["node stopped during a stream"] = (*campaign).stopStream
	disasters["moved again during a stream"] = (*campaign).moveAgain
	disasters["mode changed during a stream"] = (*campaign).changeStream
	disasters["expanded during a stream"] = (*campaign).growStream
	disasters["dirty limit set during a stream"] = (*campaign).limitStream
}

// ofStream reports whether a kind is one with a stream.
func ofStream(kind string) bool { return strings.Contains(kind, "stream") }

// ofStreams are the kinds with a stream, which any kernel can have.
func ofStreams() map[string]func(*campaign) {
	kinds := map[string]func(*campaign){}
	for kind, do := range disasters {
		if ofStream(kind) {
			kinds[kind] = do
		}
	}
	return kinds
}

// TestKernelCampaignStream is TestKernelCampaign of the kinds with a stream.
func TestKernelCampaignStream(t *testing.T) {
	kinds := ofStreams()
	campaignOf(t, kinds, uint64(2*len(kinds)), newWatched)
}

// wantStreamed wants each kind with a stream to have had one, if it came more than once, and all of them
// together: a disaster before may have cost the cache of the one.
func wantStreamed(t *testing.T, counts map[string]*tally) {
	t.Helper()
	came, streamed := 0, 0
	for kind, c := range counts {
		if !ofStream(kind) {
			continue
		}
		came, streamed = came+c.disasters, streamed+c.streamed
		if c.disasters > 1 && c.streamed == 0 {
			t.Errorf("%s: in none of %d a cache came by stream", kind, c.disasters)
		}
	}
	if came > 1 && streamed == 0 {
		t.Errorf("in none of %d disasters of streams a cache came by stream", came)
	}
}

// by has a volume's cache follow it by a method.
func by(m volume.MoveMethod) func(*volume.Volume) {
	return func(r *volume.Volume) { r.Spec.WarmStart.Method = m }
}

// streamTo takes the volume, which is not staged, to the other node by stream. Whatever comes
// next begins with the method that it had.
func (c *campaign) streamTo() {
	c.t.Helper()
	_, other := c.here()
	c.goTo(other)
	c.ask(by(volume.MethodStream))
	other.prepare(c.t.Context(), c.req, false)
	c.use()
	e, err := c.n.Journal.Load(string(c.req.ID))
	mustPass(c.t, "journal", err)
	if e.Streams() {
		c.counts[c.kind].streamed++
	}
	c.ask(by(volume.MethodClone))
}

// leaveWhole ends what the disaster before has left to be copied, and has the volume leave: a cache that
// is not whole is not kept, and nothing can stream it.
func (c *campaign) leaveWhole() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	if err := c.n.hydrateAll(ctx, c.req.ID); err != nil {
		c.t.Logf("what was left to be copied: %v", err)
	}
	c.leave()
}

func (c *campaign) moveByStream() {
	c.leaveWhole()
	c.streamTo()
	c.must(checker.LossNothing)
	end := c.begin(c.load(c.r))
	c.wantHydrated()
	end()
	c.must(checker.LossNothing)
	c.release()
}

func (c *campaign) killStream() {
	c.toA()
	c.leave()
	c.goTo(c.b)
	c.ask(by(volume.MethodStream))
	// Those of the source too, as far as a stream comes by them.
	prefixes := []string{"stream.", "export.", "release.", "stage.taken"}
	point := c.point(prefixes...)
	for point == "stream.denied" { // that is for an end without a level
		point = c.point(prefixes...)
	}
	o := order{Lessor: c.a.dir, Prepare: true}
	came := c.killAt(point, o)
	if !came {
		// Not every move passes every point.
		e, err := c.n.Journal.Load(string(c.req.ID))
		mustPass(c.t, "journal", err)
		o.Hydration = true
		came = c.killAt(point, o) || e.Streams()
	}
	if came {
		c.counts[c.kind].streamed++
	}
	c.repair()
	c.again(checker.LossNothing)
	c.ask(by(volume.MethodClone))
	c.write(c.load(c.r), 300*time.Millisecond)
	c.wantHydrated()
	c.must(checker.LossNothing)
	c.release()
}

func (c *campaign) loseStream() {
	c.leaveWhole()
	source := c.n
	c.streamTo()
	end := c.begin(c.load(c.r))
	source.releaseAll(c.t)
	c.wantHydrated()
	end()
	c.must(checker.LossNothing)
	c.release()
	c.repair()
}

func (c *campaign) stopStream() {
	c.leaveWhole()
	c.streamTo()
	c.stop(c.r.IntN(2) == 0, c.load(c.r))
	c.repairSometimes()
	c.again(checker.LossNode)
	c.release()
}

// moveAgain: the volume leaves while its cache comes, and what has come goes on with it.
func (c *campaign) moveAgain() {
	c.leaveWhole()
	c.streamTo()
	c.write(c.load(c.r), 200*time.Millisecond)
	c.must(checker.LossNothing)
	c.leave()
	c.streamTo()
	c.must(checker.LossNothing)
	end := c.begin(c.load(c.r))
	c.wantHydrated()
	end()
	c.must(checker.LossNothing)
	c.release()
	c.repair()
}

// changeStream: the other mode is asked for while the cache comes, which is written through until
// then, and the mode of before later.
func (c *campaign) changeStream() {
	c.leaveWhole()
	c.streamTo()
	next := volume.ModeWriteback
	if c.mode == volume.ModeWriteback {
		next = volume.ModeWritethrough
	}
	c.h.SetMode(checker.Writeback) // the one or the other is
	for _, m := range []volume.CacheMode{next, c.mode} {
		c.ask(mode(m))
		c.changeSoon()
		c.write(c.load(c.r), 200*time.Millisecond)
		c.must(checker.LossNothing)
		c.wantHydrated()
		c.change()
		if m == volume.ModeWritethrough {
			c.h.Drained()
		}
		c.must(checker.LossNothing)
		c.write(c.load(c.r), 200*time.Millisecond)
	}
	if c.mode == volume.ModeWritethrough {
		c.h.SetMode(checker.Writethrough)
	}
	c.must(checker.LossNothing)
	c.release()
}

// changeSoon looks once for what is asked for, which waits until the cache is there.
func (c *campaign) changeSoon() {
	_, err := c.n.Change(c.t.Context())
	mustPass(c.t, "look for changes", err)
}

// limitStream: a dirty limit is set while the cache comes, and taken away when it is there.
func (c *campaign) limitStream() {
	c.leaveWhole()
	c.streamTo()
	c.ask(func(v *volume.Volume) { v.Spec.DirtyLimit.Max = volume.Size{Bytes: mib} })
	c.changeSoon()
	c.write(c.load(c.r), 200*time.Millisecond)
	c.wantHydrated()
	c.change()
	c.write(c.load(c.r), 200*time.Millisecond)
	c.must(checker.LossNothing)
	c.ask(func(v *volume.Volume) { v.Spec.DirtyLimit = volume.DirtyLimit{} })
	c.change()
	c.must(checker.LossNothing)
	c.release()
}

// growStream: the volume grows under load while its cache comes.
func (c *campaign) growStream() {
	c.leaveWhole()
	c.streamTo()
	end := c.begin(c.load(c.r))
	c.grow()
	mustPass(c.t, "expand", c.expand(c.t.Context()))
	c.wantHydrated()
	end()
	c.wantGrown()
	c.must(checker.LossNothing)
	c.release()
}

// grow makes the volume larger where it lies, and in the record, by which the next node prepares.
func (c *campaign) grow() {
	c.t.Helper()
	c.enlarge(8 * mib)
	c.ask(func(v *volume.Volume) { v.Spec.CapacityBytes = c.size })
}

// streamUntracked: what was written on the new node is served as the old one had it.
func streamUntracked(t *testing.T, m *machine, name string) checker.Report {
	w := newWatched(t, m, name, volume.ModeWritethrough)
	w.ask(by(volume.MethodStream))
	r := seeded()
	w.use()
	w.warm(w.load(r))
	w.leave()
	w.publishTo(w.b, otherName)
	w.b.prepare(t.Context(), w.req, false)
	w.use()
	w.write(w.load(r), 500*time.Millisecond)
	w.wantHydrated()
	report := w.judge(checker.LossNothing)
	w.leave()
	w.end()
	return report
}
