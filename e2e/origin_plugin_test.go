//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// pdNode is the DaemonSet of the node half of Google's driver, in the lab.
var pdNode = client.ObjectKey{Namespace: "lab-origin", Name: "pd-csi-node"}

// runPDNode has the node half of the driver run on all nodes, or on none, and waits for that.
func runPDNode(ctx context.Context, on bool) error {
	var set appsv1.DaemonSet
	if err := k.API.Get(ctx, pdNode, &set); err != nil {
		return err
	}
	if err := runOnNodes(ctx, &set, on); err != nil {
		return err
	}
	want := 0
	if on {
		want = 2
	}
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pods corev1.PodList
		if err := k.API.List(ctx, &pods, client.InNamespace(pdNode.Namespace), client.MatchingLabels{"app": pdNode.Name}); err != nil {
			return "", err
		}
		ready := 0
		for i := range pods.Items {
			if cluster.PodReady(&pods.Items[i]) {
				ready++
			}
		}
		if ready != want || len(pods.Items) != want {
			return fmt.Sprintf("%d of %d pods of the driver are ready, want %d", ready, len(pods.Items), want), nil
		}
		return "", nil
	})
}

var _ = Describe("A volume whose other driver is gone from the nodes", Label("origin", "lab", "slow"), Serial, func() {
	It("is written and read, and is detached when that driver is back", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "alone", mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "128Mi"}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		disk, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		_, err = v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())

		By("removing the driver's node plugins")
		DeferCleanup(func(ctx SpecContext) { Expect(runPDNode(ctx, true)).To(Succeed()) }, NodeTimeout(late))
		Expect(runPDNode(ctx, false)).To(Succeed())
		sum, err := v.write(ctx, 0, 32)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.verify(ctx, 0, 32, sum)).To(Succeed())

		By("ending the pod: the cache is taken down, the disk stays until its driver unstages it")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: v.pod}}
		Expect(k.API.Delete(ctx, pod)).To(Succeed())
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			out, err := k.Host.Run(ctx, nodeA, "dmsetup ls")
			if err != nil || !strings.Contains(out, "nf-"+v.Handle) {
				return "", err
			}
			return "the cache is there still:\n" + out, nil
		})).To(Succeed())
		Consistently(ctx, func(ctx context.Context) ([]string, error) { return attachedTo(ctx, disk.Name) }, "10s", "2s").Should(ConsistOf(nodeA))

		By("bringing the driver back")
		Expect(runPDNode(ctx, true)).To(Succeed())
		Expect(v.stop(ctx)).To(Succeed())
		Expect(v.start(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 32, sum)).To(Succeed())
		Expect(attachedTo(ctx, disk.Name)).To(ConsistOf(nodeB))
	}, NodeTimeout(specLimit))
})
