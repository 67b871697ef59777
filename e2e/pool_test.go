//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = Describe("A full pool", Label("pool", "lab"), func() {
	It("gives up the oldest retained cache first, and then attaches uncached", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		Expect(awaitEmptyPool(ctx, nodeA)).To(Succeed())
		pool, err := poolOf(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		// Two caches of this size fit, three do not.
		size := fmt.Sprintf("%dMi", pool.Status.Capacity.Value()*2/5>>20)

		By("filling the pool with two retained caches")
		var vols [3]*vol
		var sums [3]string
		for i := range vols {
			vols[i], err = s.volume(ctx, volumeSpec{name: fmt.Sprintf("v%d", i), mode: v1alpha1.CacheModeWritethrough, kind: block, size: size, cacheSize: size})
			Expect(err).NotTo(HaveOccurred())
		}
		for i := range 2 {
			Expect(vols[i].start(ctx, nodeA)).To(Succeed())
			sums[i], err = vols[i].write(ctx, 0, 4)
			Expect(err).NotTo(HaveOccurred())
			Expect(vols[i].stop(ctx)).To(Succeed())
			Expect(vols[i].awaitRecord(ctx, retainedOn(nodeA))).To(Succeed())
			// While that is recorded the cache is not idle, and would be left.
			Expect(vols[i].awaitHotSet(ctx)).To(Succeed())
		}

		By("attaching a third volume")
		Expect(vols[2].start(ctx, nodeA)).To(Succeed())
		Expect(vols[2].awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(vols[0].cacheUUID(ctx, nodeA)).To(BeEmpty(), "the oldest retained cache is still there")
		Expect(vols[1].cacheUUID(ctx, nodeA)).NotTo(BeEmpty(), "the younger retained cache was evicted as well")
		Expect(vols[0].awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			if len(cv.Status.RetainedCaches) > 0 {
				return "the evicted retained cache is still reported"
			}
			return ""
		})).To(Succeed())

		By("attaching more than the pool can hold")
		Expect(vols[1].start(ctx, nodeA)).To(Succeed())
		Expect(vols[1].awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(vols[0].start(ctx, nodeA)).To(Succeed())
		Expect(vols[0].expectUncached(ctx, v1alpha1.ReasonPoolFull)).To(Succeed())
		for i := range 2 {
			Expect(vols[i].verify(ctx, 0, 4, sums[i])).To(Succeed())
		}
	}, NodeTimeout(specLimit))
})

var _ = Describe("A pool with a share for each namespace", Label("pool", "lab"), func() {
	It("attaches uncached what would take a namespace over it, and caches what is another one's", Label("slow"), func(ctx SpecContext) {
		shop, bank := newSpace(ctx), newSpace(ctx)
		Expect(awaitEmptyPool(ctx, nodeA)).To(Succeed())
		pool, err := poolOf(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		// Two caches of this size fit into the pool, and one into the share.
		size := fmt.Sprintf("%dMi", pool.Status.Capacity.Value()*2/5>>20)
		Expect(sharePool(ctx, nodeA, 60)).To(Succeed())
		var vols []*vol
		for i, s := range []*space{shop, shop, bank} {
			v, err := s.volume(ctx, volumeSpec{name: fmt.Sprintf("shared%d", i), mode: v1alpha1.CacheModeWritethrough, kind: block, size: size, cacheSize: size})
			Expect(err).NotTo(HaveOccurred())
			vols = append(vols, v)
		}
		first, second, others := vols[0], vols[1], vols[2]

		By("attaching two volumes of one namespace")
		Expect(first.start(ctx, nodeA)).To(Succeed())
		Expect(first.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(second.start(ctx, nodeA)).To(Succeed())
		Expect(second.expectUncached(ctx, v1alpha1.ReasonNamespaceShareFull)).To(Succeed())
		Expect(second.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			c := meta.FindStatusCondition(cv.Status.Conditions, v1alpha1.ConditionCached)
			if c == nil || !strings.Contains(c.Message, "namespace "+shop.name+" may take 60%") {
				return "the condition does not say whose share it is"
			}
			return ""
		})).To(Succeed())
		sum, err := second.write(ctx, 0, 4)
		Expect(err).NotTo(HaveOccurred())

		By("attaching one of another namespace")
		Expect(others.start(ctx, nodeA)).To(Succeed())
		Expect(others.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(others.stop(ctx)).To(Succeed())
		Expect(others.awaitRecord(ctx, retainedOn(nodeA))).To(Succeed())
		Expect(others.awaitHotSet(ctx)).To(Succeed())

		By("giving the first one's place up, so that the running pod gets a cache")
		Expect(first.stop(ctx)).To(Succeed())
		Expect(second.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(second.verify(ctx, 0, 4, sum)).To(Succeed())
		Expect(first.cacheUUID(ctx, nodeA)).To(BeEmpty(), "the namespace's retained cache is still there")
		Expect(others.cacheUUID(ctx, nodeA)).NotTo(BeEmpty(), "the older retained cache of another namespace was evicted")
	}, NodeTimeout(specLimit))
})

// sharePool makes an administrator's CachePool with a share for each namespace, as long as the spec
// lasts, and waits until the node has seen it.
func sharePool(ctx context.Context, node string, percent int32) error {
	DeferCleanup(func(ctx SpecContext) {
		Expect(resetPool(ctx, node)).To(Succeed())
		Expect(awaitShare(ctx, node, 0)).To(Succeed())
	}, NodeTimeout(late))
	if err := administerPool(ctx, node, func(s *v1alpha1.CachePoolSpec) { s.NamespaceSharePercent = percent }); err != nil {
		return err
	}
	return awaitShare(ctx, node, percent)
}

// awaitShare waits until the node acts by the share.
func awaitShare(ctx context.Context, node string, percent int32) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		pool, err := poolOf(ctx, node)
		if err != nil {
			return "", err
		}
		c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
		if pool.Spec.NamespaceSharePercent != percent || c == nil || c.ObservedGeneration != pool.Generation {
			return fmt.Sprintf("CachePool %s has a share of %d%% in generation %d, and its condition is %+v", node, pool.Spec.NamespaceSharePercent, pool.Generation, c), nil
		}
		return "", nil
	})
}

// retainedOn says whether the record reports a retained cache on the node.
func retainedOn(node string) func(*v1alpha1.CachedVolume) string {
	return func(cv *v1alpha1.CachedVolume) string {
		for _, r := range cv.Status.RetainedCaches {
			if r.NodeName == node && cv.Status.Generation != nil && r.Generation == *cv.Status.Generation {
				return ""
			}
		}
		return "no retained cache of this generation on " + node
	}
}

func poolOf(ctx context.Context, node string) (*v1alpha1.CachePool, error) {
	var pool v1alpha1.CachePool
	err := k.API.Get(ctx, client.ObjectKey{Name: node}, &pool)
	return &pool, err
}

var _ = Describe("A volume that cannot be cached", Label("fallback", "lab"), func() {
	It("is attached uncached while the node has no pool", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "poolless", mode: v1alpha1.CacheModeWritethrough, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeB)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())

		By("taking the pool's devices away")
		Expect(overridePool(ctx, nodeA, []string{"/dev/nearflash-e2e-absent*"})).To(Succeed())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.expectUncached(ctx, v1alpha1.ReasonPoolMissing)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
		sum, err = v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())

		By("giving them back")
		Expect(resetPool(ctx, nodeA)).To(Succeed())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
	}, NodeTimeout(specLimit))

	It("is attached uncached when the SSD fails below its retained cache", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "failing", mode: v1alpha1.CacheModeWritethrough, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		Expect(v.awaitRecord(ctx, retainedOn(nodeA))).To(Succeed())

		By("making the SSD answer with errors where the cache's map is")
		Expect(failLV(ctx, nodeA, v.Handle+".meta")).To(Succeed())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheDeviceError)).To(Succeed())
		Expect(v.expectUncached(ctx, v1alpha1.ReasonCacheDeviceError)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
		sum, err = v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())

		By("attaching it again, with a new cache")
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// failLV puts an error target below a logical volume of a node.
func failLV(ctx context.Context, node, name string) error {
	_, err := k.Host.Run(ctx, node, `set -e
path=$(lvs --noheadings -o lv_dm_path -S 'lv_name=`+name+`' | tr -d ' ')
[ -n "$path" ]
[ -e "$path" ] || lvchange --activate y "$(lvs --noheadings -o lv_full_name -S 'lv_name=`+name+`' | tr -d ' ')"
sectors=$(blockdev --getsz "$path")
dmsetup suspend --nolockfs "$path"
dmsetup load "$path" --table "0 $sectors error"
dmsetup resume "$path"`)
	return err
}

// poolSource marks a CachePool that the plugin keeps as its flags say.
const poolSource = "nearflash.io/pool-source"

// overridePool makes an administrator's CachePool with other devices, as long as
// the spec lasts, and waits until the node has seen it.
func overridePool(ctx context.Context, node string, devices []string) error {
	DeferCleanup(func(ctx SpecContext) { Expect(resetPool(ctx, node)).To(Succeed()) }, NodeTimeout(late))
	if err := administerPool(ctx, node, func(s *v1alpha1.CachePoolSpec) { s.Devices = devices }); err != nil {
		return err
	}
	return awaitPool(ctx, node, false)
}

// administerPool makes an administrator's CachePool of the plugin's, and changes it.
func administerPool(ctx context.Context, node string, change func(*v1alpha1.CachePoolSpec)) error {
	pool, err := poolOf(ctx, node)
	if err != nil {
		return err
	}
	old := pool.DeepCopy()
	delete(pool.Labels, poolSource)
	change(&pool.Spec)
	if err := k.API.Patch(ctx, pool, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("CachePool %s: %w", node, err)
	}
	return nil
}

// resetPool gives the CachePool back to the plugin.
func resetPool(ctx context.Context, node string) error {
	pool, err := poolOf(ctx, node)
	if err != nil {
		return err
	}
	old := pool.DeepCopy()
	if pool.Labels == nil {
		pool.Labels = map[string]string{}
	}
	pool.Labels[poolSource] = "node-flags"
	if err := k.API.Patch(ctx, pool, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("reset CachePool %s: %w", node, err)
	}
	return awaitPool(ctx, node, true)
}

func awaitPool(ctx context.Context, node string, ready bool) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		pool, err := poolOf(ctx, node)
		if err != nil {
			return "", err
		}
		if meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionReady) != ready {
			return fmt.Sprintf("CachePool %s is not Ready=%t: %+v", node, ready, pool.Status.Conditions), nil
		}
		return "", nil
	})
}

var _ = Describe("A node whose SSDs come blank at each boot", Label("pool", "crash", "lab", "slow"), Serial, func() {
	It("makes a pool by itself, and its volumes begin with empty caches", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "there", mode: v1alpha1.CacheModeWritethrough, kind: block, size: "64Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		before, err := v.cacheUUID(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(before).NotTo(BeEmpty())
		Expect(v.stop(ctx)).To(Succeed())
		Expect(v.awaitRecord(ctx, retainedOn(nodeA))).To(Succeed())
		pool, err := poolOf(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())

		By("cutting the power of a node, whose SSDs lose everything")
		wipe := "set -e\n"
		for _, d := range pool.Status.Devices {
			wipe += fmt.Sprintf("blkdiscard -f -z %[1]s 2>/dev/null || dd if=/dev/zero of=%[1]s bs=1M oflag=direct status=none || true\n", d.Path)
		}
		DeferCleanup(func(ctx SpecContext) {
			Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
			Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		}, NodeTimeout(2*late))
		_, err = k.Host.Run(ctx, nodeA, "sync --file-system /var/lib/kubelet\n"+wipe)
		Expect(err).NotTo(HaveOccurred())
		Expect(k.Lab.Kill(ctx, nodeA)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())

		By("using the volume there again")
		Expect(awaitPool(ctx, nodeA, true)).To(Succeed())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		after, err := v.cacheUUID(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(after).NotTo(Equal(before))
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
	}, NodeTimeout(specLimit))
})
