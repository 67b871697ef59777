//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// labDisaster is one kind of disaster of the campaign in the lab. It begins and ends
// with a pod that runs and a session with it; load reports whether it wants one.
type labDisaster struct {
	load bool
	do   func(context.Context, *witness) error
	// may is what it may take.
	may checker.Loss
}

var labDisasters = map[string]labDisaster{
	"node killed under load":        {true, func(ctx context.Context, w *witness) error { return w.reboot(ctx) }, checker.LossNode},
	"node plugin killed":            {true, killProcess("nearflash-node"), checker.LossNothing},
	"node plugin killed in unstage": {false, killedRestart("unstage."), checker.LossNothing},
	"node plugin killed in stage":   {false, killedRestart("stage."), checker.LossNothing},
	"controller killed, move":       {false, controllerLost, checker.LossNothing},
	"target service killed":         {true, killProcess("nearflash-target"), checker.LossNothing},
	"move":                          {false, moved, checker.LossNothing},
	"node killed in unstage":        {false, nodeKilledLeaving, checker.LossNode},
	"node killed in stage":          {false, nodeKilledComing(false), checker.LossNode},
	"node killed in a move":         {false, nodeKilledComing(true), checker.LossNode},
	"source node cut off in a move": {false, peerCutOff(func(from, to string) error {
		return k.Lab.Cut(context.Background(), from, to)
	}), checker.LossNothing},
	"source node cut off in a move, one way": {false, peerCutOff(func(from, to string) error {
		return k.Lab.CutOneWay(context.Background(), from, to)
	}), checker.LossNothing},
	"node cut off from storage": {true, cutFor(func(w *witness) error {
		return k.Lab.Cut(context.Background(), w.node, cluster.StorageMachine)
	}), checker.LossNothing},
	"storage cut off from node, one way": {true, cutFor(func(w *witness) error {
		return k.Lab.CutOneWay(context.Background(), cluster.StorageMachine, w.node)
	}), checker.LossNothing},
	"node cut off from storage, one way": {true, cutFor(func(w *witness) error {
		return k.Lab.CutOneWay(context.Background(), w.node, cluster.StorageMachine)
	}), checker.LossNothing},
	"node cut off from API": {true, cutFor(func(w *witness) error {
		return k.Lab.Cut(context.Background(), w.node, "api")
	}), checker.LossNothing},
	"node cut off from API, one way": {true, cutFor(func(w *witness) error {
		return k.Lab.CutOneWay(context.Background(), w.node, "api")
	}), checker.LossNothing},
	"API cut off from node, one way": {true, cutFor(func(w *witness) error {
		return k.Lab.CutOneWay(context.Background(), "api", w.node)
	}), checker.LossNothing},
	"API server killed":           {true, controlKilled("kube-apiserver"), checker.LossNothing},
	"control plane killed, move":  {false, controlKilledMove, checker.LossNothing},
	"etcd restored from backup":   {false, etcdRestored, checker.LossNothing},
	"record lost, node killed":    {true, recordLost, checker.LossNode},
	"clock of a node set":         {true, clockSet, checker.LossNothing},
	"storage fails for a while":   {true, storageRefuses, checker.LossNothing},
	"storage server killed":       {true, storageKilled, checker.LossStorage},
	"snapshot, program killed":    {true, snapshotTaken, checker.LossNothing},
	"snapshot, node killed":       {true, snapshotNodeKilled, checker.LossNode},
	"node abandoned with consent": {true, givenUp, checker.LossNode | checker.LossCache},

	"static volume taken by force": {false, takenByForce, checker.LossNothing},
	// It judges what is promised by itself, and ends with nothing at risk.
	"node restored from an image": {false, nodeRestored, checker.LossNothing},
}

// needCache are the disasters that mean nothing without a cache.
var needCache = []string{
	"node plugin killed in unstage", "node plugin killed in stage", "source node cut off in a move", "source node cut off in a move, one way",
}

var _ = Describe("A campaign of disasters", Label("campaign", "slow", "lab"), func() {
	It("breaks no promise and leaves nothing behind", func(ctx SpecContext) {
		run := newLabCampaign(ctx, labDisasters)
		class := run.s.snapshotClass(ctx, nil)
		run.over(ctx, func(mode checker.Mode) (*witness, error) {
			w, err := newWitness(ctx, run.s, mode, run.seed)
			if w != nil {
				w.class = class
			}
			return w, err
		})
	}, NodeTimeout(6*time.Hour))
})

// labCampaign is a campaign in a namespace of its own.
type labCampaign struct {
	s         *space
	seed, n   uint64
	disasters map[string]labDisaster
	kinds     []string
}

// newLabCampaign reads SEED, DISASTERS and KINDS, and prepares the end.
func newLabCampaign(ctx context.Context, disasters map[string]labDisaster) *labCampaign {
	GinkgoHelper()
	c := &labCampaign{seed: campaignNumber("SEED", 1), n: campaignNumber("DISASTERS", 20), disasters: disasters}
	c.kinds = slices.DeleteFunc(slices.Sorted(maps.Keys(disasters)), func(name string) bool { return !strings.Contains(name, os.Getenv("KINDS")) })
	c.s = newSpace(ctx)
	DeferCleanup(disarm, NodeTimeout(soon))
	DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.Heal(ctx)).To(Succeed()) }, NodeTimeout(soon))
	return c
}

// over has the disasters happen to one volume of each mode.
func (c *labCampaign) over(ctx context.Context, begin func(checker.Mode) (*witness, error)) {
	GinkgoHelper()
	var ws []*witness
	for _, mode := range []checker.Mode{checker.Writeback, checker.Writethrough, checker.None} {
		w, err := begin(mode)
		Expect(err).NotTo(HaveOccurred())
		ws = append(ws, w)
	}
	for _, w := range ws {
		w.beside = slices.DeleteFunc(slices.Clone(ws), func(o *witness) bool { return o == w })
	}
	r := ws[0].r
	counts, blocks := map[string]int{}, map[string]map[checker.Verdict]int{}
	var deck []string
	for i := range c.n {
		if len(deck) == 0 {
			deck = slices.Clone(c.kinds)
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		kind, w := deck[0], ws[i%uint64(len(ws))]
		if w.mode == checker.None && slices.Contains(needCache, kind) {
			w = ws[i/uint64(len(ws))%2]
		}
		deck = deck[1:]
		By(fmt.Sprintf("%d of %d: %s: %s", i+1, c.n, w.claim, kind))
		report, err := w.suffer(ctx, c.disasters[kind])
		Expect(err).NotTo(HaveOccurred(), "seed %d, %s, %s", c.seed, w.claim, kind)
		counts[kind]++
		if blocks[kind] == nil {
			blocks[kind] = map[checker.Verdict]int{}
		}
		for v, n := range report.Verdicts {
			blocks[kind][v] += n
		}
	}
	for _, w := range ws {
		w.close()
		Expect(w.stop(ctx)).To(Succeed())
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		GinkgoWriter.Printf("campaign: %-36s %3d disasters, blocks: %s\n", kind, counts[kind], checker.Report{Verdicts: blocks[kind]})
	}
	GinkgoWriter.Printf("campaign: seed %d, %d disasters, no violation\n", c.seed, c.n)
}

func campaignNumber(name string, otherwise uint64) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 32)
	Expect(err).NotTo(HaveOccurred(), name)
	return n
}

// suffer is one disaster and its judgement. What it may take from one volume it may
// take from the other, whose pod may be on the same node.
func (w *witness) suffer(ctx context.Context, d labDisaster) (checker.Report, error) {
	w.begin(ctx)
	time.Sleep(time.Second)
	if !d.load {
		if err := w.rest(ctx); err != nil {
			return checker.Report{}, err
		}
	}
	if err := d.do(ctx, w); err != nil {
		return checker.Report{}, err
	}
	if err := w.rest(ctx); err != nil {
		return checker.Report{}, err
	}
	report, err := w.judge(d.may)
	if err != nil {
		return report, err
	}
	for _, other := range w.beside {
		if err := other.revive(ctx); err != nil {
			return report, err
		}
		if _, err := other.judge(d.may); err != nil {
			return report, fmt.Errorf("the other volume: %w", err)
		}
	}
	return report, nil
}

// revive opens a session again that a disaster may have ended.
func (w *witness) revive(ctx context.Context) error {
	w.close()
	return w.reopen(ctx)
}

// reopen begins a session once the pod runs. What the API server says of the pod of a node
// that was killed may be of before: the first who notices is the kubelet that is asked.
func (w *witness) reopen(ctx context.Context) error {
	return cluster.Await(ctx, backedOff, func(ctx context.Context) (string, error) {
		if err := w.awaitReady(ctx); err != nil {
			return "", err
		}
		if err := w.open(ctx); err != nil {
			return err.Error(), nil
		}
		return "", nil
	})
}

func modeOf(m checker.Mode) v1alpha1.CacheMode { return v1alpha1.CacheMode(m) }

// killProcess kills a program on the machine where it serves the volume.
func killProcess(program string) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		machine := w.node
		if program == "nearflash-target" {
			machine = cluster.StorageMachine
		}
		if err := kill(ctx, machine, program); err != nil {
			return err
		}
		return recovered(ctx)
	}
}

// kill kills a program on a machine.
func kill(ctx context.Context, machine, program string) error {
	_, err := k.Host.Run(ctx, machine, "kill -9 $(pidof "+program+")")
	return err
}

// again restarts the pod on a node and opens a session.
func (w *witness) again(ctx context.Context, node string) error {
	w.close()
	if err := w.stop(ctx); err != nil {
		return err
	}
	w.h.Drained()
	if err := w.start(ctx, node); err != nil {
		return err
	}
	return w.open(ctx)
}

// renewed restarts the pod and writes. A cache that may have what the storage server refused
// in a disaster before is not kept when its volume leaves; the next one is.
func (w *witness) renewed(ctx context.Context) error {
	if err := w.again(ctx, w.node); err != nil {
		return err
	}
	return w.loaded(ctx)
}

// killedRestart restarts the pod with the node plugin killed at a fault point.
func killedRestart(prefix string) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		all := slices.DeleteFunc(points(prefix), func(p string) bool {
			// Passed by every start and stop of a raw block volume with a cache.
			return !slices.Contains([]string{
				"stage.journaled", "stage.connected", "stage.activating", "stage.activated", "stage.staged",
				"unstage.unmounted", "unstage.flushing", "unstage.flushed", "unstage.removed", "unstage.disconnected", "unstage.retained",
			}, p)
		})
		point := all[w.r.IntN(len(all))]
		if prefix == "unstage." {
			if err := w.renewed(ctx); err != nil {
				return err
			}
		}
		w.close()
		stop := func() error { return w.stop(ctx) }
		if prefix == "unstage." {
			err := killed(ctx, w.node, point, true, stop)
			if err != nil {
				return err
			}
		} else if err := stop(); err != nil {
			return err
		}
		w.h.Drained()
		begin := func() error { return w.vol.begin(ctx, w.node) }
		var err error
		if prefix == "stage." {
			err = killed(ctx, w.node, point, false, begin)
		} else {
			err = begin()
		}
		if err != nil {
			return err
		}
		if err := w.awaitReady(ctx); err != nil {
			return err
		}
		return w.open(ctx)
	}
}

func moved(ctx context.Context, w *witness) error { return w.again(ctx, w.elsewhere()) }

// controllerLost kills the controller while the volume moves.
func controllerLost(ctx context.Context, w *witness) error {
	if err := recovered(ctx); err != nil { // nobody runs that could be killed in back-off
		return err
	}
	pod, err := k.Controller(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- moved(ctx, w) }()
	time.Sleep(time.Duration(w.r.IntN(3000)) * time.Millisecond)
	if err := kill(ctx, pod.Spec.NodeName, "nearflash-controller"); err != nil {
		<-done
		return err
	}
	return <-done
}

// peerCutOff moves the volume and cuts the nodes apart in the middle of the copy, which goes
// on without the node that it copies from. A copy that is over before it feels the cut
// proves nothing: the volume moves again.
func peerCutOff(cut func(from, to string) error) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		for range 5 {
			if felt, err := w.cutOff(ctx, cut); err != nil || felt {
				return err
			}
			if err := w.rest(ctx); err != nil {
				return err
			}
		}
		return errors.New("no copy was under way when the nodes were cut apart")
	}
}

// cutOff is one try of peerCutOff. It reports whether a copy felt the cut.
func (w *witness) cutOff(ctx context.Context, cut func(from, to string) error) (felt bool, err error) {
	if err := w.renewed(ctx); err != nil {
		return false, err
	}
	// What was copied in part is nobody's source.
	if err := w.awaitWhole(ctx); err != nil {
		return false, err
	}
	old := w.node
	if err := moved(ctx, w); err != nil {
		return false, err
	}
	w.begin(ctx)
	if err := cut(old, w.node); err != nil {
		return false, err
	}
	felt, err = w.awaitRemappedOrWhole(ctx)
	return felt, errors.Join(err, k.Lab.Heal(ctx))
}

// nodeKilledLeaving kills the node while the volume leaves it; it boots again.
func nodeKilledLeaving(ctx context.Context, w *witness) error {
	w.s.Dying()
	w.close()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = w.space.name, w.pod
	if err := k.API.Delete(ctx, pod); err != nil {
		return err
	}
	time.Sleep(time.Duration(w.r.IntN(4000)) * time.Millisecond)
	if err := powerOff(ctx, w.node); err != nil {
		return err
	}
	if err := errors.Join(k.Lab.Start(ctx, w.node), recovered(ctx)); err != nil {
		return err
	}
	if err := w.stop(ctx); err != nil {
		return err
	}
	if err := w.start(ctx, w.node); err != nil {
		return err
	}
	return w.open(ctx)
}

// nodeKilledComing kills the node that the volume comes to, the same one or the other
// one, before its pod is ready; it boots again.
func nodeKilledComing(move bool) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		w.close()
		if err := w.stop(ctx); err != nil {
			return err
		}
		w.h.Drained()
		to := w.node
		if move {
			to = w.elsewhere()
		}
		if err := w.vol.begin(ctx, to); err != nil {
			return err
		}
		time.Sleep(time.Duration(w.r.IntN(8000)) * time.Millisecond)
		if err := powerOff(ctx, to); err != nil {
			return err
		}
		if err := errors.Join(k.Lab.Start(ctx, to), recovered(ctx)); err != nil {
			return err
		}
		return w.reopen(ctx)
	}
}

// cutFor cuts for some seconds, under load.
func cutFor(cut func(*witness) error) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		if err := cut(w); err != nil {
			return err
		}
		time.Sleep(time.Duration(1+w.r.IntN(15)) * time.Second)
		if err := k.Lab.Heal(ctx); err != nil {
			return err
		}
		return recovered(ctx)
	}
}

// storageKilled crashes the storage server and boots it again.
func storageKilled(ctx context.Context, w *witness) error {
	w.h.StorageStops()
	defer w.h.StorageIsBack()
	if err := k.Lab.Kill(ctx, cluster.StorageMachine); err != nil {
		return err
	}
	if err := k.Lab.Start(ctx, cluster.StorageMachine); err != nil {
		return err
	}
	return recovered(ctx)
}

// givenUp loses the node, gives its writes up, goes on on the other node, and lets the
// lost one return.
func givenUp(ctx context.Context, w *witness) error {
	lost, other := w.node, w.elsewhere()
	w.s.Dying()
	if err := powerOff(ctx, lost); err != nil {
		return err
	}
	w.close()
	back := func() error {
		if err := outOfService(ctx, lost, false); err != nil {
			return err
		}
		if err := k.Lab.Start(ctx, lost); err != nil {
			return err
		}
		return recovered(ctx)
	}
	return errors.Join(w.goWithout(ctx, lost, other), back())
}

// goWithout has the volume taken from a node that is off, for good, and goes on on another one.
func (w *witness) goWithout(ctx context.Context, lost, other string) error {
	if err := outOfService(ctx, lost, true); err != nil {
		return err
	}
	if err := w.detachLost(ctx, backedOff); err != nil {
		return err
	}
	cv, err := k.CachedVolume(ctx, w.Volume)
	if err != nil {
		return err
	}
	if cv.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty {
		if _, err := shown(ctx, "abandon", "-n", w.space.name, w.claim, "--accept-data-loss", "--force"); err != nil {
			return err
		}
	}
	// The lost node may run the controller: it comes back before the pod is ready.
	if err := w.vol.begin(ctx, other); err != nil {
		return err
	}
	if err := w.awaitReady(ctx); err != nil {
		return err
	}
	if cv.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty {
		if err := w.vol.awaitTold(ctx, lost, ptr.Deref(cv.Status.Generation, 0)); err != nil {
			return err
		}
	}
	return w.open(ctx)
}
