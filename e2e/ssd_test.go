//go:build e2e

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const failoversName = "nearflash_cache_failovers_total"

var _ = Describe("A volume whose SSD fails below its running pod", Label("faults", "lab"), func() {
	It("goes on without its cache when nothing can be lost by that", Label("turn-1"), func(ctx SpecContext) {
		s := newSpace(ctx)
		token := readerToken(ctx, s)
		v, err := s.volume(ctx, volumeSpec{name: "failover", mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		before, err := v.fresh(ctx, token)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.beginRandom(ctx)).To(Succeed())

		By("making the SSD answer with errors where the cache's map is")
		old, err := v.cacheUUID(ctx, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(old).NotTo(BeEmpty())
		Expect(failLV(ctx, nodeA, v.Handle+".meta")).To(Succeed())
		Expect(v.expectUncached(ctx, v1alpha1.ReasonCacheDeviceError)).To(Succeed())
		Expect(v.endRandom(ctx)).To(Equal("0"), "accesses of the pod that failed")
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
		sum, err = v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())

		By("looking at what is left and what is shown")
		Expect(v.awaitCacheGone(ctx, nodeA, old)).To(Succeed())
		after, err := v.fresh(ctx, token)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.nodeTotal(failoversName) - before.nodeTotal(failoversName)).To(Equal(1.0))
		// What the alert NearflashVolumeUncached asks for.
		Expect(after.sum("nearflash_volume_cached", "")).To(Equal(0.0))
		Expect(after.sum("nearflash_volume_info", "mode=writethrough")).To(Equal(1.0))

		By("attaching it again, with a new cache")
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
	}, NodeTimeout(specLimit))

	It("keeps a cache that has unflushed writes, and says so", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "atrisk", mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())

		mend, err := failLVUntil(ctx, nodeA, v.Handle+".data")
		Expect(err).NotTo(HaveOccurred())
		_, err = k.AwaitEvent(ctx, v.claim, soon, func(e cluster.Event) bool {
			return e.Reason == v1alpha1.ReasonCacheDeviceError && e.Type == corev1.EventTypeWarning && e.Object == "PersistentVolumeClaim/"+v.claim
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())
		Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			c := meta.FindStatusCondition(cv.Status.Conditions, v1alpha1.ConditionCached)
			if c == nil || c.Reason != v1alpha1.ReasonCacheDeviceError || c.Status != metav1.ConditionTrue {
				return "the condition does not say what is at risk"
			}
			return ""
		})).To(Succeed())

		By("letting the SSD answer again")
		Expect(mend(ctx)).To(Succeed())
		Expect(v.awaitCondition(ctx, v1alpha1.ReasonCacheActive)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// nodeTotal is the value of a metric of the node itself.
func (f figures) nodeTotal(name string) float64 {
	total := 0.0
	for _, m := range f.families[name].GetMetric() {
		total += m.GetCounter().GetValue()
	}
	return total
}

// beginRandom has the pod read and write small blocks past the first 16 MiB of its
// device, until endRandom.
func (v *vol) beginRandom(ctx context.Context) error {
	_, err := v.run(ctx, fmt.Sprintf(`
rm -f /tmp/stop /tmp/failed /tmp/ended; : >/tmp/failed
(
  while [ ! -e /tmp/stop ]; do
    at=$((4096 + RANDOM %% 1024))
    dd if=/dev/zero of=%[1]s bs=4k count=1 seek=$at oflag=direct conv=notrunc status=none || echo write $at >>/tmp/failed
    dd if=%[1]s of=/dev/null bs=4k count=1 skip=$at iflag=direct status=none || echo read $at >>/tmp/failed
    sleep 0.05
  done
  : >/tmp/ended
) >/dev/null 2>&1 </dev/null &
disown`, v.path()))
	return err
}

// endRandom returns the number of accesses that failed.
func (v *vol) endRandom(ctx context.Context) (string, error) {
	return v.run(ctx, `: >/tmp/stop; while [ ! -e /tmp/ended ]; do sleep 0.1; done; wc -l </tmp/failed`)
}

// failLVUntil is failLV; mend takes it back.
func failLVUntil(ctx context.Context, node, name string) (mend func(context.Context) error, err error) {
	const path = `path=$(lvs --noheadings -o lv_dm_path -S 'lv_name=%s' | tr -d ' '); `
	find := fmt.Sprintf(path, name)
	before, err := k.Host.Run(ctx, node, find+`dmsetup table "$path"`)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := k.Host.Run(ctx, node, find+`set -e
dmsetup suspend --nolockfs "$path"
dmsetup load "$path" <<'TABLE'
`+before+`
TABLE
dmsetup resume "$path"`)
		return err
	}, failLV(ctx, node, name)
}
