//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// The kinds of disaster of the lab's campaign that come from the control plane and
// from the clock.

// controlKilled kills programs of the control plane under load, and starts them again.
// The session with the pod goes through the API server.
func controlKilled(programs ...string) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		if err := k.Lab.KillControl(ctx, programs...); err != nil {
			return err
		}
		time.Sleep(time.Duration(1+w.r.IntN(10)) * time.Second)
		if err := k.Lab.StartControl(ctx); err != nil {
			return err
		}
		return recovered(ctx)
	}
}

// recovered waits until the whole driver is back. A pod whose containers ended with the
// control plane again and again is made anew: its kubelet would wait for up to five minutes
// before each further start.
func recovered(ctx context.Context) error {
	const patience = 20 * time.Second
	err := k.AwaitDriver(ctx, patience)
	for began := time.Now(); err != nil && ctx.Err() == nil && time.Since(began) < backedOff; err = k.AwaitDriver(ctx, patience) {
		pods, listErr := k.DriverPods(ctx)
		if listErr != nil {
			continue // the API server may not be back either
		}
		for i := range pods {
			if waitsToStart(&pods[i]) {
				if err := k.API.Delete(ctx, &pods[i]); client.IgnoreNotFound(err) != nil {
					return err
				}
			}
		}
	}
	return err
}

func waitsToStart(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
	})
}

// controlKilledMove kills the control plane while the volume leaves a node, and again
// while it comes to the other.
func controlKilledMove(ctx context.Context, w *witness) error {
	kill := controlKilled()
	w.close()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.space.name, Name: w.pod}}
	if err := k.API.Delete(ctx, pod); err != nil {
		return err
	}
	time.Sleep(time.Duration(w.r.IntN(3000)) * time.Millisecond)
	if err := kill(ctx, w); err != nil {
		return err
	}
	if err := w.stop(ctx); err != nil {
		return err
	}
	w.h.Drained()
	if err := w.vol.begin(ctx, w.elsewhere()); err != nil {
		return err
	}
	time.Sleep(time.Duration(w.r.IntN(5000)) * time.Millisecond)
	if err := kill(ctx, w); err != nil {
		return err
	}
	if err := w.awaitReady(ctx); err != nil {
		return err
	}
	return w.open(ctx)
}

// etcdRestored: the volume moves, is written to, and the cluster's objects come back
// from a backup of before. The pod of before never gets the volume: somebody has to
// make it anew, and to take the storage server over, as after any such restore.
func etcdRestored(ctx context.Context, w *witness) error {
	const backup = "campaign"
	if err := k.Lab.SaveEtcd(ctx, backup); err != nil {
		return err
	}
	if err := recovered(ctx); err != nil {
		return err
	}
	// So that the backup is older than the epoch, as one of an hour ago is.
	if err := swapEpoch(ctx, cluster.StorageMachine); err != nil {
		return err
	}
	before, node := w.pod, w.node
	// Saving may have ended the session.
	if err := moved(ctx, w); err != nil {
		return err
	}
	w.begin(ctx)
	time.Sleep(time.Duration(1000+w.r.IntN(3000)) * time.Millisecond)
	if err := w.rest(ctx); err != nil {
		return err
	}
	if w.r.IntN(2) == 0 {
		if err := w.s.Flush(); err != nil {
			return err
		}
	}
	w.close()
	if err := k.Lab.RestoreEtcd(ctx, backup); err != nil {
		return err
	}
	if err := recovered(ctx); err != nil {
		return err
	}
	time.Sleep(time.Duration(w.r.IntN(20)) * time.Second)
	if err := takeOver(ctx); err != nil {
		return err
	}
	w.pod, w.node = before, node
	if err := mustNotServe(ctx, w); err != nil {
		return err
	}
	if err := w.stop(ctx); err != nil {
		return err
	}
	if err := w.start(ctx, []string{nodeA, nodeB}[w.r.IntN(2)]); err != nil {
		return err
	}
	return w.open(ctx)
}

var errServed = errors.New("a node serves a volume that was given to another one since")

// mustNotServe fails if the pod of before the restore runs.
func mustNotServe(ctx context.Context, w *witness) error {
	_, ready, err := w.restarts(ctx)
	if err != nil || !ready {
		return err
	}
	// It may be what the backup says of it; then nothing answers in it.
	if out, err := w.run(ctx, "head -c 4096 "+w.path()+" >/dev/null && cat /proc/sys/kernel/hostname"); err == nil {
		return fmt.Errorf("%w: pod %s on %s (%s)", errServed, w.pod, w.node, out)
	}
	return nil
}

// recordLost kills the node under load, and has the record made anew without its status;
// the pod is begun on the other node. The lost node comes back some time later: what it
// has of the record of before must be neither destroyed nor missed.
func recordLost(ctx context.Context, w *witness) error {
	lost, other := w.node, w.elsewhere()
	w.s.Dying()
	if err := powerOff(ctx, lost); err != nil {
		return err
	}
	w.close()
	if err := outOfService(ctx, lost, true); err != nil {
		return err
	}
	record, err := k.CachedVolume(ctx, w.Volume)
	if err != nil {
		return err
	}
	forgetLost(record)
	record.Status = v1alpha1.CachedVolumeStatus{}
	if err := restoreRecord(ctx, record); err != nil {
		return err
	}
	if err := w.detachLost(ctx, backedOff); err != nil {
		return err
	}
	if err := w.vol.begin(ctx, other); err != nil {
		return err
	}
	time.Sleep(time.Duration(w.r.IntN(20)) * time.Second)
	if err := errors.Join(outOfService(ctx, lost, false), k.Lab.Start(ctx, lost), recovered(ctx)); err != nil {
		return err
	}
	return w.reopen(ctx)
}

// clockSet sets the clock of the volume's node forward or back, under load, and back.
func clockSet(ctx context.Context, w *witness) error {
	by := []int{-600, 600, 7200, 3 * 86400}[w.r.IntN(4)]
	set := func(by int) error {
		_, err := k.Host.Run(ctx, w.node, fmt.Sprintf("date -s @$(($(date +%%s) + %d))", by))
		return err
	}
	if err := set(by); err != nil {
		return err
	}
	time.Sleep(time.Duration(5+w.r.IntN(10)) * time.Second)
	if err := set(-by); err != nil {
		return err
	}
	return recovered(ctx)
}
