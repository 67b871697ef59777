//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// handoverSet in MiB is what a slow hydration copies in a minute.
const handoverSet = 64

var _ = Describe("A node that is shut down while it exports a cache", Label("warmmove", "lost", "lab"), func() {
	It("is left before it goes, and keeps its leases when only its plugin ends", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "orderly", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "128Mi", cacheSize: "100%", parameters: slowly})
		Expect(err).NotTo(HaveOccurred())
		v.set = handoverSet
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, handoverSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())
		old, err := v.cacheUUID(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitHydrating(ctx, 2)).To(Succeed())

		By("ending the plugin of a node that is only cordoned")
		Expect(cordon(ctx, nodeA, true)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(cordon(ctx, nodeA, false)).To(Succeed()) }, NodeTimeout(soon))
		Expect(endPlugin(ctx, nodeA)).To(Succeed())
		cm, err := v.migration(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Status.Source.State).To(Equal(v1alpha1.ExportStateExported))
		Expect(cm.Status.Outcome).To(BeEmpty(), "the copy must still be under way")
		Expect(v.expectPath(ctx, true)).To(Succeed())

		By("ending it while the node is shut down, under a verified load")
		// A plugin that has not begun yet gives nothing up.
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		load := v.beginLoad(ctx)
		stop := sayShutdown(ctx, nodeA)
		Expect(endPlugin(ctx, nodeA)).To(Succeed())
		Expect(stop()).To(Succeed())
		cm, err = v.migration(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Status.Source.State).To(Equal(v1alpha1.ExportStateReleased))
		Expect(cm.Status.Source.Message).To(ContainSubstring("node %s is shutting down", nodeA))
		Expect(v.expectNoLease(ctx, nodeA)).To(Succeed())
		if cm.Status.Outcome == "" {
			Expect(v.expectPath(ctx, false)).To(Succeed())
		}
		pause, err := load()
		Expect(err).NotTo(HaveOccurred(), "no I/O may fail, no byte may be wrong")
		GinkgoWriter.Printf("longest I/O while the source was shut down: %s\n", pause)

		By("looking at what is left when it is back")
		cm, err = v.awaitMoved(ctx, 2)
		Expect(err).NotTo(HaveOccurred())
		Expect(cm.Status.Progress.ServedFrom).To(Equal(v1alpha1.ServedFromOrigin))
		Expect(v.expectWhole(ctx)).To(Succeed())
		Expect(v.verify(ctx, 0, handoverSet, sum)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		Expect(v.awaitCacheGone(ctx, nodeA, old)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// cordon says whether a node is to get new pods.
func cordon(ctx context.Context, node string, on bool) error {
	var n corev1.Node
	if err := k.API.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
		return err
	}
	old := n.DeepCopy()
	n.Spec.Unschedulable = on
	return k.API.Patch(ctx, &n, client.MergeFrom(old))
}

// endPlugin ends the node plugin with the time that its pod is given, and waits until
// that pod is gone.
func endPlugin(ctx context.Context, node string) error {
	pod, err := k.NodePlugin(ctx, node)
	if err != nil {
		return err
	}
	uid, key := pod.UID, client.ObjectKeyFromObject(pod)
	if err := k.API.Delete(ctx, pod); err != nil {
		return err
	}
	return cluster.Await(ctx, soon, func(ctx context.Context) (string, error) {
		err := k.API.Get(ctx, key, pod)
		if client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if err == nil && pod.UID == uid {
			return fmt.Sprintf("pod %s has not ended", key.Name), nil
		}
		return "", nil
	})
}

// sayShutdown writes what a kubelet writes whose node is shut down, as long as the
// node's own kubelet, which knows better, writes over it. The returned function ends
// that.
func sayShutdown(ctx context.Context, node string) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		written := 0
		for ctx.Err() == nil {
			if shutDown(ctx, node) == nil {
				written++
			}
			select {
			case <-ctx.Done():
			case <-time.After(cluster.Poll):
			}
		}
		if written == 0 {
			done <- fmt.Errorf("the condition of node %s could not be written", node)
		}
		close(done)
	}()
	return func() error { cancel(); return <-done }
}

// shutDown sets the condition Ready of a node.
func shutDown(ctx context.Context, node string) error {
	var n corev1.Node
	if err := k.API.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
		return err
	}
	old := n.DeepCopy()
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, "KubeletNotReady", "node is shutting down"
		}
	}
	return k.API.Status().Patch(ctx, &n, client.StrategicMergeFrom(old))
}

// expectPath fails unless the path of the volume's hydration is up and has never failed,
// and leads to the peer or to the origin. The multipath device's status ends with the
// path: its number, A or F, and how often it failed.
func (v *vol) expectPath(ctx context.Context, peer bool) error {
	out, err := k.Host.Run(ctx, v.node, fmt.Sprintf(
		"dmsetup status nf-%[1]s.source; cat /sys/class/iscsi_session/session*/targetname | grep -cF ':lend.' || true", v.Handle))
	if err != nil {
		return err
	}
	status, sessions, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if !strings.Contains(status, " A 0") {
		return fmt.Errorf("the path of volume %s has failed: %s", v.claim, status)
	}
	if strings.TrimSpace(sessions) != map[bool]string{true: "1", false: "0"}[peer] {
		return fmt.Errorf("node %s has %s sessions with source nodes, with the peer of volume %s: %t", v.node, sessions, v.claim, peer)
	}
	return nil
}
