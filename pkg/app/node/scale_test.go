package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestScale compares a small cluster with a larger one: what a node plugin asks the API server
// for, and hears from it, must not grow with other nodes and their volumes.
//
// The plugins are whole, with all their loops, and have the permissions and limits of the chart.
// What they ask and are told is counted in HTTP. Left out are the kubelet, whose registration is
// off and whose stages are calls of Go; probes and metrics; and the machines, which are in memory.
func TestScale(t *testing.T) {
	const few, many, volumes = 4, 16, 3
	f := newFleet(t, apiserver.Start(t), volumes)
	starts, stages := map[int]float64{}, map[int]float64{}
	first := 0
	for _, nodes := range []int{few, many} {
		f.grow(nodes)
		f.start(f.members[first:]...)
		f.settled()
		starts[nodes] = requestsOf(f.members[first:]) / float64(nodes-first)
		f.take()
		f.attach(first, nodes)
		f.settled()
		stages[nodes] = requestsOf(f.members[first:]) / float64((nodes-first)*volumes)
		first = nodes
	}
	t.Logf("requests a start %v, a stage %v, by nodes", starts, stages)
	if starts[many] > starts[few]+4 { // some watches may not have begun, or have begun twice
		t.Errorf("a start takes %.1f requests beside %d nodes and %.1f beside %d", starts[many], many, starts[few], few)
	}
	if stages[many] > 1.25*stages[few] { // conflicts and first reports differ a little
		t.Errorf("a stage takes %.1f requests beside %d nodes and %.1f beside %d", stages[many], many, stages[few], few)
	}
	f.takeHotSets()
	f.wantRest()
	f.wantFanOut()
	f.end(f.members...)
}

// requestsOf is how many requests nodes have made, but for those that the clock brings.
func requestsOf(members []*member) float64 {
	n := 0
	for _, m := range members {
		counts := m.traffic.Take()
		for request, times := range counts.Requests {
			if request != poolLook {
				n += times
			}
		}
	}
	return float64(n)
}

// poolLook is what a node at rest asks for, twice a minute.
const poolLook = "GET cachepools"

// wantRest wants the nodes to come to rest: then they make no request about volumes, and hardly
// any other one. First reports and what they free of their pools come before that.
func (f *fleet) wantRest() {
	f.t.Helper()
	var restless []string
	for range 8 {
		f.take()
		time.Sleep(16 * time.Second) // each loop but those of 30 seconds has a turn
		restless = nil
		for _, m := range f.members {
			restless = append(restless, m.restless()...)
		}
		if len(restless) == 0 {
			return
		}
	}
	f.t.Errorf("%d nodes never rest:\n%s", len(f.members), strings.Join(restless, "\n"))
}

// restless is what a node has asked for, or was told, that it would not be at rest.
func (m *member) restless() (out []string) {
	n := m.traffic.Take()
	watches := 0
	for request, times := range n.Requests {
		switch {
		case strings.HasPrefix(request, "WATCH "): // which are renewed by the clock
			watches += times
		case request != poolLook || times > 1:
			out = append(out, fmt.Sprintf("%s asks %d times %s", m.name, times, request))
		}
	}
	for event, times := range n.Events {
		if !strings.HasPrefix(event, bookmark) && watches == 0 {
			out = append(out, fmt.Sprintf("%s is told %d times %s", m.name, times, event))
		}
	}
	return out
}

// bookmark begins the events that tell of no change.
const bookmark = "BOOKMARK "

// wantFanOut wants changes to be told to those whom they concern.
func (f *fleet) wantFanOut() {
	f.t.Helper()
	a, b := f.members[0], f.members[1]
	for what, want := range map[string][]*member{
		requestOfUser: {b}, reportOfNode: {b}, poolChange: nil, hotSetChange: nil, moveBetween: {a, b},
	} {
		told := f.told(what)
		for _, m := range f.members {
			if n := told[m.name]; (n > 0) != slices.Contains(want, m) {
				f.t.Errorf("%d nodes: %s, from which %s gets %d events", len(f.members), what, m.name, n)
			}
		}
	}
}

// Changes whose events are counted: of a volume of the second node, or of that node.
const (
	requestOfUser = "a user asks something of a volume"
	reportOfNode  = "a node reports about a volume"
	poolChange    = "a pool changes"
	hotSetChange  = "a hot set is stored"
	moveBetween   = "a node asks another one for a cache, in vain"
)

// told makes a change, and returns how many events of watches each node got.
func (f *fleet) told(what string) map[string]int {
	f.t.Helper()
	m, id := f.members[1], f.volume(1, 0)
	f.take()
	if err := f.change(what, m, id); err != nil {
		f.t.Fatalf("%s: %v", what, err)
	}
	time.Sleep(500 * time.Millisecond)
	out := map[string]int{}
	for _, m := range f.members {
		for event, n := range m.traffic.Take().Events {
			if !strings.HasPrefix(event, bookmark) {
				out[m.name] += n
			}
		}
	}
	return out
}

func (f *fleet) change(what string, m *member, id volume.ID) error {
	ctx, deps := f.ctx, m.plugin.attacher.Deps
	now := time.Now()
	switch what {
	case requestOfUser:
		return records.UpdateObject(ctx, f.api, id, func(obj *v1alpha1.CachedVolume) error {
			obj.Annotations = map[string]string{"example.com/asked": now.String()}
			return nil
		})
	case reportOfNode:
		return records.New(m.plugin.api, &events.FakeRecorder{}, time.Now).ReportCache(ctx, id, m.name, &v1alpha1.CacheStatus{
			Mode: v1alpha1.CacheModeWritethrough, Health: v1alpha1.CacheHealthy, UsedBytes: new(now.UnixNano() % mib),
		})
	case poolChange:
		pool := &v1alpha1.CachePool{}
		if err := f.api.Get(ctx, client.ObjectKey{Name: m.name}, pool); err != nil {
			return err
		}
		pool.Annotations = map[string]string{"example.com/changed": now.String()}
		return f.api.Update(ctx, pool)
	}
	rec, err := deps.Records.Get(ctx, id)
	if err != nil {
		return err
	}
	if what == hotSetChange {
		return deps.HotSets.Store(ctx, id, rec.Fence.UID, volume.HotSet{Blocks: []byte(now.String()), Recorded: now})
	}
	// The first node asks for a cache that its owner has in use, and that nobody has asked to prewarm.
	other := f.members[0]
	rec.Fence.Node = other.name
	_, _, err = other.plugin.attacher.Moves.Begin(ctx, volume.MoveRequest{
		Purpose: volume.PurposePrewarm, Request: "never", Volume: id, Fence: rec.Fence,
		Source: &volume.WarmSource{Node: m.name, Generation: rec.Fence.Generation}, Method: volume.MethodStream, Patience: patience, Deadline: now.Add(time.Hour),
	})
	if err == nil || !strings.Contains(err.Error(), "does not export its cache") {
		return fmt.Errorf("%s answers %w", m.name, err)
	}
	return nil
}

// takeHotSets has time pass until the first hot sets are due, and waits for them.
func (f *fleet) takeHotSets() {
	f.t.Helper()
	f.now.Add(int64(3 * time.Minute))
	f.until("all hot sets are stored", func() bool { return f.count("CacheHotSetList") == len(f.members)*f.volumes })
}
