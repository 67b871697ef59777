//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = Describe("A volume in mode writeback-unsafe", Label("unsafe", "lab"), Serial, func() {
	It("warns at each stage, has what was written after a move, and says after a crash that it may be damaged", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{
			name: "scratch", mode: v1alpha1.CacheModeWritebackUnsafe, kind: ext4, parameters: map[string]string{"acceptDirtyLoss": "power-loss"},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.awaitDropped(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())

		By("moving it")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(v.awaitDropped(ctx, nodeB)).To(Succeed())
		cv, err := k.CachedVolume(ctx, v.Volume)
		Expect(err).NotTo(HaveOccurred())
		Expect(meta.FindStatusCondition(cv.Status.Conditions, v1alpha1.ConditionConsistent)).To(BeNil(), "nothing has stopped uncleanly")

		By("crashing its node")
		_, err = v.write(ctx, 2, 8)
		Expect(err).NotTo(HaveOccurred())
		Expect(powerOff(ctx, nodeB)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeB)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			if c := meta.FindStatusCondition(cv.Status.Conditions, v1alpha1.ConditionConsistent); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonUncleanStop {
				return fmt.Sprintf("the condition is %+v", c)
			}
			return ""
		})).To(Succeed())
		_, err = k.AwaitEvent(ctx, v.claim, soon, func(e cluster.Event) bool {
			return e.Type == corev1.EventTypeWarning && e.Reason == v1alpha1.ReasonUncleanStop
		})
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(2*specLimit))
})

// awaitDropped waits for the warning of a stage on a node, and looks whether the kernel drops flushes.
func (v *vol) awaitDropped(ctx context.Context, node string) error {
	if _, err := k.AwaitEvent(ctx, v.claim, soon, func(e cluster.Event) bool {
		return e.Type == corev1.EventTypeWarning && e.Reason == v1alpha1.ReasonFlushesDropped && strings.Contains(e.Message, "on node "+node)
	}); err != nil {
		return err
	}
	attribute, err := k.Host.Run(ctx, node, "cat /sys/block/$(basename $(readlink -f /dev/mapper/nf-"+v.Handle+"))/queue/write_cache")
	if err == nil && strings.TrimSpace(attribute) != "write through" {
		err = fmt.Errorf("node %s: write_cache is %q", node, attribute)
	}
	return err
}
