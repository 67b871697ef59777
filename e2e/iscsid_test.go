//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// The root of these nodes cannot be written, as on Talos, Bottlerocket, Flatcar and COS.
var _ = Describe("A node whose root cannot be written", Label("own-iscsid", "lab", "slow"), Serial, func() {
	It("takes new pods of the driver, and attaches volumes, moves them with their caches, and lets them go", func(ctx SpecContext) {
		for _, node := range k.Workers {
			out, err := k.Host.Run(ctx, node, "for f in /etc/x /usr/x /x; do mkdir $f 2>&1; done; mkdir -p /var/x /run/x && rmdir /var/x /run/x")
			Expect(err).NotTo(HaveOccurred())
			Expect(strings.Count(out, "Read-only file system")).To(Equal(3), out)
		}
		By("replacing the driver's pods")
		for _, node := range k.Workers {
			Expect(replaceIscsid(ctx, node)).To(Succeed())
			plugin, err := k.NodePlugin(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			Expect(replacePlugin(ctx, plugin)).To(Succeed())
		}
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		for _, node := range k.Workers {
			Expect(preflightPassed(ctx, node)).To(Succeed())
		}

		By("attaching volumes")
		s := newSpace(ctx)
		fs, err := s.volume(ctx, volumeSpec{name: "fs", mode: v1alpha1.CacheModeWriteback, size: "64Mi", cacheSize: "32Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(fs.start(ctx, nodeA)).To(Succeed())
		moves, err := s.volume(ctx, volumeSpec{name: "moves", mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		Expect(moves.start(ctx, nodeA)).To(Succeed())
		sum, err := moves.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(moves.warmUp(ctx)).To(Succeed())

		By("moving them, one with its cache, there and back")
		Expect(fs.restart(ctx, nodeB)).To(Succeed())
		for i, node := range []string{nodeB, nodeA} {
			Expect(moves.restart(ctx, node)).To(Succeed())
			Expect(moves.verify(ctx, 0, workingSet, sum)).To(Succeed())
			_, err = moves.awaitMoved(ctx, int64(2+i))
			Expect(err).NotTo(HaveOccurred())
			Expect(moves.expectWhole(ctx)).To(Succeed())
		}
	}, NodeTimeout(specLimit))
})

// The nodes of other labs have open-iscsi.
var _ = Describe("A node's own iscsiadm", Label("host-iscsiadm", "lab", "slow"), Serial, func() {
	// hostIscsiadm comes before the node's own for whoever looks for programs in the node's folders,
	// and notes what it is asked.
	const hostIscsiadm, asked = "/usr/local/sbin/iscsiadm", "/var/tmp/iscsiadm-asked"

	It("is used by the plugin, if a value says so, from then on and until it says otherwise, below a load", func(ctx SpecContext) {
		r, changed := newRelease(ctx), false
		DeferCleanup(func(ctx SpecContext) {
			if changed {
				r.helm(ctx, "rollback", r.name, r.revision, "--wait", "--timeout", rolloutLimit)
			}
			for _, node := range k.Workers {
				_, err := k.Host.Run(ctx, node, "rm -f "+hostIscsiadm+" "+asked)
				Expect(err).NotTo(HaveOccurred())
			}
		}, NodeTimeout(2*late))
		for _, node := range k.Workers {
			_, err := k.Host.Run(ctx, node, fmt.Sprintf(`set -e
printf '#!/bin/sh\necho "$@" >>%[2]s\nexec /usr/sbin/iscsiadm "$@"\n' >%[1]s
chmod 755 %[1]s
: >%[2]s`, hostIscsiadm, asked))
			Expect(err).NotTo(HaveOccurred())
		}
		// logins are those by the node's own iscsiadm.
		logins := func(node string) string {
			GinkgoHelper()
			out, err := k.Host.Run(ctx, node, "cat "+asked)
			Expect(err).NotTo(HaveOccurred())
			return out
		}

		By("attaching a volume by the image's")
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "moves", mode: v1alpha1.CacheModeWriteback, kind: block, size: "128Mi", cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		end := v.work(ctx)

		By("having the node's own used")
		changed = true
		r.helm(ctx, "upgrade", r.name, chart(), "--values", r.values, "--set", "node.iscsid.run=nsenter", "--wait", "--timeout", rolloutLimit)
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		for _, node := range k.Workers {
			Expect(preflightPassed(ctx, node)).To(Succeed())
			plugin, err := k.NodePlugin(ctx, node)
			Expect(err).NotTo(HaveOccurred())
			Expect(plugin.Spec.Containers[0].Args).To(ContainElement("--host-iscsiadm"))
			for _, mount := range plugin.Spec.Containers[0].VolumeMounts {
				Expect(mount.MountPath).NotTo(ContainSubstring("iscsi"))
			}
		}
		Expect(end(ctx)).To(Succeed(), "no I/O may fail, no byte may be wrong")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		Expect(logins(nodeA)).To(ContainSubstring("--logout"), "what the image's has logged in")
		Expect(logins(nodeB)).To(ContainSubstring("--login"))
		secret, err := k.Host.Run(ctx, nodeB, "sed -n 's/^node.session.auth.password = //p' $(find /var/lib/iscsi/nodes /etc/iscsi/nodes -type f 2>/dev/null) | head -1")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.TrimSpace(secret)).NotTo(BeEmpty())
		Expect(logins(nodeB)).NotTo(ContainSubstring(strings.TrimSpace(secret)))

		By("going back to the image's")
		end = v.work(ctx)
		r.helm(ctx, "rollback", r.name, r.revision, "--wait", "--timeout", rolloutLimit)
		changed = false
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		Expect(end(ctx)).To(Succeed(), "no I/O may fail, no byte may be wrong")
		before := logins(nodeA)
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		Expect(logins(nodeA)).To(Equal(before), "it is asked no more")
	}, NodeTimeout(2*specLimit))
})

// preflightPassed waits until the plugin of a node finds nothing that is missing.
func preflightPassed(ctx context.Context, node string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		pool := &v1alpha1.CachePool{}
		if err := k.API.Get(ctx, client.ObjectKey{Name: node}, pool); err != nil {
			return "", err
		}
		c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionPreflight)
		if c == nil || c.Status != metav1.ConditionTrue {
			return fmt.Sprintf("preflight of %s: %+v", node, c), nil
		}
		return "", nil
	})
}

// replaceIscsid deletes the daemon's pod of a node, and waits for another one.
func replaceIscsid(ctx context.Context, node string) error {
	before, err := k.Iscsid(ctx, node)
	if err != nil {
		return err
	}
	return replacePod(ctx, before, k.Iscsid)
}
