//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/pkg/loginaccount/keeper"
)

// Documents about nodes, the storage server and the chart.
var _ = Describe("The documents", Label("docs", "lab", "slow"), Serial, func() {
	It("prepare SSDs", func(ctx SpecContext) {
		// A loop device is a blank disk of the node that no pool wants.
		device, err := k.Host.Run(ctx, nodeA, "truncate --size 64M /run/blank.img && losetup --find --show /run/blank.img")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) {
			_, err := k.Host.Run(ctx, nodeA, "losetup --detach "+strings.TrimSpace(device)+" && rm /run/blank.img")
			Expect(err).NotTo(HaveOccurred())
		}, NodeTimeout(soon))
		w := &walk{path: "docs/how-to/prepare-ssds.md", words: append(usual(), word{`/dev/disk/by-id/nvme-EXAMPLE`, strings.TrimSpace(device)})}
		pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "worker-7"}}
		DeferCleanup(func(ctx SpecContext) { Expect(k.DeleteAndWait(ctx, pool, soon)).To(Succeed()) }, NodeTimeout(late))
		w.steps = map[string]step{
			"lsblk":                  {on: nodeA},
			"ls -l":                  {left: "the lab's disks have no names by id"},
			"wipefs":                 {on: nodeA},
			"blkdiscard":             {on: nodeA},
			"blockdev":               {on: nodeA},
			"nearflash-node rescue":  {left: "the node has no SSDs of another one; TestKernelRescue reads them"},
			"vgchange":               {left: "as above"},
			"vgremove":               {left: "as above"},
			"kubectl patch cpool":    {left: "there is no such node; the specs labelled pool take a device out"},
			"kubectl describe cpool": {left: "as above"},
			"install -D":             {left: "the lab's nodes have open-iscsi; the specs labelled own-iscsid are of nodes without"},
			"systemctl disable":      {left: "as above"},
			"kubectl nearflash doctor": {before: func(ctx context.Context) {
				Expect(k.DeleteAndWait(ctx, pool, soon)).To(Succeed()) // of a node that there is not
			}},
		}
		w.follow(ctx)
	}, NodeTimeout(specLimit))

	It("make the certificates of a storage server", func(ctx SpecContext) {
		w := &walk{path: "docs/how-to/storage-server.md", words: usual()}
		w.steps = map[string]step{
			"vgcreate": {left: ofServer}, "lvcreate": {left: ofServer}, "make build": {left: ownRing}, "install ": {left: ofServer},
			"nearflash-target": {left: ofServer}, "systemctl": {left: ofServer},
			"kubectl create namespace":                     {instead: "kubectl create namespace nearflash --dry-run=client", why: "there is one"},
			"kubectl create secret":                        {instead: "kubectl create secret generic nearflash-target-client -n nearflash --from-file=ca.crt=ca.crt --from-file=tls.crt=client.crt --from-file=tls.key=client.key --dry-run=client", why: "the driver has its own"},
			"kubectl create secret generic nearflash-chap": {}, // it is rotated indeed
			"helm upgrade --install":                       {left: "the driver is installed; docs/how-to/uninstall.md installs it again"},
			"helm upgrade nearflash":                       {left: "the lab has one storage server; the specs labelled second-storage use two"},
			"kubectl delete secret": {after: func(ctx context.Context) { // the controller makes another one
				key := client.ObjectKey{Namespace: k.Namespace, Name: keeper.SecretName}
				Eventually(ctx, func() error { return k.API.Get(ctx, key, &corev1.Secret{}) }).WithTimeout(soon).Should(Succeed())
			}},
			"openssl x509": {after: func(ctx context.Context) {
				w.mustType(ctx, "for c in server client; do if test -e $c.crt; then openssl verify -CAfile ca.crt $c.crt; fi; done")
			}},
		}
		w.follow(ctx)
	}, NodeTimeout(specLimit))

	It("monitor the driver", func(ctx SpecContext) {
		w := &walk{path: "docs/how-to/monitoring.md", words: usual()}
		w.steps = map[string]step{
			"helm upgrade": {left: "the cluster has no definitions of the Prometheus operator; the chart's tests render these values"},
			"kubectl create clusterrolebinding": {after: func(ctx context.Context) {
				binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "prometheus-nearflash"}}
				Expect(k.DeleteAndWait(ctx, binding, soon)).To(Succeed())
			}},
		}
		w.follow(ctx)
	}, NodeTimeout(specLimit))

	It("upgrade the driver, and go back; uninstall it, and install it again", func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "data", v1alpha1.CacheModeWriteback)
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		r := newRelease(ctx)
		served := func(ctx context.Context) { Expect(k.AwaitDriver(ctx, late)).To(Succeed()) }
		words := append(v.words(), word{`\bREVISION\b`, r.revision}, word{`\bnearflash CHART\b`, r.name + " " + chart()})
		(&walk{path: "docs/how-to/upgrade.md", s: s, words: words, steps: map[string]step{
			"helm upgrade": {after: served}, "helm rollback": {after: served},
		}}).follow(ctx)
		w := &walk{path: "docs/how-to/uninstall.md", s: s, words: words}
		const forGood = "it ends every volume of the cluster for good"
		w.steps = map[string]step{
			"helm install": {after: served}, "kubectl get cachedvolumes": {left: forGood}, "kubectl delete": {left: forGood}, "rm ": {left: forGood}, "rmdir ": {left: "the kernel of the lab has no tracing"},
		}
		w.follow(ctx)
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
	}, NodeTimeout(3*specLimit))

	It("practise the worst nights", func(ctx SpecContext) {
		s := newSpace(ctx)
		DeferCleanup(func(ctx SpecContext) {
			Expect(outOfService(ctx, nodeA, false)).To(Succeed())
			Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
			Expect(k.Lab.Start(ctx, cluster.StorageMachine)).To(Succeed())
		}, NodeTimeout(late))
		recover := func(ctx context.Context) { Expect(recovered(ctx)).To(Succeed()) }
		var v *vol
		finds := []string{"unflushed writes", "has refused this cluster"} // in the first night, and in the fourth
		w := &walk{path: "docs/how-to/drill.md", s: s, words: usual()}
		// shows compares what a command prints with what the page promises of it.
		shows := func(command string, want ...string) func(context.Context) {
			return func(context.Context) {
				for _, text := range want {
					Expect(w.shown(command)).To(ContainSubstring(text), command)
				}
			}
		}
		holds := func(file, want string) step {
			command := "kubectl exec deploy/drill -- cat /data/" + file
			return step{after: func(context.Context) { Expect(w.shown(command)).To(Equal(want), command) }}
		}
		w.steps = map[string]step{
			"make ": {left: ownLab}, "go run ./hack/lab run": {left: ownLab}, "exit": {left: ownLab}, "export PATH": {left: "the plugin is on the PATH"},
			"kubectl apply":               {after: func(ctx context.Context) { v = s.adopt(ctx, "drill") }},
			"kubectl wait --for=jsonpath": {after: func(ctx context.Context) { Expect(v.awaitStranded(ctx)).To(Succeed()) }},
			"kubectl nearflash doctor": {
				before: func(ctx context.Context) {
					if len(finds) == 1 {
						Expect(awaitRefused(ctx, cluster.StorageMachine)).To(Succeed())
					}
				},
				instead: "kubectl nearflash doctor && exit 1 || true", why: "it finds errors, which is its exit status",
				after: func(context.Context) {
					Expect(w.shown("kubectl nearflash doctor")).To(ContainSubstring(finds[0]))
					finds = finds[1:]
				},
			},
			// A kubelet that loses what it had not written of a pod keeps that pod's folder for good.
			"go run ./hack/lab kill node-a": {before: func(ctx context.Context) {
				_, err := k.Host.Run(ctx, nodeA, "sync")
				Expect(err).NotTo(HaveOccurred())
			}},
			"kubectl get cvol": {after: shows("kubectl get cvol", "PossiblyDirty")},
			"kubectl nearflash abandon drill": {
				instead: "! kubectl nearflash abandon drill", why: "it is refused",
				after: shows("kubectl nearflash abandon drill", nodeA, "--accept-data-loss"),
			},
			"kubectl nearflash abandon drill --accept-data-loss": {after: func(ctx context.Context) {
				shows("kubectl nearflash abandon drill --accept-data-loss", "the writes are abandoned")(ctx)
				Expect(w.repairTorn(ctx, v)).To(Succeed())
			}},
			"kubectl nearflash describe drill":             {after: shows("kubectl nearflash describe drill", "Abandoned:", "on node "+nodeA)},
			"kubectl nearflash flush drill":                {after: shows("kubectl nearflash flush drill", "flushed: the storage server has every write")},
			"kubectl nearflash takeover":                   {after: shows("kubectl nearflash takeover", "takes the orders of this cluster, and of no other")},
			"kubectl exec deploy/drill -- cat /data/file":  holds("file", "first"),
			"kubectl exec deploy/drill -- cat /data/third": holds("third", "third"),
			"go run ./hack/lab start node-a":               {after: recover},
			"go run ./hack/lab start storage":              {after: recover},
			"go run ./hack/lab control restore drill":      {after: recover},
			"go run ./hack/lab control fresh": {
				left: "the cluster that it ends has the other driver, too, which the documents about origins need; recover_test.go does it in another lab, and follows " + recoverPath,
			},
		}
		w.follow(ctx)
	}, NodeTimeout(3*specLimit))

	It("recover from the loss of a node, and give its writes up", func(ctx SpecContext) {
		s := newSpace(ctx)
		var lost []*vol
		for _, name := range []string{"data", "other"} {
			v, err := s.volume(ctx, volumeSpec{name: name, mode: v1alpha1.CacheModeWriteback, kind: block, size: "64Mi", cacheSize: "32Mi"})
			Expect(err).NotTo(HaveOccurred())
			Expect(v.start(ctx, nodeA)).To(Succeed())
			_, err = v.write(ctx, 0, 8)
			Expect(err).NotTo(HaveOccurred())
			lost = append(lost, v)
		}
		away(ctx)
		taken := func(ctx context.Context) {
			for _, v := range lost {
				v.takeFromLostNode(ctx)
				Expect(v.awaitStranded(ctx)).To(Succeed())
			}
		}
		w := &walk{path: "docs/how-to/recover-after-node-loss.md", s: s, words: lost[0].words()}
		doctor := step{instead: "(kubectl nearflash doctor || true) | grep " + nodeA, why: "it finds errors, which is its exit status"}
		w.steps = map[string]step{
			"kubectl nearflash doctor":                                    doctor,
			"kubectl taint nodes NODE node.kubernetes.io/out-of-service=": {after: taken},
			"kubectl get cvol -w":                                         {watch: true},
		}
		w.follow(ctx)
		Expect(lost[0].start(ctx, nodeB)).To(Succeed())
		Expect(lost[0].awaitTold(ctx, nodeA, 1)).To(Succeed())

		v := lost[1]
		w = &walk{path: "docs/how-to/abandon-writes.md", s: s, words: append([]word{{`-n shop data`, "-n shop other"}, {`\bdb-0\b`, "other-2"}}, v.words()...)}
		w.steps = map[string]step{
			"kubectl nearflash doctor": doctor,
			"kubectl nearflash abandon": {after: func(ctx context.Context) {
				Expect(v.start(ctx, nodeB)).To(Succeed())
				Expect(v.awaitTold(ctx, nodeA, 1)).To(Succeed())
			}},
			"kubectl patch": {left: "the plugin has written the same"}, repairCommand: {left: "there is no filesystem; docs/how-to/drill.md"},
		}
		w.follow(ctx)
	}, NodeTimeout(2*specLimit))
})

// repairCommand is how that of docs/how-to/abandon-writes.md begins which repairs a filesystem by hand.
const repairCommand = "kubectl exec -n nearflash"

// repairTorn waits for the pod of the drill on node B, and types repairCommand if its filesystem has part of the
// newest writes only.
func (w *walk) repairTorn(ctx context.Context, v *vol) error {
	scripts, err := scriptsOf("docs/how-to/abandon-writes.md")
	if err != nil {
		return err
	}
	var command string
	for _, script := range scripts {
		for _, c := range script.Commands {
			if strings.HasPrefix(c, repairCommand) {
				command = strings.NewReplacer("NODE", nodeB, "VOLUME", v.Handle).Replace(c)
			}
		}
	}
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pods corev1.PodList
		if err := k.API.List(ctx, &pods, client.InNamespace(w.s.name), client.MatchingLabels{"app": "drill"}); err != nil {
			return "", err
		}
		for i := range pods.Items {
			if pods.Items[i].Status.Phase == corev1.PodRunning && pods.Items[i].DeletionTimestamp == nil {
				return "", nil
			}
		}
		events, err := w.command(ctx, "kubectl get events --field-selector reason=FailedMount")
		if err != nil || !strings.Contains(events, "has errors that fsck does not repair by itself") {
			return "the pod is not there: " + events, err
		}
		if out, err := w.command(ctx, command); !strings.Contains(out, "FILE SYSTEM WAS MODIFIED") {
			return fmt.Sprintf("%s: %s %v", command, out, err), nil
		}
		return "", nil
	})
}

// away powers node A off until the spec ends, and waits until Kubernetes says so.
func away(ctx context.Context) {
	GinkgoHelper()
	keepOff(ctx)
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var n corev1.Node
		if err := k.API.Get(ctx, client.ObjectKey{Name: nodeA}, &n); err != nil {
			return "", err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return "", nil
			}
		}
		return "node " + nodeA + " still counts as ready", nil
	})).To(Succeed())
}
