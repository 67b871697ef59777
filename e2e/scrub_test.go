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

var _ = Describe("A volume whose SSD returns something else than was written to it", Label("scrub", "lab"), func() {
	It("is told of it by a scrub, and reads what the storage server has", func(ctx SpecContext) {
		s := newSpace(ctx)
		token := readerToken(ctx, s)
		v, err := s.volume(ctx, volumeSpec{name: "scrubbed", mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		want, err := v.repeatWord(ctx)
		Expect(err).NotTo(HaveOccurred())

		By("flipping a bit on the SSD, below the cache")
		Expect(v.flip(ctx)).To(Succeed())
		Expect(v.direct(ctx)).NotTo(Equal(want), "the bit that was flipped does not show: nothing is tested")

		By("scrubbing it")
		out, err := shown(ctx, "scrub", "-n", s.name, v.claim)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("corrupted chunks: 1"))
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

// repeatWord has the pod write the volume's name 8 MiB long, so that it can be found on the SSD, and returns
// the checksum of that.
func (v *vol) repeatWord(ctx context.Context) (string, error) {
	_, err := v.run(ctx, fmt.Sprintf(`set +o pipefail; yes %s 2>/dev/null | head -c 8388608 >/tmp/words; dd if=/tmp/words of=%s bs=64k oflag=direct conv=notrunc status=none`, v.Handle, v.path()))
	if err != nil {
		return "", err
	}
	return v.direct(ctx)
}

// direct is a checksum of what the pod reads of the first 8 MiB, past its memory.
func (v *vol) direct(ctx context.Context) (string, error) {
	return v.run(ctx, fmt.Sprintf(`dd if=%s bs=64k count=128 iflag=direct status=none | md5sum`, v.path()))
}

// flip has the pod read until a part of repeatWord is in the cache, and changes a bit of that on the SSD. What
// a layer with checksums has in its journal is brought in place before.
func (v *vol) flip(ctx context.Context) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		for range 8 {
			if _, err := v.direct(ctx); err != nil {
				return "", err
			}
		}
		out, err := k.Host.Run(ctx, nodeA, fmt.Sprintf(`
set -- $(lvs --noheadings -o lv_dm_path,vg_name -S 'lv_name=%[1]s.data')
if dmsetup info "$2.%[1]s.data" >/dev/null 2>&1; then dmsetup suspend "$2.%[1]s.data"; dmsetup resume "$2.%[1]s.data"; fi
blockdev --flushbufs "$1"
at=$(dd if="$1" bs=1M iflag=direct status=none | grep -obUa %[1]s | tail -n1 | cut -d: -f1)
[ -n "$at" ] || exit 0
printf N | dd of="$1" bs=1 seek="$at" conv=notrunc,fsync status=none
blockdev --flushbufs "$1"
echo flipped at "$at"`, v.Handle))
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
