//go:build kernel

package kernel

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/transport/csi/origintest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// overDriver are the kinds of disaster of a volume over another driver: three of its own, and those of
// others that do not need the storage server, nor a record of before.
func overDriver() map[string]func(*campaign) {
	kinds := map[string]func(*campaign){
		"driver fails, hangs or dies in a call": (*campaign).failCalls,
		"driver dies under load":                (*campaign).loseDriver,
		"grown, and the driver fails":           (*campaign).failGrowth,
	}
	for _, kind := range []string{
		"move", "plugin killed during stage", "plugin killed during unstage", "plugins killed during a move", "plugin killed during a change of mode",
		"plugin killed during a flush asked for", "source node lost during a move", "node stopped under load", "node and SSD write cache stopped",
		"node stopped during stage", "node stopped during unstage", "node stopped during a hydration", "node stopped during a flush asked for",
		"stopped, and stopped again while flushed", "node abandoned with consent", "SSD data fails for a while", "SSD with bad sectors",
		"SSD takes no writes", "SSD lost", "SSD full", "map of a resting cache damaged", "stage on a second node, or of old fence",
		"stage on two nodes at the same time", "records out of reach", "clock set forward or back",
	} {
		kinds[kind] = disasters[kind]
	}
	maps.Copy(kinds, ofStreams())
	return kinds
}

// defaultOver is how many disasters a campaign over another driver has without DISASTERS.
func defaultOver() uint64 {
	if every() {
		return uint64(len(overDriver()))
	}
	return 6
}

// TestKernelCampaignOrigin is TestKernelCampaign over a CSI driver that fails the test at each breach of
// the specification, and that itself fails, hangs and dies.
func TestKernelCampaignOrigin(t *testing.T) {
	campaignOf(t, overDriver(), defaultOver(), func(t *testing.T, m *machine, name string, mode volume.CacheMode) *watched {
		a, b := m.pair()
		spec := cached(mode, witnessCache)
		spec.WarmStart = byPeer("")
		// With secrets nothing is flushed before somebody stages (limitations.md).
		o := m.strictDriver(map[string]*node{nodeName: a, otherName: b}, nil)
		return watch(&movers{disk: m.over(a, o, name, 128*mib, spec), a: a, b: b, gen: 1}, mode)
	})
}

// driver is the other driver's plugin on the node that has the volume.
func (c *campaign) driver() *origintest.Driver {
	name, _ := c.here()
	return c.origin.on[name]
}

// fault is something that goes wrong with a call, before the call does anything or after.
func (c *campaign) fault() origintest.Fault {
	f := origintest.Fault{After: c.r.IntN(2) == 0}
	switch c.r.IntN(4) {
	case 0:
		f.Hang = true
	case 1:
		f.Crash = true
	default:
		classes := []codes.Code{
			codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted, codes.Internal, codes.Unknown,
			codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound, codes.PermissionDenied,
		}
		f.Code, f.Message = classes[c.r.IntN(len(classes))], "as the campaign has it"
	}
	return f
}

// stumble makes a request that fails once at each of some calls of the driver, and then succeeds. Until
// then the record says that the node may have writes which nobody else has, if that can be.
func (c *campaign) stumble(request func(context.Context) error, calls ...string) {
	c.t.Helper()
	d := c.driver()
	for _, call := range calls {
		f := c.fault()
		c.t.Logf("%s: %+v", call, f)
		d.Forget()
		d.Inject(call, f)
		limit := time.Minute
		if f.Hang {
			limit = 5 * time.Second
		}
		// One whose time was over before it came to the call is made again, with more.
		for ; !slices.Contains(d.Calls(), call); limit *= 2 {
			ctx, cancel := context.WithTimeout(c.t.Context(), limit)
			err := request(ctx)
			cancel()
			if err == nil || limit > 4*time.Minute {
				c.t.Fatalf("%s failed (%+v), and the request ended with %v; calls: %v", call, f, err, d.Calls())
			}
			// The controller has it detached once the record says Clean: not before it is unstaged.
			if rec, err := c.rec.load(c.req.ID); err != nil || c.mode == volume.ModeWriteback && !rec.Volume.PossiblyDirty && call != "NodeStageVolume" && call != "NodePublishVolume" {
				c.t.Errorf("%s failed (%+v), and the record is %+v (%v)", call, f, rec.Volume, err)
			}
		}
		if f.Crash {
			mustPass(c.t, "start of the driver", d.Start(c.t.Context()))
		}
	}
	for until := time.Now().Add(time.Minute); ; {
		err := request(c.t.Context())
		if err == nil {
			return
		}
		if time.Now().After(until) {
			c.t.Fatalf("after the driver's faults: %v", err)
		}
	}
}

// failCalls: each call of an unstage and of the next stage fails once.
func (c *campaign) failCalls() {
	c.close()
	c.stumble(func(ctx context.Context) error { return c.n.Unstage(ctx, c.req.ID, c.req.StagingPath) }, "NodeUnpublishVolume", "NodeUnstageVolume")
	c.h.Drained()
	if _, other := c.here(); c.r.IntN(2) == 0 {
		c.goTo(other)
	}
	c.stumble(func(ctx context.Context) error { return c.n.Stage(ctx, c.req) }, "NodeStageVolume", "NodePublishVolume")
	c.again(checker.LossNothing)
}

// loseDriver: the driver's plugin dies under load, and so may ours; when both are back, the volume
// leaves.
func (c *campaign) loseDriver() {
	d := c.driver()
	end := c.begin(c.load(c.r))
	d.Crash()
	if c.r.IntN(2) == 0 {
		c.restart()
		c.repair()
	}
	time.Sleep(200 * time.Millisecond)
	mustPass(c.t, "start of the driver", d.Start(c.t.Context()))
	end()
	c.must(checker.LossNothing)
	c.leave()
	c.again(checker.LossNothing)
}

// failGrowth: the volume grows under load, and its driver fails on the node.
func (c *campaign) failGrowth() {
	end := c.begin(c.load(c.r))
	c.grow()
	c.stumble(c.expand, "NodeExpandVolume")
	end()
	c.must(checker.LossNothing)
	c.wantGrown()
	c.must(checker.LossNothing)
}

// wantGrown writes to the end of the volume, and finds that there again, also below a cache that was
// flushed.
func (c *campaign) wantGrown() {
	c.t.Helper()
	data := pattern(c.r.Uint64(), mib)
	write(c.t, c.device(), data, c.size-mib, true)
	check(c.t, c.device(), data, c.size-mib)
	c.leave()
	c.use()
	check(c.t, c.device(), data, c.size-mib)
	check(c.t, c.originDevice(), data, c.size-mib)
}
