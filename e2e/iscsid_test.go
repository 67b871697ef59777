//go:build e2e

package e2e

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

var _ = Describe("A node without open-iscsi", Label("own-iscsid", "lab", "slow"), Serial, func() {
	It("uses the daemon that the chart brings, which is replaced and reconnects below a load", func(ctx SpecContext) {
		names := map[string]bool{}
		for _, node := range k.Workers {
			out, err := k.Host.Run(ctx, node, "ls /etc/iscsi/initiatorname.iscsi 2>/dev/null; pidof iscsid | wc -w")
			Expect(err).NotTo(HaveOccurred())
			Expect(strings.TrimSpace(out)).To(Equal("1"), "iscsids of the node, and no name of the host's")
			pool := &v1alpha1.CachePool{}
			Expect(k.API.Get(ctx, client.ObjectKey{Name: node}, pool)).To(Succeed())
			Expect(pool.Status.InitiatorIQN).To(HavePrefix("iqn.2026-11.io.nearflash:node-"))
			names[pool.Status.InitiatorIQN] = true
		}
		Expect(names).To(HaveLen(len(k.Workers)), "each node has a name of its own")

		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "own", mode: v1alpha1.CacheModeWriteback, kind: block})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())

		By("replacing it under a verified load")
		load := v.beginLoad(ctx)
		Expect(replaceIscsid(ctx, nodeA)).To(Succeed())
		_, err = load()
		Expect(err).NotTo(HaveOccurred())

		By("losing the sessions while it is replaced: the new one brings them back")
		load = v.beginLoad(ctx)
		Expect(k.Lab.Cut(ctx, nodeA, cluster.StorageMachine)).To(Succeed())
		time.Sleep(10 * time.Second) // the initiator needs less to call a session lost
		Expect(replaceIscsid(ctx, nodeA)).To(Succeed())
		Expect(k.Lab.Heal(ctx)).To(Succeed())
		longest, err := load()
		Expect(err).NotTo(HaveOccurred())
		Expect(longest).To(BeNumerically(">", 5*time.Second), "the load has met the cut")
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())

		By("reading it on the other node")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
	}, NodeTimeout(specLimit))
})

// replaceIscsid deletes the daemon's pod of a node, and waits for another one.
func replaceIscsid(ctx context.Context, node string) error {
	before, err := k.Iscsid(ctx, node)
	if err != nil {
		return err
	}
	return replacePod(ctx, before, k.Iscsid)
}
