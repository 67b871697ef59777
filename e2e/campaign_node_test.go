//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// The kinds of disaster of the lab's campaign in which a node is not what it was: its
// kubelet hangs, or its disks are of yesterday.

// takenByForce takes a static volume from a node whose kubelet hangs, while the pod there
// goes on writing. The volume has a history of its own, and is gone at the end: its server
// does not survive what other disasters do to the storage machine.
func takenByForce(ctx context.Context, w *witness) error {
	lost, other := w.node, w.elsewhere()
	w.close() // its pod may be on the node with the kubelet that hangs
	lun, err := newLUN(ctx, "campaign-"+utilrand.String(5))
	if err != nil {
		return err
	}
	lun.block = true
	s := newSpace(ctx)
	f := &witness{vol: lun.volume(ctx, s, "forced", lun.password), mode: checker.Writethrough, r: w.r}
	f.patience = backedOff
	f.h = checker.NewHistory(f.Handle, witnessBlocks, f.mode)
	DeferCleanup(func() { f.close() })
	if err := f.start(ctx, lost); err != nil {
		return err
	}
	if err := f.open(ctx); err != nil {
		return err
	}
	if err := f.loaded(ctx); err != nil {
		return err
	}
	if err := f.byForce(ctx, lost, other); err != nil {
		return err
	}
	f.close()
	if err := f.stop(ctx); err != nil {
		return err
	}
	if err := errors.Join(s.clean(ctx), s.awaitNoLeaks(ctx, late)); err != nil {
		return err
	}
	if err := lun.remove(ctx); err != nil {
		return err
	}
	return w.revive(ctx)
}

// loaded writes for some seconds.
func (w *witness) loaded(ctx context.Context) error {
	w.begin(ctx)
	time.Sleep(time.Duration(1000+w.r.IntN(3000)) * time.Millisecond)
	return w.rest(ctx)
}

// byForce is the disaster for a volume on the node lost, with an idle session.
func (w *witness) byForce(ctx context.Context, lost, other string) error {
	w.close()
	if err := w.writeOn(ctx); err != nil {
		return err
	}
	time.Sleep(time.Duration(w.r.IntN(3000)) * time.Millisecond)
	// The agent of the lab would start one again that was killed.
	signal := func(ctx context.Context, name string) error {
		_, err := k.Host.Run(ctx, lost, "kill -"+name+" $(pidof kubelet)")
		return err
	}
	back := func(ctx context.Context) error {
		return errors.Join(signal(ctx, "CONT"), outOfService(ctx, lost, false), recovered(ctx))
	}
	DeferCleanup(func(ctx SpecContext) { Expect(back(ctx)).To(Succeed()) }, NodeTimeout(backedOff))
	if err := errors.Join(signal(ctx, "STOP"), outOfService(ctx, lost, true)); err != nil {
		return err
	}
	if err := w.detachLost(ctx, backedOff); err != nil {
		return err
	}
	if err := w.start(ctx, other); err != nil {
		return err
	}
	// What the pod of before was told is promised, and nothing that comes later.
	told, refused, err := w.answers(ctx, lost)
	if err != nil {
		return err
	}
	for _, seq := range told {
		if err := w.h.Ack(seq); err != nil {
			return err
		}
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	if _, err := w.judge(checker.LossNothing); err != nil {
		return fmt.Errorf("when the new pod starts: %w", err)
	}
	if err := w.loaded(ctx); err != nil {
		return err
	}
	later, laterRefused, err := w.answers(ctx, lost)
	if err != nil {
		return err
	}
	GinkgoWriter.Printf("pod of before: %d writes acknowledged, %d refused when the new pod was ready, %d some seconds later\n", len(told), refused, laterRefused)
	switch {
	case len(later) > len(told):
		return fmt.Errorf("%w: %d writes of the pod of before were acknowledged after the new one had started", checker.ErrViolation, len(later)-len(told))
	case len(told) == 0 || laterRefused <= refused:
		return errors.New("the pod of before did not write before and after the new one started, which proves nothing")
	}
	if _, err := w.judge(checker.LossNothing); err != nil {
		return fmt.Errorf("while the pod of before writes: %w", err)
	}
	w.begin(ctx)
	if err := errors.Join(back(ctx), w.rest(ctx)); err != nil {
		return err
	}
	if _, err := w.judge(checker.LossNothing); err != nil {
		return fmt.Errorf("when the node is back: %w", err)
	}
	if err := w.again(ctx, []string{lost, other}[w.r.IntN(2)]); err != nil {
		return err
	}
	_, err = w.judge(checker.LossNothing)
	return err
}

// writeOn has the pod write by itself from now on, for minutes: its session would end, or
// hang, with the kubelet. Whoever asks for the answers has the history know of them. The
// agent of before must have ended.
func (w *witness) writeOn(ctx context.Context) error {
	const batches, batch = 6000, 8
	l := checker.Load{Rand: w.r, Batch: batch, Hot: witnessHot}
	var orders strings.Builder
	for range batches {
		orders.WriteString(w.h.Order(l) + "\n")
	}
	script := fmt.Sprintf(`cat >/tmp/orders
(while read -r order; do echo "$order"; sleep 0.02; done </tmp/orders |
  flock /tmp/agent.lock /tmp/agent -volume %s -path %s >%s 2>/dev/null) </dev/null >/dev/null 2>&1 &`, w.h.Volume(), cluster.DevicePath, w.answerFile())
	return k.ExecPipe(ctx, w.space.name, w.pod, "", script, strings.NewReader(orders.String()), io.Discard)
}

func (w *witness) answerFile() string { return "/tmp/answers-" + w.h.Volume() }

// answers are those to what writeOn has asked for, read past the kubelet: the writes that
// were acknowledged, and the number of those that failed.
func (w *witness) answers(ctx context.Context, node string) (acked []uint64, failed int, err error) {
	out, err := k.Host.Run(ctx, node, fmt.Sprintf(`for f in /proc/[0-9]*/root%s; do
  if [ -e "$f" ]; then cut -d' ' -f1,2 "$f"; exit; fi
done
exit 1`, w.answerFile()))
	if err != nil {
		return nil, 0, fmt.Errorf("answers to the pod of before: %w", err)
	}
	for line := range strings.Lines(out) {
		var word string
		var seq uint64
		if _, err := fmt.Sscan(line, &word, &seq); err != nil {
			return nil, 0, fmt.Errorf("answer %q: %w", line, err)
		}
		if word == "a" {
			acked = append(acked, seq)
		} else {
			failed++
		}
	}
	return acked, failed, nil
}

// nodeRestored gives the volume's node the disks of an image that was made while the
// volume was attached, or at rest; since then it was staged and written there. The volume
// has left, flushed, or is attached at that moment.
func nodeRestored(ctx context.Context, w *witness) error {
	const image = "campaign"
	node, attached, left := w.node, w.r.IntN(2) == 0, w.r.IntN(2) == 0
	GinkgoWriter.Printf("image while the volume is attached: %t; it has left when the image is put back: %t\n", attached, left)
	// The image has their retained caches, which are of yesterday too.
	for _, o := range w.beside {
		if o.node != node {
			continue
		}
		if err := o.again(ctx, w.elsewhere()); err != nil {
			return err
		}
	}
	if err := w.imaged(ctx, attached, func() error { return k.Lab.SaveMachine(ctx, node, image) }); err != nil {
		return err
	}
	if attached && !left && w.mode == checker.Writeback {
		// Until the volume has left, or ten minutes are over, nothing tells such an image
		// from the disks themselves (states.md, Whose disks these are: What remains).
		if err := w.again(ctx, node); err != nil {
			return err
		}
	}
	for _, o := range append([]*witness{w}, w.beside...) {
		if err := o.loaded(ctx); err != nil {
			return err
		}
	}
	putBack := func() error { return k.Lab.RestoreMachine(ctx, node, image) }
	restored := w.restoredLater
	if left {
		restored = w.restoredAtRest
	}
	if err := restored(ctx, putBack); err != nil {
		return err
	}
	for _, o := range w.beside {
		if err := o.again(ctx, node); err != nil {
			return err
		}
		if _, err := o.judge(checker.LossNothing); err != nil {
			return fmt.Errorf("the other volume: %w", err)
		}
	}
	return nil
}

// imaged has something done to the disks of the volume's node while it is off and the
// volume is attached under load, or at rest, and opens the session again.
func (w *witness) imaged(ctx context.Context, attached bool, do func() error) error {
	if !attached {
		return w.restoredAtRest(ctx, do)
	}
	w.begin(ctx)
	time.Sleep(time.Second)
	if err := w.rebootWith(ctx, do); err != nil {
		return err
	}
	_, err := w.judge(checker.LossNode)
	return err
}

// restoredAtRest has something done to the disks of the volume's node when it has left.
func (w *witness) restoredAtRest(ctx context.Context, do func() error) error {
	w.close()
	if err := w.stop(ctx); err != nil {
		return err
	}
	w.h.Drained()
	if err := off(ctx, w.node, do); err != nil {
		return err
	}
	if err := w.start(ctx, w.node); err != nil {
		return err
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	_, err := w.judge(checker.LossNothing)
	return err
}

// off has something done to the disks of a node while it is off.
func off(ctx context.Context, node string, do func() error) error {
	if err := powerOff(ctx, node); err != nil {
		return err
	}
	if err := do(); err != nil {
		return errors.Join(err, k.Lab.Start(ctx, node))
	}
	return errors.Join(k.Lab.Start(ctx, node), recovered(ctx))
}

// restoredLater puts the image back while the volume is attached and written to, some time
// after a flush that was asked for. What a writeback cache had that was not flushed is on
// the disks that are gone: nobody gets the volume until it is given up.
func (w *witness) restoredLater(ctx context.Context, putBack func() error) error {
	if w.mode != checker.None {
		if _, err := shown(ctx, "flush", "-n", w.space.name, w.claim); err != nil {
			return err
		}
		w.h.Drained()
	}
	w.begin(ctx)
	time.Sleep(time.Duration(1000+w.r.IntN(3000)) * time.Millisecond)
	w.s.Dying()
	lost := w.node
	if err := powerOff(ctx, lost); err != nil {
		return err
	}
	w.close()
	if err := putBack(); err != nil {
		return errors.Join(err, k.Lab.Start(ctx, lost))
	}
	if err := errors.Join(k.Lab.Start(ctx, lost), recovered(ctx)); err != nil {
		return err
	}
	if w.mode != checker.Writeback {
		if err := w.reopen(ctx); err != nil {
			return err
		}
		_, err := w.judge(checker.LossNode)
		return err
	}
	if err := w.awaitKept(ctx); err != nil {
		return err
	}
	if err := w.stop(ctx); err != nil {
		return err
	}
	if _, err := shown(ctx, "abandon", "-n", w.space.name, w.claim, "--accept-data-loss", "--force"); err != nil {
		return err
	}
	// There: a kubelet makes the folder of a raw block volume again while a pod waits that
	// was refused, and leaves it when that pod goes. It goes with the next one.
	if err := w.start(ctx, lost); err != nil {
		return err
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	_, err := w.judge(checker.LossNode | checker.LossCache)
	return err
}

var errAttachedWithout = fmt.Errorf("%w: a volume is attached without the unflushed writes that are on other disks", checker.ErrViolation)

// awaitKept waits until the node says that it does not attach the volume; it must not run.
// That may take minutes: a kubelet reports the first 25 failures of a pod, here those of
// before the plugin was up, and then one every five minutes.
func (w *witness) awaitKept(ctx context.Context) error {
	var broken error
	err := cluster.Await(ctx, backedOff, func(ctx context.Context) (string, error) {
		events, err := k.Events(ctx, w.pod)
		if err != nil {
			return "", err
		}
		for _, e := range events {
			if strings.Contains(e.Message, "unflushed writes") {
				return "", nil
			}
		}
		// What the API server says of the pod may be of before; then nothing answers in it.
		if out, err := w.run(ctx, "head -c 4096 "+w.path()+" >/dev/null && cat /proc/sys/kernel/hostname"); err == nil {
			broken = fmt.Errorf("%w: pod %s on %s (%s)", errAttachedWithout, w.pod, w.node, out)
			return "", nil
		}
		return fmt.Sprintf("pod %s waits, and no event says for what: %+v", w.pod, events), nil
	})
	return errors.Join(broken, err)
}
