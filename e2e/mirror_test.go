//go:build e2e

package e2e

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

var _ = Describe("A volume whose class asks for a mirror", Label("pool", "lab", "slow"), Serial, func() {
	It("goes to the node that has two SSDs for it, and has no cache elsewhere", func(ctx SpecContext) {
		s := newSpace(ctx)
		first, second, _ := secondDevice(ctx, nodeA)

		By("letting the scheduler choose")
		v, err := s.volume(ctx, volumeSpec{
			name: "mirrored", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "64Mi", parameters: map[string]string{"redundancy": "mirror"},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, "")).To(Succeed())
		pod := &corev1.Pod{}
		Expect(k.API.Get(ctx, client.ObjectKey{Namespace: s.name, Name: v.pod}, pod)).To(Succeed())
		Expect(pod.Spec.NodeName).To(Equal(nodeA))
		v.node = nodeA
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		copies, err := k.Host.Run(ctx, nodeA, `lvs --all --noheadings --options devices --select 'lv_name=~"`+v.Handle+`.*_rimage_"' | sed 's/(.*//; s/ //g' | sort`)
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Fields(copies)).To(ConsistOf(first, first, second, second), "data and map have a copy each on both SSDs")
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())

		By("starting it on the node that has one")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonNotMirrored)).To(Succeed())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeNone)).To(Succeed())
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
	}, NodeTimeout(2*specLimit))
})
