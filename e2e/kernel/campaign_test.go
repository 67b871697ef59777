//go:build kernel

package kernel

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/faultpoint"
	"github.com/nearflash/nearflash/pkg/volume"
)

// defaultDisasters is how many a campaign has without DISASTERS: every kind, and some
// in both modes; or a third of the kinds, where others run beside it (make test-full has all).
func defaultDisasters() uint64 {
	if every() {
		return 48
	}
	return 11
}

// campaign is a series of disasters of two volumes, one in each mode that caches.
type campaign struct {
	*watched
	r *rand.Rand
	// kinds are the disasters that it may have, kind is the one under way, counts what came of each.
	kinds  map[string]func(*campaign)
	kind   string
	counts map[string]*tally
}

// tally is what came of one kind of disaster.
type tally struct {
	disasters int
	verdicts  map[checker.Verdict]int
	took      time.Duration
	// streamed is how often a cache came by stream.
	streamed int
}

// disasters are the kinds. Each begins and ends with the volume staged and open.
var disasters = map[string]func(*campaign){
	"plugin killed during stage":               (*campaign).killStage,
	"plugin killed during unstage":             (*campaign).killUnstage,
	"plugins killed during a move":             (*campaign).killMove,
	"move":                                     (*campaign).move,
	"source node lost during a move":           (*campaign).loseLessor,
	"node stopped under load":                  (*campaign).stopNode,
	"node and SSD write cache stopped":         (*campaign).stopForgetful,
	"node stopped, flushes were dropped":       (*campaign).stopUnsafe,
	"node stopped during unstage":              (*campaign).stopUnstage,
	"node stopped during stage":                (*campaign).stopStage,
	"node stopped during a flush asked for":    (*campaign).stopFlush,
	"node stopped during a hydration":          (*campaign).stopHydration,
	"node abandoned with consent":              (*campaign).giveUp,
	"SSD data fails for a while":               (*campaign).failSSD,
	"storage network cut":                      (*campaign).cutNetwork,
	"storage server fails writes for a while":  (*campaign).failServer,
	"storage service restarted":                (*campaign).restartStorage,
	"plugin killed during a change of mode":    (*campaign).changeMode,
	"plugin killed during a flush asked for":   (*campaign).killFlush,
	"stage on a second node, or of old fence":  (*campaign).stageTwice,
	"stopped, and stopped again while flushed": (*campaign).stopTwice,
	"SSD with bad sectors":                     (*campaign).badSectors,
	"SSD takes no writes":                      (*campaign).refuseWrites,
	"SSD lost":                                 (*campaign).loseSSD,
	"SSD full":                                 (*campaign).fillSSD,
	"map of a resting cache damaged":           (*campaign).spoilMap,
	"records out of reach":                     (*campaign).loseRecords,
	"records restored from a backup":           (*campaign).restoreRecords,
	"record removed while the node was away":   (*campaign).removeRecord,
	"clock set forward or back":                (*campaign).jumpClock,
	"stage on two nodes at the same time":      (*campaign).stageAtOnce,
	"node restored from an image":              (*campaign).restoreNode,
	"snapshot under load":                      (*campaign).snapshotUnderLoad,
	"snapshot, plugin killed":                  (*campaign).snapshotKilled,
	"snapshot, node stopped":                   (*campaign).snapshotStopped,
	"snapshot, volume leaves":                  (*campaign).snapshotAtRest,
}

// TestKernelCampaign: after each of many disasters, chosen by SEED, every block of the
// volume reads as the contract allows. DISASTERS is their number, KINDS a part of the
// names of those that are wanted.
func TestKernelCampaign(t *testing.T) {
	campaignOf(t, disasters, defaultDisasters(), newWatched)
}

// campaignOf is a campaign of n disasters, without DISASTERS.
func campaignOf(t *testing.T, of map[string]func(*campaign), otherwise uint64, begin func(*testing.T, *machine, string, volume.CacheMode) *watched) {
	seed, n := number(t, seedEnv, 1), number(t, "DISASTERS", otherwise)
	kinds := slices.DeleteFunc(slices.Sorted(maps.Keys(of)), func(k string) bool { return !strings.Contains(k, os.Getenv("KINDS")) })
	kinds = possible(kinds)
	m := newMachine(t)
	r := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]*tally{}
	var deck []string
	share := map[volume.CacheMode]uint64{volume.ModeWritethrough: n / 2, volume.ModeWriteback: n - n/2}
	for _, mode := range []volume.CacheMode{volume.ModeWriteback, volume.ModeWritethrough} {
		c := &campaign{watched: begin(t, m, "campaign-"+string(mode), mode), r: r, kinds: of, counts: counts}
		c.use()
		for range share[mode] {
			if len(deck) == 0 { // every kind once before any comes again
				deck = slices.Clone(kinds)
				r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			}
			c.run(deck[0])
			deck = deck[1:]
		}
		c.leave()
		c.goTo(c.a)
		c.end()
		if left := c.origin.left(c.a, c.b); len(left) > 0 {
			t.Fatalf("left behind: %v", left)
		}
	}
	if left := m.leaks(); len(left) > 0 {
		t.Fatalf("left behind: %v", left)
	}
	wantStreamed(t, counts)
	report(seed, counts)
}

// number is an environment variable, or what holds without it.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 32)
	mustPass(t, name, err)
	return n
}

// run is one disaster of a kind.
func (c *campaign) run(kind string) {
	began := time.Now()
	c.kind = kind
	if c.counts[kind] == nil {
		c.counts[kind] = &tally{verdicts: map[checker.Verdict]int{}}
	}
	c.t.Logf("%s: %s", c.mode, kind)
	// As a plugin does every few seconds: with a cache that failed when it was looked
	// at last, nothing is done.
	mustPass(c.t, "look at the caches", c.n.CacheFaults().Pass(c.t.Context()))
	c.write(c.load(c.r), 300*time.Millisecond)
	c.kinds[kind](c)
	c.origin.none(c.t, kind)
	c.counts[kind].disasters++
	c.counts[kind].took += time.Since(began)
}

// must judges, and ends the campaign if the contract is broken.
func (c *campaign) must(l checker.Loss) {
	c.t.Helper()
	r := c.judge(l)
	for v, n := range r.Verdicts {
		c.counts[c.kind].verdicts[v] += n
	}
	if err := r.Err(); err != nil {
		c.t.Fatalf("%s, %s: %v", c.mode, c.kind, err)
	}
}

// report prints one line for each kind.
func report(seed uint64, counts map[string]*tally) {
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t := counts[kind]
		total += t.disasters
		fmt.Printf("campaign: %-42s %3d disasters, blocks: %s (%s)\n", kind, t.disasters,
			checker.Report{Verdicts: t.verdicts}, (t.took / time.Duration(max(1, t.disasters))).Round(10*time.Millisecond))
	}
	fmt.Printf("campaign: seed %d, %d disasters, no violation, nothing left behind\n", seed, total)
}

// again stages the volume and judges, as after anything that must cost nothing.
func (c *campaign) again(l checker.Loss) {
	c.t.Helper()
	c.use()
	c.must(l)
}

// repair is what both plugins do when they start.
func (c *campaign) repair() {
	c.t.Helper()
	mustPass(c.t, "repair", errors.Join(c.a.Repair(c.t.Context()), c.b.Repair(c.t.Context())))
}

// goTo makes a node the owner of a volume that is not staged and that is clean, as the
// controller demands.
func (c *campaign) goTo(n *node) {
	c.t.Helper()
	if n == c.n {
		return
	}
	rec, err := c.rec.load(c.req.ID)
	mustPass(c.t, "record", err)
	if rec.Volume.PossiblyDirty {
		c.t.Fatalf("%s: the record of a volume that was unstaged says possibly dirty", c.kind)
	}
	c.take(n)
}

// take makes a node the owner whatever the old one may hold.
func (c *campaign) take(n *node) {
	c.t.Helper()
	name := nodeName
	if n == c.b {
		name = otherName
	}
	c.publishTo(n, name)
}

// order is for a child on the node that has the volume.
func (c *campaign) order(o order) order {
	if o.Lessor = c.a.dir; c.n == c.a {
		o.Lessor, o.Other = "", c.b.dir
	}
	return o
}

// point chooses a fault point.
func (c *campaign) point(prefixes ...string) string {
	var points []string
	for _, p := range faultpoint.List() {
		for _, prefix := range prefixes {
			if strings.HasPrefix(p, prefix) && !strings.HasPrefix(p, "stage.form") && !strings.HasPrefix(p, "stage.mount") {
				points = append(points, p)
			}
		}
	}
	return points[c.r.IntN(len(points))]
}

func (c *campaign) killStage() {
	c.leave()
	c.killAt(c.point("stage.", "wipe."), c.order(order{}))
	c.repair()
	c.again(checker.LossNothing)
}

func (c *campaign) killUnstage() {
	c.close()
	c.killAt(c.point("unstage.", "reload."), c.order(order{Unstage: true}))
	c.repair()
	c.unstage()
	c.h.Drained()
	c.again(checker.LossNothing)
}

func (c *campaign) move() {
	c.leave()
	_, other := c.here()
	c.goTo(other)
	c.again(checker.LossNothing)
	if c.r.IntN(2) == 0 {
		end := c.begin(c.pausing())
		c.wantHydrated()
		end()
		c.must(checker.LossNothing)
	}
}

// pausing is a load that leaves a hydration its time: dm-clone copies while nothing else is
// under way.
func (c *campaign) pausing() checker.Load {
	l := c.load(c.r)
	l.Batch, l.Pause = 2, 20*time.Millisecond
	return l
}

// toA brings the volume to the first node, with a cache that is whole.
func (c *campaign) toA() {
	c.leave()
	c.goTo(c.a)
	c.use()
	c.wantHydrated()
	c.write(c.load(c.r), 300*time.Millisecond)
}

func (c *campaign) killMove() {
	c.toA()
	c.leave()
	c.goTo(c.b)
	point := c.point("hydration.", "export.", "release.", "stage.taken")
	for point == "hydration.remapped" || point == "hydration.left" {
		point = c.point("hydration.")
	}
	// Every other one begins before it is asked to, and of these every other one is
	// asked meanwhile.
	o := order{Lessor: c.a.dir, Prepare: c.gen%2 == 0, Announce: c.gen%4 == 0}
	if !c.killAt(point, o) {
		o.Hydration = true
		c.killAt(point, o)
	}
	c.repair()
	c.again(checker.LossNothing)
	c.wantHydrated()
	c.must(checker.LossNothing)
	c.release()
}

// release ends what the dead left exported, as its deadline would.
func (c *campaign) release() {
	c.t.Helper()
	for _, n := range []*node{c.a, c.b} {
		n.releaseAll(c.t)
	}
}

func (c *campaign) loseLessor() {
	c.leave()
	_, other := c.here()
	lessor := c.n
	c.goTo(other)
	c.use()
	end := c.begin(c.pausing())
	mustPass(c.t, "loss", lessor.Exporter.Unexport(c.t.Context(), string(c.req.ID)))
	c.wantHydrated()
	end()
	c.must(checker.LossNothing)
	c.release()
	c.repair()
}

func (c *campaign) stopNode() {
	c.stop(false, c.load(c.r))
	c.repairSometimes()
	c.again(checker.LossNode)
}

func (c *campaign) stopForgetful() {
	c.stop(true, c.load(c.r))
	c.repairSometimes()
	c.again(checker.LossNode)
}

// repairSometimes: the kubelet may come before or after the plugin's repair.
func (c *campaign) repairSometimes() {
	if c.r.IntN(2) == 0 {
		c.repair()
	}
}

// stopUnstage: the node stops in the middle of an unstage.
func (c *campaign) stopUnstage() {
	c.close()
	c.killAt(c.point("unstage."), c.order(order{Unstage: true}))
	c.stopIdle()
	c.repairSometimes()
	c.again(checker.LossNode)
}

// stopStage: the node stops in the middle of a stage.
func (c *campaign) stopStage() {
	c.leave()
	c.killAt(c.point("stage.", "wipe."), c.order(order{}))
	c.stopIdle()
	c.repairSometimes()
	c.again(checker.LossNothing)
}

// stopFlush: the node stops in the middle of a flush that was asked for, with the volume
// staged.
func (c *campaign) stopFlush() {
	c.ask(func(v *volume.Volume) { v.FlushRequest = fmt.Sprint("flush-", c.r.Uint64()) })
	c.close()
	c.killAt(c.point("change.cleaner", "change.cleaned", "reload."), c.order(order{Change: true}))
	c.stopIdle()
	c.repairSometimes()
	c.again(checker.LossNode)
}

// stopIdle stops the owner while nobody uses the volume.
func (c *campaign) stopIdle() {
	s := c.owner()
	s.cut()
	s.vanish()
	c.restart()
}

// stopTwice: the node stops again in the middle of the flush after the first stop.
func (c *campaign) stopTwice() {
	c.stop(false, c.load(c.r))
	c.killAt(c.point("unstage.", "wipe.", "reload."), c.order(order{Repair: true}))
	c.stopIdle()
	c.repairSometimes()
	c.again(checker.LossNode)
}

func (c *campaign) stopHydration() {
	c.leave()
	_, other := c.here()
	c.goTo(other)
	c.use()
	c.write(c.load(c.r), 300*time.Millisecond)
	c.stop(c.r.IntN(2) == 0, c.load(c.r))
	c.repairSometimes()
	c.again(checker.LossNode)
	c.wantHydrated()
	c.must(checker.LossNothing)
	c.release()
	c.repair()
}

// giveUp: the node is lost, and an administrator gives its writes up. It comes back
// when another one has had the volume, and must change nothing. (Not while that one has
// it attached: in one kernel they would have the same devices.)
func (c *campaign) giveUp() {
	c.stop(false, c.load(c.r))
	_, other := c.here()
	c.take(other)
	c.again(checker.LossNode | checker.LossCache)
	c.write(c.load(c.r), 300*time.Millisecond)
	c.leave()
	c.repair()
	c.again(checker.LossNothing)
}

// failSSD: the SSD's data fail under load, and work again.
func (c *campaign) failSSD() {
	s := c.owner()
	end := c.begin(c.load(c.r))
	for _, lv := range s.lvs() {
		if !strings.HasSuffix(lv.Name, ".data") {
			continue
		}
		dev := c.m.dmName(lv)
		table := c.m.must("dmsetup", "table", dev)
		c.m.swap(dev, fmt.Sprintf("0 %d error", lv.SizeBytes/512))
		time.Sleep(100 * time.Millisecond)
		c.m.swap(dev, strings.TrimSpace(table))
	}
	end()
	c.must(checker.LossNothing)
}

func (c *campaign) changeMode() {
	next := volume.ModeWriteback
	if c.mode == volume.ModeWriteback {
		next = volume.ModeWritethrough
	}
	for _, m := range []volume.CacheMode{next, c.mode} {
		if m == volume.ModeWriteback {
			c.h.SetMode(checker.Writeback) // from the moment on in which it may be so
		}
		c.ask(mode(m))
		c.killAt(c.point("change.cleaner", "change.cleaned", "change.denied", "change.tagged", "change.writeback", "reload."), c.order(order{Change: true}))
		c.repair()
		c.change()
		if m == volume.ModeWritethrough {
			c.h.Drained()
			c.h.SetMode(checker.Writethrough)
		}
		c.must(checker.LossNothing)
		c.write(c.load(c.r), 200*time.Millisecond)
	}
}

func (c *campaign) killFlush() {
	c.ask(func(v *volume.Volume) { v.FlushRequest = fmt.Sprint("flush-", c.r.Uint64()) })
	c.killAt(c.point("change.cleaner", "change.cleaned", "reload."), c.order(order{Change: true}))
	c.change()
	c.h.Drained()
	c.must(checker.LossNothing)
}

// stageTwice: another node, and one with an older fence, try to have the volume too.
func (c *campaign) stageTwice() {
	_, other := c.here()
	old := c.req
	old.Publication.Fence.Generation--
	end := c.begin(c.load(c.r))
	for _, try := range []struct {
		n   *node
		req volume.StageRequest
	}{{other, c.req}, {c.n, old}, {other, old}} {
		if err := try.n.Stage(c.t.Context(), try.req); !errors.Is(err, volume.ErrFenced) {
			c.t.Errorf("stage of generation %d: %v, want ErrFenced", try.req.Publication.Fence.Generation, err)
		}
	}
	end()
	c.must(checker.LossNothing)
}
