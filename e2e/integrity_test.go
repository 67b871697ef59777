//go:build e2e

package e2e

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = Describe("A pool with checksums", Label("pool", "lab", "slow"), Serial, func() {
	It("has a volume leave its cache when the SSD returns something else than was written to it", func(ctx SpecContext) {
		s := newSpace(ctx)
		DeferCleanup(func(ctx SpecContext) { Expect(resetPool(ctx, nodeA)).To(Succeed()) }, NodeTimeout(late))
		Expect(checkPool(ctx, nodeA)).To(Succeed())
		v, err := s.volume(ctx, volumeSpec{name: "checked", mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		want, err := v.repeatWord(ctx)
		Expect(err).NotTo(HaveOccurred())
		before, err := v.cacheUUID(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())

		By("using the cache again after a stay")
		Expect(v.stop(ctx)).To(Succeed())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(v.cacheUUID(ctx, nodeA)).To(Equal(before))
		Expect(v.direct(ctx)).To(Equal(want))

		By("flipping a bit on the SSD, below the checksums")
		Expect(v.flip(ctx)).To(Succeed())
		got, err := v.direct(ctx)
		Expect(err).To(HaveOccurred(), "the pod has read "+got+", of "+want)
		Expect(v.expectUncached(ctx, v1alpha1.ReasonCacheDeviceError)).To(Succeed())
		Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			if c := meta.FindStatusCondition(cv.Status.Conditions, v1alpha1.ConditionCached); !strings.Contains(c.Message, "checksums") {
				return "the condition does not tell of checksums: " + c.Message
			}
			return ""
		})).To(Succeed())
		Expect(v.direct(ctx)).To(Equal(want))
	}, NodeTimeout(specLimit))
})

// checkPool makes an administrator's CachePool whose caches have checksums, and waits until the node has seen it.
func checkPool(ctx context.Context, node string) error {
	if err := administerPool(ctx, node, func(s *v1alpha1.CachePoolSpec) { s.Integrity = true }); err != nil {
		return err
	}
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		pool, err := poolOf(ctx, node)
		if err != nil {
			return "", err
		}
		return awaitedReady(pool)
	})
}
