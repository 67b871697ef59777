//go:build e2e

package e2e

import (
	"maps"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cephCSI is ceph-csi itself over the lab's Ceph: a lab has it if it was brought up with its source.
const cephCSI = "rbd.csi.ceph.com"

var _ = Describe("A volume over ceph-csi", Label("ceph-csi", "lab", "slow"), func() {
	It("is cached, grows below a pod, moves with its data, and is deleted with the image", func(ctx SpecContext) {
		s := newSpace(ctx)
		consenting := originDriver{class: cephRBD.class, parameters: maps.Clone(cephRBD.parameters)}
		consenting.parameters["withoutFence"] = volume.AcceptTwoWriters
		v, err := s.cachedOrigin(ctx, consenting, volumeSpec{name: "over", mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "128Mi"}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())
		pv, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(pv.Spec.CSI.Driver).To(Equal(cephCSI))
		Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(nodeA))
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.warmUp(ctx)).To(Succeed())

		By("growing it below the pod")
		Expect(k.Expand(ctx, s.name, v.claim, v.pod, "2Gi", late)).To(Succeed())
		Expect(v.size(ctx)).To(BeEquivalentTo(2 << 30))
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())

		By("moving it to the other node, and back")
		for _, node := range []string{nodeB, nodeA} {
			Expect(v.restart(ctx, node)).To(Succeed())
			Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
			Expect(v.expectTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())
			Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(node))
		}

		By("deleting it")
		Expect(v.deleteClaim(ctx)).To(Succeed())
		expectDiskGone(ctx, pv.Name)
		var images []string
		Expect(cephJSON(ctx, &images, "rbd", "ls")).To(Succeed())
		Expect(images).NotTo(ContainElement(pv.Spec.CSI.VolumeAttributes["imageName"]))
		for _, node := range []string{nodeA, nodeB} {
			mapped, err := k.Host.Run(ctx, node, "cat /sys/bus/rbd/devices/*/name 2>/dev/null || true")
			Expect(err).NotTo(HaveOccurred())
			Expect(strings.Fields(mapped)).NotTo(ContainElement(pv.Spec.CSI.VolumeAttributes["imageName"]), "node %s", node)
		}
	}, NodeTimeout(2*specLimit))
})
