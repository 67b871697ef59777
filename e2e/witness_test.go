//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const (
	// agentVariable names the built e2e/checker/agent.
	agentVariable = "NEARFLASH_CHECKER_AGENT"
	// witnessBlocks are the blocks that the checker writes, witnessHot those that it
	// writes most.
	witnessBlocks, witnessHot = 4096, 768
)

// backedOff bounds what a campaign waits for: the back-offs of a control plane that is
// killed again and again add up, two minutes of the attach-detach controller, five of
// external-attacher, five of a container that ended often.
const backedOff = 15 * time.Minute

// witness is a raw block volume whose history is kept here.
type witness struct {
	*vol
	mode   checker.Mode
	h      *checker.History
	s      *checker.Session
	r      *rand.Rand
	cancel context.CancelFunc
	// class is that of its snapshots.
	class string
	// beside are the other volumes of the campaign.
	beside []*witness
	// writing ends the load under way and returns its error.
	writing func() error
}

// open brings the agent into the volume's pod and begins a session.
func (w *witness) open(ctx context.Context) error {
	path := os.Getenv(agentVariable)
	if path == "" {
		return fmt.Errorf("%s is not set: name the built e2e/checker/agent", agentVariable)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// One that has lost its connection may still be at its last writes.
	err = k.ExecPipe(ctx, w.space.name, w.pod, "", "set -e; cat >/tmp/agent.new; chmod +x /tmp/agent.new; mv /tmp/agent.new /tmp/agent",
		bytes.NewReader(program), io.Discard)
	if err != nil {
		return err
	}
	in, toAgent := io.Pipe()
	fromAgent, out := io.Pipe()
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the step that began it
	w.cancel = cancel
	script := fmt.Sprintf("exec flock /tmp/agent.lock /tmp/agent -volume %s -path %s", w.h.Volume(), cluster.DevicePath)
	go func() {
		err := k.ExecPipe(sctx, w.space.name, w.pod, "", script, in, out)
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.CloseWithError(err)
	}()
	w.s = checker.Start(w.h, toAgent, fromAgent)
	return nil
}

// close ends the session, however it is.
func (w *witness) close() {
	if w.writing != nil {
		_ = w.writing() // it ends with the session at the latest
	}
	if w.s != nil {
		time.AfterFunc(10*time.Second, w.cancel)
		_ = w.s.Close() // an end by a disaster is none of its errors
		w.s = nil
	}
}

// begin writes in the background.
func (w *witness) begin(ctx context.Context) {
	lctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	l := checker.Load{Rand: rand.New(rand.NewPCG(w.r.Uint64(), 0)), FlushEvery: 1 + w.r.IntN(8), Hot: witnessHot}
	s := w.s
	go func() { done <- s.Run(lctx, l) }()
	w.writing = func() error {
		cancel()
		w.writing = nil
		return <-done
	}
}

// rest ends the load. A session that has ended is opened again.
func (w *witness) rest(ctx context.Context) error {
	var err error
	if w.writing != nil {
		err = w.writing()
	}
	if !errors.Is(err, checker.ErrEnded) {
		return err
	}
	w.close()
	return w.open(ctx)
}

// judge reads every block and decides.
func (w *witness) judge(l checker.Loss) (checker.Report, error) {
	read, err := w.s.Read()
	if err != nil {
		return checker.Report{}, err
	}
	r, err := w.h.Judge(l, read)
	if err == nil {
		err = r.Err()
	}
	return r, err
}

// restarts is how often the volume's pod was started by the kubelet.
func (w *witness) restarts(ctx context.Context) (int32, bool, error) {
	var pod corev1.Pod
	if err := k.API.Get(ctx, client.ObjectKey{Namespace: w.space.name, Name: w.pod}, &pod); err != nil {
		return 0, false, err
	}
	for _, s := range pod.Status.ContainerStatuses {
		return s.RestartCount, s.Ready, nil
	}
	return 0, false, nil
}

// reboot kills the volume's node and waits until its pod runs again.
func (w *witness) reboot(ctx context.Context) error {
	return w.rebootWith(ctx, func() error { return nil })
}

// rebootWith has something done to the node while it is off.
func (w *witness) rebootWith(ctx context.Context, do func() error) error {
	before, _, err := w.restarts(ctx)
	if err != nil {
		return err
	}
	w.s.Dying()
	if err := powerOff(ctx, w.node); err != nil {
		return err
	}
	w.close()
	if err := errors.Join(do(), k.Lab.Start(ctx, w.node), recovered(ctx)); err != nil {
		return err
	}
	err = cluster.Await(ctx, backedOff, func(ctx context.Context) (string, error) {
		if n, ready, err := w.restarts(ctx); err != nil || n == before || !ready {
			return "pod " + w.pod + " has not restarted", err
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	return w.open(ctx)
}

// elsewhere returns the worker that the volume is not on.
func (w *witness) elsewhere() string { return otherNode(w.node) }

// newWitness begins a history on a new volume.
func newWitness(ctx context.Context, s *space, mode checker.Mode, seed uint64) (*witness, error) {
	v, err := s.volume(ctx, witnessSpec(mode))
	if err != nil {
		return nil, err
	}
	v.patience = backedOff
	if err := v.start(ctx, nodeA); err != nil {
		return nil, err
	}
	return witnessOf(ctx, v, mode, seed)
}

// newWitnessOver is newWitness over a disk of another CSI driver.
func newWitnessOver(ctx context.Context, s *space, o originDriver, mode checker.Mode, seed uint64) (*witness, error) {
	v, err := s.cachedOrigin(ctx, o, witnessSpec(mode), nodeA)
	if err != nil {
		return nil, err
	}
	v.patience = backedOff
	return witnessOf(ctx, v, mode, seed)
}

// witnessOf begins the history of a volume whose pod runs.
func witnessOf(ctx context.Context, v *vol, mode checker.Mode, seed uint64) (*witness, error) {
	w := &witness{vol: v, mode: mode, h: checker.NewHistory(v.Handle, witnessBlocks, mode), r: rand.New(rand.NewPCG(seed, 0))}
	DeferCleanup(func() { w.close() })
	return w, w.open(ctx)
}

func witnessSpec(mode checker.Mode) volumeSpec {
	spec := volumeSpec{name: "witness-" + string(mode), mode: modeOf(mode), kind: block, size: "64Mi"}
	if mode != checker.None {
		// What is copied takes long enough to be met in the middle.
		spec.cacheSize, spec.parameters = "16Mi", slowly
	}
	return spec
}
