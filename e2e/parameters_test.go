//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// awaitProvisioningFailed waits until an event of a claim says all of these words.
func awaitProvisioningFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, timeout time.Duration, words ...string) {
	GinkgoHelper()
	_, err := k.AwaitEvent(ctx, claim.Name, timeout, func(e cluster.Event) bool {
		return e.Reason == "ProvisioningFailed" && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Message, w) })
	})
	Expect(err).NotTo(HaveOccurred(), "an event with the words %q", words)
}

// A class that cannot be meant must say so on the claim: the parameter, its
// value, and what is accepted.
var _ = DescribeTable("A wrong class fails its claim", Label("parameters"),
	func(ctx SpecContext, mode v1alpha1.CacheMode, parameters map[string]string, words ...string) {
		s := newSpace(ctx)
		class, err := s.class(ctx, "wrong", cluster.ClassSpec{Mode: mode, Parameters: parameters})
		Expect(err).NotTo(HaveOccurred())
		claim := cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: "wrong-" + s.name, Class: class, Size: "64Mi"})
		Expect(k.API.Create(ctx, claim)).To(Succeed())
		awaitProvisioningFailed(ctx, claim, soon, words...)
	},
	Entry("unknown parameter", v1alpha1.CacheModeWritethrough, map[string]string{"cacheMod": "none"},
		"cacheMod", `"none"`, "accepted", "cacheMode", NodeTimeout(soon)),
	Entry("unknown mode", Label("slow"), v1alpha1.CacheMode("writearound"), nil,
		"cacheMode", `"writearound"`, "accepted are none, writethrough, writeback, writeback-unsafe", NodeTimeout(soon)),
	Entry("a cache size without a cache", Label("slow"), v1alpha1.CacheModeNone, map[string]string{"cacheSize": "1Gi"},
		"cacheSize", `"1Gi"`, "contradicts cacheMode none", NodeTimeout(soon)),
	Entry("a cache size of nothing", Label("slow"), v1alpha1.CacheModeWritethrough, map[string]string{"cacheSize": "0%"},
		"cacheSize", `"0%"`, "accepted", NodeTimeout(soon)),
	Entry("writeback without consent", v1alpha1.CacheModeWriteback, map[string]string{"acceptDirtyLoss": ""},
		"acceptDirtyLoss", "cacheMode writeback", "accepted with it is node-loss", NodeTimeout(soon)),
	Entry("consent to a loss that cannot be", Label("slow"), v1alpha1.CacheModeWritethrough, map[string]string{"acceptDirtyLoss": "node-loss"},
		"acceptDirtyLoss", `"node-loss"`, "accepted with it is none", NodeTimeout(soon)),
	Entry("a chunk size that the kernel refuses", Label("slow"), v1alpha1.CacheModeWritethrough, map[string]string{"chunkSize": "33000"},
		"chunkSize", `"33000"`, "multiple of 32Ki", NodeTimeout(soon)),
	Entry("a chunk larger than the cache", Label("slow"), v1alpha1.CacheModeWritethrough, map[string]string{"chunkSize": "64Mi"},
		"chunkSize", "67108864", "accepted are auto", NodeTimeout(soon)),
	Entry("unknown filesystem", Label("slow"), v1alpha1.CacheModeWritethrough, map[string]string{"fsType": "btrfs"},
		"fsType", `"btrfs"`, "accepted are ext4, xfs", NodeTimeout(soon)),
	Entry("two mistakes at once", v1alpha1.CacheModeNone, map[string]string{"cacheSize": "1Gi", "provisioning": "sparse"},
		"cacheSize", `"1Gi"`, "provisioning", `"sparse"`, "accepted are thin, thick", NodeTimeout(soon)),
)
