//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// snapshotTaken has a snapshot made under load, with a program killed on the way, and judges what
// a volume that is made of it has.
func snapshotTaken(ctx context.Context, w *witness) error {
	name := fmt.Sprintf("%s-%d", w.claim, w.r.Uint32())
	machine, program := w.node, "nearflash-node"
	switch w.r.IntN(3) {
	case 0:
		machine, program = cluster.StorageMachine, "nearflash-target"
	case 1:
		pod, err := k.Controller(ctx)
		if err != nil {
			return err
		}
		machine, program = pod.Spec.NodeName, "nearflash-controller"
	}
	c := w.h.BeginCopy()
	defer c.Done()
	done := w.beginSnapshot(ctx, name, 3000*time.Millisecond)
	err := kill(ctx, machine, program)
	if err = errors.Join(err, <-done, recovered(ctx)); err != nil {
		return err
	}
	return w.judgeCopy(ctx, c, name)
}

// snapshotNodeKilled has a snapshot made under load while the volume's node is killed, which
// flushes when it is back, and goes on under load.
func snapshotNodeKilled(ctx context.Context, w *witness) error {
	name := fmt.Sprintf("%s-%d", w.claim, w.r.Uint32())
	c := w.h.BeginCopy()
	defer c.Done()
	done := w.beginSnapshot(ctx, name, 4000*time.Millisecond)
	if err := w.reboot(ctx); err != nil {
		return errors.Join(err, <-done)
	}
	// What the node took with it the snapshot need not have.
	if _, err := w.judge(checker.LossNode); err != nil {
		return errors.Join(err, <-done)
	}
	w.begin(ctx)
	if err := errors.Join(<-done, w.rest(ctx)); err != nil {
		return err
	}
	return w.judgeCopy(ctx, c, name)
}

// beginSnapshot has a snapshot made, and returns at some time before the given one, with what tells
// its end.
func (w *witness) beginSnapshot(ctx context.Context, name string, before time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := w.snapshot(ctx, w.class, name)
		done <- err
	}()
	time.Sleep(time.Duration(w.r.IntN(int(before.Milliseconds()))) * time.Millisecond)
	return done
}

// judgeCopy judges what a volume has that is made of a snapshot.
func (w *witness) judgeCopy(ctx context.Context, c *checker.Copy, name string) error {
	read, err := w.copied(ctx, name)
	if err != nil {
		return err
	}
	r, err := c.Judge(read)
	if err == nil {
		err = r.Err()
	}
	return err
}

// copied reads what a volume has that is made of a snapshot, and deletes both.
func (w *witness) copied(ctx context.Context, snapshot string) ([]checker.Content, error) {
	v, err := w.space.made(ctx, snapshot, "64Mi", w.vol, ofSnapshot(snapshot))
	if err != nil {
		return nil, err
	}
	v.patience = backedOff
	if err := v.start(ctx, w.node); err != nil {
		return nil, err
	}
	reader := &witness{vol: v, mode: w.mode, h: checker.NewHistory(w.h.Volume(), witnessBlocks, w.mode), r: w.r}
	if err := reader.open(ctx); err != nil {
		return nil, err
	}
	read, err := reader.s.Read()
	reader.close()
	if err = errors.Join(err, v.stop(ctx)); err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{Namespace: w.space.name, Name: snapshot}
	return read, errors.Join(
		k.DeleteAndWait(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: meta}, late),
		k.DeleteAndWait(ctx, &snapshotv1.VolumeSnapshot{ObjectMeta: meta}, late),
	)
}
