//go:build e2e

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// zoneLabel is where the other driver says the zone of a node.
const zoneLabel = "topology.gke.io/zone"

// zonesOf are the zones that a PersistentVolume can be used in.
func zonesOf(pv *corev1.PersistentVolume) (zones []string) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == zoneLabel {
				zones = append(zones, e.Values...)
			}
		}
	}
	return zones
}

// expectInZone: the volume can be used where the disk below it can, which is a zone, and nowhere else.
func (v *vol) expectInZone(ctx context.Context, disk *corev1.PersistentVolume) {
	GinkgoHelper()
	zones := zonesOf(disk)
	Expect(zones).To(HaveLen(1), "zones of PersistentVolume %s", disk.Name)
	var pv corev1.PersistentVolume
	Expect(k.API.Get(ctx, client.ObjectKey{Name: v.PV}, &pv)).To(Succeed())
	Expect(zonesOf(&pv)).To(Equal(zones), "zones of PersistentVolume %s", pv.Name)
}

// awaitUnschedulable waits until the scheduler has found no node for the volume's pod.
func (v *vol) awaitUnschedulable(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pod corev1.Pod
		if err := k.API.Get(ctx, client.ObjectKey{Namespace: v.space.name, Name: v.pod}, &pod); err != nil {
			return "", err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				return "", nil
			}
		}
		return fmt.Sprintf("pod %s is not unschedulable: node %q, %+v", pod.Name, pod.Spec.NodeName, pod.Status.Conditions), nil
	})
}

var _ = Describe("A volume over a disk of one zone", Label("origin-zones", "lab", "slow"), func() {
	It("is made in the zone of its pod and stays there, and its cache with it", func(ctx SpecContext) {
		s := newSpace(ctx)
		for _, node := range []string{nodeA, nodeB} {
			By("making a volume for a pod on " + node)
			v, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "of-" + node, mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "128Mi"}, node)
			Expect(err).NotTo(HaveOccurred())
			disk, err := v.origin(ctx)
			Expect(err).NotTo(HaveOccurred())
			v.expectInZone(ctx, disk)
			Expect(attachedTo(ctx, disk.Name)).To(ConsistOf(node))
			sum, before, _ := v.warm(ctx)

			By("asking for it in the other zone")
			_, said, status, err := plugin(ctx, "migrate", "-n", s.name, v.claim, "--to", otherNode(node))
			Expect(err).NotTo(HaveOccurred())
			Expect(status).NotTo(BeZero())
			Expect(said).To(ContainSubstring("outside of the node affinity"))
			Expect(v.stop(ctx)).To(Succeed())
			Expect(v.begin(ctx, otherNode(node))).To(Succeed())
			Expect(v.awaitUnschedulable(ctx)).To(Succeed())
			Expect(attachedTo(ctx, disk.Name)).To(BeEmpty())

			By("going back to where it was")
			Expect(v.restart(ctx, node)).To(Succeed())
			Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
			v.expectHits(ctx, before)
		}
	}, NodeTimeout(specLimit))
})
