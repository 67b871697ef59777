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

// scrubWord is what the pod writes, again and again, so that it can be found on the SSD.
const scrubWord = "nearflash-scrubs-this"

var _ = Describe("A volume whose SSD returns something else than was written to it", Label("scrub", "lab"), func() {
	It("is told of it by a scrub, and reads what the storage server has", func(ctx SpecContext) {
		s := newSpace(ctx)
		token := readerToken(ctx, s)
		v, err := s.volume(ctx, volumeSpec{name: "scrubbed", mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		_, err = v.run(ctx, fmt.Sprintf(`set +o pipefail; yes %s 2>/dev/null | head -c 8388608 >/tmp/words; dd if=/tmp/words of=%s bs=64k oflag=direct conv=notrunc status=none`, scrubWord, v.path()))
		Expect(err).NotTo(HaveOccurred())
		want, err := v.direct(ctx)
		Expect(err).NotTo(HaveOccurred())

		By("flipping a bit on the SSD, below the cache")
		Expect(v.flip(ctx)).To(Succeed())
		Expect(v.direct(ctx)).NotTo(Equal(want), "the bit that was flipped does not show: nothing is tested")

		By("scrubbing it")
		out, err := shown(ctx, "scrub", "-n", s.name, v.claim)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("1 chunks were corrupted"))
		Expect(v.direct(ctx)).To(Equal(want))
		_, err = k.AwaitEvent(ctx, v.claim, soon, func(e cluster.Event) bool {
			return e.Reason == v1alpha1.ReasonCacheCorrupted && e.Type == corev1.EventTypeWarning && e.Object == "PersistentVolumeClaim/"+v.claim
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.awaitIntact(ctx, metav1.ConditionFalse, v1alpha1.ReasonCacheCorrupted)).To(Succeed())
		f, err := v.fresh(ctx, token)
		Expect(err).NotTo(HaveOccurred())
		Expect(f.sum("nearflash_volume_scrub_corrupted_chunks_total", "")).To(Equal(1.0))

		By("scrubbing it again")
		out, err = shown(ctx, "scrub", "-n", s.name, v.claim)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("nothing is corrupted"))
		Expect(v.awaitIntact(ctx, metav1.ConditionTrue, v1alpha1.ReasonIntact)).To(Succeed())
		Expect(shown(ctx, "describe", "-n", s.name, v.claim)).To(ContainSubstring("Last scrub"))
	}, NodeTimeout(specLimit))
})

// direct is a checksum of what the pod reads of the first 8 MiB, past its memory.
func (v *vol) direct(ctx context.Context) (string, error) {
	return v.run(ctx, fmt.Sprintf(`dd if=%s bs=64k count=128 iflag=direct status=none | md5sum`, v.path()))
}

// flip has the pod read until a part of what it has written is in the cache, and changes a bit of
// that on the SSD.
func (v *vol) flip(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		for range 8 {
			if _, err := v.direct(ctx); err != nil {
				return "", err
			}
		}
		out, err := k.Host.Run(ctx, nodeA, fmt.Sprintf(`
path=$(lvs --noheadings -o lv_dm_path -S 'lv_name=%s.data' | tr -d ' ')
blockdev --flushbufs "$path"
at=$(dd if="$path" bs=1M iflag=direct status=none | grep -obUam1 %s | head -n1 | cut -d: -f1)
[ -n "$at" ] || exit 0
printf N | dd of="$path" bs=1 seek="$at" conv=notrunc,fsync status=none
blockdev --flushbufs "$path"
echo flipped at "$at"`, v.Handle, scrubWord))
		if err == nil && !strings.Contains(out, "flipped") {
			return "nothing of what the pod has written is on the SSD", nil
		}
		return "", err
	})
}

// awaitIntact waits for the condition CacheIntact.
func (v *vol) awaitIntact(ctx context.Context, status metav1.ConditionStatus, reason string) error {
	return v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		c := meta.FindStatusCondition(cv.Status.Conditions, v1alpha1.ConditionCacheIntact)
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Sprintf("the condition is %+v", c)
		}
		return ""
	})
}
