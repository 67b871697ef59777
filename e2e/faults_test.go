//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	_ "github.com/nearflash/nearflash/pkg/attach" // declares the fault points
	"github.com/nearflash/nearflash/pkg/faultpoint"
)

// faultDir is where the lab's chart values have the node plugin look for armed
// fault points.
const faultDir = "/var/lib/nearflash/faults"

// The plugin of one node is killed at the points of a cold start while that of
// the other is killed at those of a stop and a warm start: a kill is mostly
// waiting for the kubelet.
var _ = Describe("A node plugin that is killed between any two steps", Label("faults", "lab"), func() {
	DescribeTable("converges, loses nothing and leaks nothing", func(ctx SpecContext, only ...string) {
		s := newSpace(ctx)
		DeferCleanup(disarm, NodeTimeout(soon))
		stage, unstage, wipe := points("stage.", only...), points("unstage.", only...), points("wipe.", only...)
		Expect(stage).NotTo(BeEmpty())
		Expect(unstage).NotTo(BeEmpty())
		Expect(wipe).NotTo(BeEmpty())
		g, gctx := errgroup.WithContext(ctx)
		g.Go(func() error { return killColdStarts(gctx, s, nodeA, stage, wipe) })
		g.Go(func() error { return killStopsAndStarts(gctx, s, nodeB, unstage, stage) })
		Expect(g.Wait()).To(Succeed())
	},
		// What a kubelet has to do with it: a call that ends in the middle. Every step without
		// one is killed at in ring 1.
		Entry("at one step of each phase", "stage.activated", "unstage.flushed", "wipe.removed", Label("slow"), NodeTimeout(specLimit)),
		Entry("at every step", Label("slow"), NodeTimeout(2*specLimit)),
	)
})

// points are the steps of a phase, or those of only among them.
func points(prefix string, only ...string) []string {
	var out []string
	for _, name := range faultpoint.List() {
		// No stage of this spec finds a cache that has to go: TestKernelKillAnywhere.
		if strings.HasPrefix(name, prefix) && name != "stage.wiped" && (len(only) == 0 || slices.Contains(only, name)) {
			out = append(out, name)
		}
	}
	return out
}

// killColdStarts kills the plugin at each point of a new volume's first start,
// and of the destruction of a deleted volume's cache.
func killColdStarts(ctx context.Context, s *space, node string, stage, wipe []string) error {
	var vols []*vol
	for i, point := range stage {
		v, err := s.volume(ctx, volumeSpec{name: fmt.Sprintf("cold%d", i), mode: v1alpha1.CacheModeWriteback, kind: ext4, size: "64Mi"})
		if err != nil {
			return err
		}
		vols = append(vols, v)
		if err := killed(ctx, node, point, false, func() error { return v.begin(ctx, node) }); err != nil {
			return err
		}
		if err := v.usable(ctx); err != nil {
			return fmt.Errorf("%s, cold start: %w", point, err)
		}
	}
	if len(vols) < len(wipe) {
		return fmt.Errorf("%d volumes are too few for the points %v", len(vols), wipe)
	}
	for i, point := range wipe {
		v := vols[i]
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: v.claim}}
		err := killed(ctx, node, point, false, func() error { return k.DeleteAndWait(ctx, claim, soon) })
		if err != nil {
			return err
		}
		err = cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			uuid, err := v.cacheUUID(ctx, node)
			if uuid != "" {
				return "the cache of the deleted volume " + v.Handle + " is still there", err
			}
			return "", err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", point, err)
		}
	}
	return nil
}

// usable waits for the volume's pod, writes, and restarts the pod to read it.
func (v *vol) usable(ctx context.Context) error {
	if err := v.awaitReady(ctx); err != nil {
		return err
	}
	sum, err := v.write(ctx, 0, 4)
	if err != nil {
		return err
	}
	if err := v.verify(ctx, 0, 4, sum); err != nil {
		return err
	}
	return v.stop(ctx)
}

// killStopsAndStarts kills the plugin at each point of taking a volume with
// unflushed writes down, and of attaching it again.
func killStopsAndStarts(ctx context.Context, s *space, node string, unstage, stage []string) error {
	v, err := s.volume(ctx, volumeSpec{name: "again", mode: v1alpha1.CacheModeWriteback, kind: ext4, size: "64Mi", cacheSize: "100%"})
	if err != nil {
		return err
	}
	if err := v.start(ctx, node); err != nil {
		return err
	}
	var sum string
	for i := range max(len(unstage), len(stage)) {
		if sum, err = v.write(ctx, 0, 16); err != nil {
			return err
		}
		if err := v.stopKilled(ctx, at(unstage, i)); err != nil {
			return err
		}
		begin := func() error { return v.begin(ctx, node) }
		if point := at(stage, i); point == "" {
			err = begin()
		} else {
			err = killed(ctx, node, point, false, begin)
		}
		if err != nil {
			return err
		}
		if err := v.awaitReady(ctx); err != nil {
			return fmt.Errorf("%s, %s: %w", at(unstage, i), at(stage, i), err)
		}
		if err := v.verify(ctx, 0, 16, sum); err != nil {
			return fmt.Errorf("%s, %s: %w", at(unstage, i), at(stage, i), err)
		}
	}
	return v.stop(ctx)
}

// at returns the element, or "" beyond the end.
func at(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return ""
}

// stopKilled stops the pod with a point armed. One that is passed only while
// blocks are dirty is missed when the kernel has flushed them all by then; it
// gets more tries.
func (v *vol) stopKilled(ctx context.Context, point string) error {
	if point == "" {
		return v.stop(ctx)
	}
	const tries = 3
	var err error
	for range tries {
		go func() {
			// Ends with the pod.
			_, _ = v.run(ctx, "while :; do head -c 8M /dev/urandom >/data/noise; sync /data/noise; done")
		}()
		err = killed(ctx, v.node, point, true, func() error { return v.stop(ctx) })
		if !errors.Is(err, errNotFired) {
			break
		}
		if err := v.start(ctx, v.node); err != nil {
			return err
		}
	}
	return err
}

// errNotFired is returned when everything went by without the kill.
var errNotFired = errors.New("fault point did not fire (are the images built with the tag faultpoints?)")

// killed arms a point on a node, begins something, and returns when the plugin
// was killed at the point and runs again, and what was begun has returned. The
// kill may come later than that unless last is true.
func killed(ctx context.Context, node, point string, last bool, begin func() error) error {
	if _, err := k.Host.Run(ctx, node, "mkdir -p "+faultDir+" && : >"+faultDir+"/"+point); err != nil {
		return fmt.Errorf("arm %s: %w", point, err)
	}
	victim, err := k.NodePlugin(ctx, node)
	if err != nil {
		return err
	}
	begun := make(chan error, 1)
	go func() { begun <- begin() }()
	fired := make(chan error, 1)
	fctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { fired <- awaitFired(fctx, node, point) }()
	select {
	case err = <-fired:
	case result := <-begun:
		if result != nil {
			return fmt.Errorf("%s: %w", point, result)
		}
		begun <- nil
		if last {
			// The kill, if there was one, was seen by the kubelet already.
			if armed, err := isArmed(ctx, node, point); armed || err != nil {
				cancel()
			}
		}
		err = <-fired
	}
	if err != nil {
		return fmt.Errorf("%w: %s on %s: %w", errNotFired, point, node, err)
	}
	if err := replacePlugin(ctx, victim); err != nil {
		return fmt.Errorf("after the kill at %s: %w", point, err)
	}
	if err := <-begun; err != nil {
		return fmt.Errorf("after the kill at %s: %w", point, err)
	}
	return nil
}

// awaitFired waits until the plugin has consumed an armed point.
func awaitFired(ctx context.Context, node, point string) error {
	return cluster.AwaitEvery(ctx, cluster.Poll, soon, func(ctx context.Context) (string, error) {
		armed, err := isArmed(ctx, node, point)
		if armed {
			return "the point is still armed", nil
		}
		return "", err
	})
}

// isArmed reports whether the plugin has not consumed an armed point.
func isArmed(ctx context.Context, node, point string) (bool, error) {
	out, err := k.Host.Run(ctx, node, "[ -e "+faultDir+"/"+point+" ] && echo armed || true")
	return strings.TrimSpace(out) == "armed", err
}

// replacePlugin makes a new pod of a plugin that was killed: the kubelet would
// let a container that was killed often wait for minutes.
func replacePlugin(ctx context.Context, victim *corev1.Pod) error {
	return replacePod(ctx, victim, k.NodePlugin, client.GracePeriodSeconds(1))
}

// replacePod deletes a pod of which each node has one, and waits until another one runs, which find
// finds on the node.
func replacePod(ctx context.Context, victim *corev1.Pod, find func(context.Context, string) (*corev1.Pod, error), opts ...client.DeleteOption) error {
	if err := client.IgnoreNotFound(k.API.Delete(ctx, victim, opts...)); err != nil {
		return err
	}
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		pod, err := find(ctx, victim.Spec.NodeName)
		if err != nil {
			return "", err
		}
		if pod.UID == victim.UID || pod.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("no new pod in the place of %s runs on %s", victim.Name, victim.Spec.NodeName), nil
		}
		return "", nil
	})
}

// disarm removes what is armed still, so that a failed spec fails alone.
func disarm(ctx SpecContext) {
	for _, node := range k.Workers {
		_, err := k.Host.Run(ctx, node, "rm -rf "+faultDir+"/*")
		Expect(err).NotTo(HaveOccurred())
	}
}
