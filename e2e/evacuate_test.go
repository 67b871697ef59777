//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = Describe("A device of a pool", Label("pool", "lab", "slow"), Serial, func() {
	It("leaves the pool while pods write through their caches, and comes back", func(ctx SpecContext) {
		s := newSpace(ctx)
		first, second, alone := secondDevice(ctx, nodeA)
		pool, err := poolOf(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		both := pool.Status.Capacity.Value()
		Expect(both).To(BeNumerically(">", alone))

		By("writing through two caches that lie on both")
		var vols []*vol
		var loads []*load
		uuids := map[string]string{}
		for _, mode := range []v1alpha1.CacheMode{v1alpha1.CacheModeWritethrough, v1alpha1.CacheModeWriteback} {
			v, err := s.volume(ctx, volumeSpec{name: string(mode), mode: mode, kind: ext4, size: "512Mi", cacheSize: "128Mi"})
			Expect(err).NotTo(HaveOccurred())
			Expect(v.start(ctx, nodeA)).To(Succeed())
			Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
			uuids[v.Handle], err = v.cacheUUID(ctx, nodeA)
			Expect(err).NotTo(HaveOccurred())
			Expect(devicesBelow(ctx, nodeA, v)).To(ConsistOf(first, second))
			vols, loads = append(vols, v), append(loads, v.startLoad(ctx))
		}

		By("taking the first device out")
		Expect(evacuate(ctx, nodeA, []string{first, second}, first)).To(Succeed())
		pool, err = poolOf(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(pool.Status.Capacity.Value()).To(Equal(both - alone))
		left, err := k.Host.Run(ctx, nodeA, "wipefs --no-act --noheadings "+first+"; pvs --noheadings --options pv_name | grep -w "+first+" || true")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.TrimSpace(left)).To(BeEmpty())
		for _, v := range vols {
			Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
			Expect(devicesBelow(ctx, nodeA, v)).To(ConsistOf(second))
			uuid, err := v.cacheUUID(ctx, nodeA)
			Expect(err).NotTo(HaveOccurred())
			Expect(uuid).NotTo(Or(BeEmpty(), Equal(uuids[v.Handle])))
		}

		By("putting it in again, and taking the second one out")
		Expect(evacuate(ctx, nodeA, []string{first, second})).To(Succeed())
		pool, err = poolOf(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(pool.Status.Capacity.Value()).To(Equal(both))
		Expect(evacuate(ctx, nodeA, []string{first, second}, second)).To(Succeed())
		for i, v := range vols {
			Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
			Expect(devicesBelow(ctx, nodeA, v)).To(ConsistOf(first))
			Expect(loads[i].end(ctx)).To(Succeed())
			Expect(v.stop(ctx)).To(Succeed())
		}
	}, NodeTimeout(2*specLimit))
})

// secondDevice puts a spare device into a node's pool of one, which is empty, as long as the spec lasts. It
// returns both, and the capacity of the first one alone in bytes.
func secondDevice(ctx context.Context, node string) (first, second string, alone int64) {
	GinkgoHelper()
	Expect(awaitEmptyPool(ctx, node)).To(Succeed())
	pool, err := poolOf(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	Expect(pool.Status.Devices).To(HaveLen(1))
	first, second = pool.Status.Devices[0].Path, spareDevice(ctx, node)
	By("putting a second device in")
	DeferCleanup(func(ctx SpecContext) {
		Expect(evacuate(ctx, node, []string{first}, second)).To(Succeed())
		Expect(resetPool(ctx, node)).To(Succeed())
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			pool, err := poolOf(ctx, node)
			if err == nil && len(pool.Status.Devices) != 1 {
				return fmt.Sprintf("CachePool %s has other devices than before: %+v", node, pool.Status.Devices), nil
			}
			return "", err
		})).To(Succeed())
	}, NodeTimeout(3*late))
	Expect(evacuate(ctx, node, []string{first, second})).To(Succeed())
	return first, second, pool.Status.Capacity.Value()
}

// spareDevice is a blank device of a node that no pool wants, as long as the spec lasts.
func spareDevice(ctx context.Context, node string) string {
	GinkgoHelper()
	out, err := k.Host.Run(ctx, node, "truncate --size 1G /var/lib/spare.img && losetup --find --show /var/lib/spare.img")
	Expect(err).NotTo(HaveOccurred())
	device := strings.TrimSpace(out)
	DeferCleanup(func(ctx SpecContext) {
		_, err := k.Host.Run(ctx, node, "losetup --detach "+device+" && rm /var/lib/spare.img")
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(soon))
	return device
}

// devicesBelow are the devices on which a volume's cache lies, by LVM's word.
func devicesBelow(ctx context.Context, node string, v *vol) ([]string, error) {
	out, err := k.Host.Run(ctx, node, `lvs --noheadings --options devices --select 'lv_name=`+v.Handle+`.data || lv_name=`+v.Handle+`.meta' | tr ',' '\n' | sed 's/(.*//; s/ //g' | sort --unique`)
	return strings.Fields(out), err
}

// evacuate makes an administrator's CachePool with these devices, of which some are to be out of the pool, and
// waits until the others are in it and these are out.
func evacuate(ctx context.Context, node string, devices []string, out ...string) error {
	if err := administerPool(ctx, node, func(s *v1alpha1.CachePoolSpec) { s.Devices, s.Evacuate = devices, out }); err != nil {
		return err
	}
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		pool, err := poolOf(ctx, node)
		if err != nil {
			return "", err
		}
		in, gone := 0, 0
		for _, d := range pool.Status.Devices {
			switch {
			case d.Evacuation != nil && d.Evacuation.State == v1alpha1.EvacuationEvacuated:
				gone++
			case d.Evacuation == nil && d.Message == "":
				in++
			}
		}
		// What is in the spec alone, and what the flags had, must both have been seen.
		if gone != len(out) || in == 0 || in+gone < len(devices) {
			return fmt.Sprintf("CachePool %s of %v without %v: %+v", node, devices, out, pool.Status.Devices), nil
		}
		return awaitedReady(pool)
	})
}

// awaitedReady says why a pool has not been seen ready with the spec that it has.
func awaitedReady(pool *v1alpha1.CachePool) (string, error) {
	for _, c := range pool.Status.Conditions {
		if c.Type == v1alpha1.ConditionReady && c.Status == "True" && c.ObservedGeneration == pool.Generation {
			return "", nil
		}
	}
	return fmt.Sprintf("CachePool %s is not ready: %+v", pool.Name, pool.Status.Conditions), nil
}
