//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// originWords are what a reader whose other driver is that of [pd] puts in the place of the
// examples, in the text's YAML too.
func originWords() []word {
	return []word{
		{`\bstandard-block\b`, pd.class}, {`\bebs\.csi\.aws\.com\b`, pdDriver},
		{`\b20Gi\b`, "1Gi"}, {`/dev/disk/by-id/nvme-Amazon\S+`, "/dev/ubdb"},
		{`registry\.example\.com/(nearflash-[a-z]+):1\b`, "nearflash.local/$1:dev"}, {`registry\.example\.com/(csi-[a-z]+:)`, "nearflash.local/$1"},
		{`(\n +)image: registry\.example\.com/orders:1\b`, `${1}image: nearflash.local/workload:1${1}command: [sh, -c, "sleep infinity"]`},
	}
}

// chartValues writes the values of a document, with the reader's own words, as values.yaml.
func (w *walk) chartValues(after string) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(checkout(), w.path))
	Expect(err).NotTo(HaveOccurred())
	_, values, found := strings.Cut(string(text), after)
	Expect(found).To(BeTrue(), "%s has no %q", w.path, after)
	values = values[strings.Index(values, "\n    ")+1:]
	var lines []string
	for line := range strings.Lines(values) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "    ") {
			break
		}
		lines = append(lines, strings.TrimPrefix(line, "    "))
	}
	Expect(os.WriteFile(filepath.Join(w.dir, "values.yaml"), []byte(w.worded(strings.Join(lines, ""))), 0o600)).To(Succeed())
}

// Documents about volumes of another driver.
var _ = Describe("The documents", Label("docs", "origin", "lab", "slow"), Serial, func() {
	It("put a cache over another CSI driver, from the installation to a warm move", func(ctx SpecContext) {
		s := newSpace(ctx)
		r := newRelease(ctx)
		DeferCleanup(func(ctx SpecContext) {
			Expect(exec.CommandContext(ctx, "kubectl", "uncordon", nodeA, nodeB).Run()).To(Succeed())
			r.helm(ctx, "rollback", r.name, r.revision, "--wait", "--timeout", rolloutLimit)
			Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		}, NodeTimeout(2*late))
		w := &walk{path: "docs/how-to/cache-any-csi-volume.md", s: s, words: append(usual(), originWords()...)}
		var v *vol
		w.steps = map[string]step{
			"helm install": {
				// The lab's own values have its storage server, and annotations of its pods.
				instead: "helm upgrade " + r.name + " CHART -n nearflash --values " + r.values + " --values values.yaml --wait --timeout " + rolloutLimit,
				why:     "the driver is installed",
				before:  func(context.Context) { w.chartValues("Put this into `values.yaml`") },
				after: func(ctx context.Context) {
					Expect(k.AwaitDriver(ctx, late)).To(Succeed())
					awaitTakes(ctx, nodeB, "csi.nearflash.io", machineDisks)
				},
			},
			"kubectl nearflash mode": {left: "this driver's detach fences, and there is no volume yet"},
			"kubectl apply": {
				before: func(ctx context.Context) { w.mustType(ctx, "kubectl cordon "+nodeB) },
				after:  func(ctx context.Context) { v = s.adopt(ctx, "orders") },
			},
			"kubectl wait": {after: func(ctx context.Context) {
				w.mustType(ctx, "kubectl uncordon "+nodeB)
				v.node = nodeA
				Expect(v.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
				w.mustType(ctx, "kubectl exec deploy/orders -- sh -c 'head -c 16M /dev/urandom >/data/blob && sync && sha256sum /data/blob'")
			}},
			"kubectl get pvc -n nearflash-origins": {after: func(context.Context) {
				Expect(w.shown("kubectl get pvc -n nearflash-origins")).To(ContainSubstring(v.Handle))
			}},
			"kubectl get volumeattachments -l": {after: func(context.Context) {
				Expect(w.shown("kubectl get volumeattachments -l")).To(And(ContainSubstring(pdDriver), ContainSubstring("true")))
			}},
			"kubectl nearflash migrations orders -w": {watch: true, after: func(ctx context.Context) {
				v.node = nodeB
				_, err := v.awaitMoved(ctx, 2)
				Expect(err).NotTo(HaveOccurred())
			}},
			"kubectl delete volumeattachments": {
				instead: "kubectl delete volumeattachments -l nearflash.io/volume --dry-run=server --as=system:serviceaccount:nearflash:nearflash-controller",
				why:     "the cache goes on",
			},
		}
		w.follow(ctx)
		w.mustType(ctx, "kubectl exec deploy/orders -- sha256sum /data/blob")
		w.mustType(ctx, "kubectl delete deployment orders")
	}, NodeTimeout(3*specLimit))

	It("adopt a claim, and give it back", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.originVolume(ctx, pd, "data", nodeA, false)
		Expect(err).NotTo(HaveOccurred())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		before, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		detached := func(ctx context.Context) {
			now, err := v.claimed(ctx)
			Expect(err).NotTo(HaveOccurred())
			awaitDetached(ctx, now.Name)
			awaitDetached(ctx, now.Name+"-origin")
		}
		w := &walk{path: "docs/how-to/adopt-a-claim.md", s: s, words: append([]word{{`\bshop\b`, s.name}, {`\b20Gi\b`, "128Mi"}}, usual()...)}
		w.steps = map[string]step{
			"kubectl nearflash adopt -n shop data --dry-run": {before: func(ctx context.Context) {
				awaitDetached(ctx, before.Name)
				w.run(ctx, "StatefulSet", "db", "serviceName: db", v.claim, "sleep infinity")
				w.mustType(ctx, "! kubectl nearflash adopt -n shop data --dry-run")
				w.mustType(ctx, "kubectl scale statefulset/db --replicas=0 && kubectl wait --for=delete pod/db-0 --timeout=2m")
				awaitDetached(ctx, before.Name)
			}},
			"kubectl nearflash adopt -n shop data --cache-size": {
				instead: "kubectl nearflash adopt -n shop data --cache-size 20Gi --save data.yaml --yes", why: "nobody is there to answer",
				after: func(ctx context.Context) { w.mustType(ctx, "grep -q 'kind: PersistentVolume$' data.yaml") },
			},
			"kubectl scale -n shop statefulset/db --replicas=1": {after: func(ctx context.Context) {
				w.mustType(ctx, "kubectl rollout status statefulset/db --timeout=4m")
				front, err := v.claimed(ctx)
				Expect(err).NotTo(HaveOccurred())
				Expect(front.Spec.CSI.Driver).To(Equal("csi.nearflash.io"))
			}},
			"kubectl nearflash release": {
				instead: "kubectl nearflash release -n shop data --yes", why: "nobody is there to answer",
				before: func(ctx context.Context) {
					w.mustType(ctx, "kubectl scale statefulset/db --replicas=0 && kubectl wait --for=delete pod/db-0 --timeout=2m")
					detached(ctx)
				},
			},
			"kubectl delete pvc": {left: "nobody has made the claim again"},
		}
		w.follow(ctx)
		after, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Spec.CSI.VolumeHandle).To(Equal(before.Spec.CSI.VolumeHandle))
		w.mustType(ctx, "kubectl delete statefulset db")
		Expect(v.start(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		expectGone(ctx, v)
	}, NodeTimeout(2*specLimit))
})
