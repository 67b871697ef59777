//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = DescribeTable("A pod that moves to another node", Label("move", "smoke"),
	func(ctx SpecContext, mode v1alpha1.CacheMode) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "moving", mode: mode, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		first, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		old, err := v.cacheUUID(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())

		By("moving it away")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, first)).To(Succeed())
		second, err := v.write(ctx, 8, 16)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.awaitCacheGone(ctx, nodeA, old)).To(Succeed())

		By("moving it back")
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.awaitOwner(ctx, nodeA, 3)).To(Succeed())
		Expect(v.cacheUUID(ctx, nodeA)).NotTo(Or(BeEmpty(), Equal(old)))
		Expect(v.verify(ctx, 8, 16, second)).To(Succeed())
	},
	Entry("writethrough", Label("slow"), v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
	Entry("writeback", Label("slow"), v1alpha1.CacheModeWriteback, NodeTimeout(specLimit)),
)

// awaitCacheGone waits until a node has given up a stale cache.
func (v *vol) awaitCacheGone(ctx context.Context, node, uuid string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		now, err := v.cacheUUID(ctx, node)
		if err != nil || now != uuid {
			return "", err
		}
		return fmt.Sprintf("node %s still has the stale cache %s of volume %s", node, uuid, v.Handle), nil
	})
}

var _ = Describe("A storage server that reboots", Label("storage", "lab"), func() {
	It("holds up I/O and fails none", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		var vols []*vol
		var sums []string
		for _, mode := range []v1alpha1.CacheMode{v1alpha1.CacheModeNone, v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback} {
			v, err := s.volume(ctx, volumeSpec{name: string(mode), mode: mode, kind: ext4})
			Expect(err).NotTo(HaveOccurred())
			Expect(v.start(ctx, nodeA)).To(Succeed())
			sum, err := v.write(ctx, 0, 8)
			Expect(err).NotTo(HaveOccurred())
			vols, sums = append(vols, v), append(sums, sum)
		}

		By("killing the server below running writers")
		Expect(k.Lab.Kill(ctx, cluster.StorageMachine)).To(Succeed())
		g, gctx := errgroup.WithContext(ctx)
		late := make([]string, len(vols))
		for i, v := range vols {
			g.Go(func() (err error) {
				late[i], err = v.write(gctx, 16, 8)
				return err
			})
		}
		Expect(k.Lab.Start(ctx, cluster.StorageMachine)).To(Succeed())
		Expect(g.Wait()).To(Succeed(), "writes while the storage server was away")

		By("reading everything from the server again")
		g, gctx = errgroup.WithContext(ctx)
		for i, v := range vols {
			g.Go(func() error {
				if err := v.restart(gctx, nodeB); err != nil {
					return err
				}
				return errors.Join(v.verify(gctx, 0, 8, sums[i]), v.verify(gctx, 16, 8, late[i]))
			})
		}
		Expect(g.Wait()).To(Succeed())
	}, NodeTimeout(specLimit))
})
