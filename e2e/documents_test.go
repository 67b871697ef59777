//go:build e2e

// The commands of the documents, typed by a reader who follows them.

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// Why commands are left out.
const (
	ownLab   = "the suite runs in a lab already"
	ownRing  = "it is a test ring itself, or a part of one"
	checked  = "commands of documents are checked by go test ./e2e/doccommands"
	ofServer = "the lab's storage server was set up by the same steps, with its own disks and names"
)

// followed are the documents whose commands the specs run.
var followed = []string{
	"README.md", "docs/troubleshooting.md",
	"docs/how-to/abandon-writes.md", "docs/how-to/adopt-a-claim.md", "docs/how-to/cache-any-csi-volume.md", "docs/how-to/change-a-cache.md", "docs/how-to/choose-a-mode.md", "docs/how-to/drill.md", "docs/how-to/monitoring.md",
	"docs/how-to/measure-your-own-load.md", "docs/how-to/move-a-node-out.md", "docs/how-to/prepare-ssds.md", "docs/how-to/read-the-metrics.md",
	"docs/how-to/recover-a-lost-cluster.md", "docs/how-to/recover-after-node-loss.md",
	"docs/how-to/scrub.md", "docs/how-to/size-a-cache.md", "docs/how-to/storage-server.md", "docs/how-to/storage-server-pair.md", "docs/how-to/uninstall.md", "docs/how-to/upgrade.md",
	"docs/how-to/volume-attributes-class.md", "docs/reference/kubectl.md", "docs/tutorial/first-volume.md", "docs/tutorial/warm-move.md",
}

// notFollowed are the others, with the reason.
var notFollowed = map[string]string{
	"docs/benchmarks.md":                       "it is a measurement of some minutes; " + checked,
	"docs/explanation/compatibility.md":        "make test-versions, make e2e-upstream and those after it are rings themselves, and the definitions are those of docs/how-to/upgrade.md",
	"docs/explanation/warm-move.md":            "its only command is one of docs/reference/kubectl.md; " + checked,
	"docs/how-to/host-tools.md":                "it is about files of hosts, of which the lab's have no multipathd; " + checked,
	"docs/how-to/hosts.md":                     "the specs labelled host-iscsiadm and own-iscsid use these values; " + checked,
	"docs/how-to/kind.md":                      ownRing,
	"docs/how-to/rescue-a-dead-nodes-cache.md": "TestKernelRescue and TestKernelRescueOverDriver run the program on a dead node's SSD; " + checked,
	"docs/how-to/read-by-many.md":              "its manifests are examples; specs of readers make what it describes; " + checked,
	"docs/how-to/snapshots.md":                 "its manifests are examples; specs of snapshots, freezes and groups make what it describes; " + checked,
	"docs/reference/campaigns.md":              ownRing,
}

var _ = Describe("The documents", Label("docs", "lab", "slow"), Serial, func() {
	It("have their commands run by these specs, or a reason", func() {
		var listed []string
		for path := range notFollowed {
			listed = append(listed, path)
		}
		Expect(documents()).To(ConsistOf(append(listed, followed...)))
	})

	It("teach the first volume", func(ctx SpecContext) {
		s := newSpace(ctx)
		w := &walk{path: "docs/tutorial/first-volume.md", s: s, words: usual()}
		w.steps = map[string]step{
			"make demo": {left: "hack/demo is a ring of its own"}, "go run ./hack/lab run": {left: ownLab}, "exit": {left: ownLab}, "go run ./hack/lab down": {left: ownLab},
			"kubectl apply": {after: func(ctx context.Context) { s.adopt(ctx, "first") }},
			"kubectl get cvol -o jsonpath": {after: func(ctx context.Context) {
				w.again(ctx, "kubectl apply")
				w.again(ctx, "kubectl wait")
			}},
			"kubectl exec first -- sha256sum": {after: func(context.Context) {
				Expect(w.shown("kubectl exec first -- sha256sum")).To(Equal(w.shown("kubectl exec first -- bash")))
			}},
			"kubectl get pvc first --watch": {watch: true},
		}
		w.follow(ctx)
	}, NodeTimeout(2*specLimit))

	It("teach the warm move, and the death of its source", func(ctx SpecContext) {
		s := newSpace(ctx)
		w := &walk{path: "docs/tutorial/warm-move.md", s: s, words: usual()}
		var v *vol
		w.steps = map[string]step{
			"make ": {left: ownLab}, "go run ./hack/lab run": {left: ownLab}, "exit": {left: ownLab}, "export PATH": {left: "the plugin is on the PATH"},
			"kubectl apply": {after: func(ctx context.Context) { v = s.adopt(ctx, "moving") }},
			"kubectl nearflash migrations moving": {watch: true, after: func(ctx context.Context) {
				_, err := v.awaitMoved(ctx, 2)
				Expect(err).NotTo(HaveOccurred())
			}},
			"go run ./hack/lab kill": {after: func(ctx context.Context) {
				w.mustType(ctx, "kubectl exec deploy/moving -- sh -c 'cat /data/file | wc -c'")
			}},
			"go run ./hack/lab start": {after: func(ctx context.Context) { Expect(k.AwaitDriver(ctx, late)).To(Succeed()) }},
		}
		w.follow(ctx)
	}, NodeTimeout(2*specLimit))

	It("help to look at a volume and to change its cache", func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "data", v1alpha1.CacheModeWritethrough)
		words := append(v.words(), word{`\b20Gi\b`, "96Mi"})
		watch := step{watch: true}
		cached := func(ctx context.Context) {
			_, err := shown(ctx, "mode", "-n", s.name, v.claim, "writethrough")
			Expect(err).NotTo(HaveOccurred())
		}
		for _, w := range []walk{
			{path: "README.md", steps: map[string]step{
				"make ": {left: ownLab}, "helm install": {left: "the driver is installed; docs/how-to/uninstall.md installs it again"},
				"kubectl nearflash top -n shop -w": watch,
				"kubectl nearflash bench":          {left: "it measures for minutes; bench_command_test.go"},
			}},
			{path: "docs/troubleshooting.md", steps: map[string]step{
				"kubectl nearflash abandon": {left: "nothing is to be abandoned; docs/how-to/abandon-writes.md"},
				"cat /sys/fs/cgroup":        {on: nodeA}, "dmsetup ls": {on: nodeA},
				"kubectl nearflash discard": {left: "nothing is kept; docs/how-to/recover-a-lost-cluster.md"},
				"kubectl edit cvol":         {left: "an editor waits for somebody"},
			}},
			{path: "docs/how-to/change-a-cache.md", steps: map[string]step{
				"kubectl nearflash resize -n shop data 20Gi": {before: cached},
				"kubectl nearflash drop":                     {instead: "kubectl nearflash drop -n shop data --yes", why: "nobody is there to answer", after: cached},
				"kubectl nearflash invalidate":               {left: "the pod goes on; TestWithAPIServer of pkg/kubectl"},
			}},
			{path: "docs/how-to/choose-a-mode.md", steps: map[string]step{"kubectl nearflash top": watch}},
			{path: "docs/how-to/size-a-cache.md", steps: map[string]step{
				"kubectl nearflash preload -n shop data --path models": {before: func(ctx context.Context) {
					cached(ctx)
					_, err := v.run(ctx, "mkdir -p "+cluster.MountPath+"/models/large && dd if=/dev/urandom of="+cluster.MountPath+"/models/large/0 bs=1M count=4 oflag=direct conv=fsync status=none")
					Expect(err).NotTo(HaveOccurred())
				}},
				"kubectl nearflash invalidate": {left: "the pod goes on; TestWithAPIServer of pkg/kubectl"},
			}},
			{path: "docs/how-to/read-the-metrics.md"},
			{path: "docs/how-to/scrub.md"},
		} {
			w.s, w.words = s, words
			w.follow(ctx)
		}
	}, NodeTimeout(2*specLimit))

	It("measure with the reader's own load", func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "data", v1alpha1.CacheModeWritethrough)
		class, err := s.class(ctx, "bench", cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough, CacheSize: "100%"})
		Expect(err).NotTo(HaveOccurred())
		const short, hours = " --runtime 2s --warm-limit 30s", "the reader's measures for minutes, with an image of the reader's"
		bench := "kubectl nearflash bench -n shop --image " + benchImage
		w := &walk{path: "docs/how-to/measure-your-own-load.md", s: s, words: v.words()}
		stop := s.watchVolumes(ctx)
		w.steps = map[string]step{
			"kubectl nearflash bench -n shop --image registry.example.com/fio:3 --mode none,writethrough,writeback": {
				instead: bench + " --class " + class + " --mode none,writethrough --profile randread,oltp --size 64Mi --html report.html" + short, why: hours,
				after: func(context.Context) {
					Expect(filepath.Join(w.dir, "report.html")).To(BeAnExistingFile())
					Expect(w.shown("kubectl nearflash bench -n shop --image registry.example.com/fio:3 --mode none,writethrough,writeback")).To(ContainSubstring("SSD alone"))
				},
			},
			"kubectl nearflash bench -n shop --image registry.example.com/fio:3 --job-file": {
				before:  func(ctx context.Context) { w.mustType(ctx, `printf '[x]\nrw=randread\nbs=16k\n' >orders.fio`) },
				instead: bench + " --class " + class + " --mode writethrough --job-file orders.fio --size 64Mi --cache-size 100%" + short, why: hours,
			},
			"kubectl nearflash bench -n shop --image registry.example.com/fio:3 --mode writethrough --move": {left: "two moves take minutes; bench_command_test.go"},
			"kubectl nearflash bench -n shop --image postgres:18":                                           {left: "it measures for minutes; bench_database_test.go"},
			"kubectl nearflash bench -n shop --image registry.example.com/fio:3 --claim data": {
				before: func(ctx context.Context) {
					_, err := v.run(ctx, "mkdir -p "+cluster.MountPath+"/base && dd if=/dev/urandom of="+cluster.MountPath+"/base/large-file bs=1M count=8 conv=fsync status=none")
					Expect(err).NotTo(HaveOccurred())
				},
				instead: bench + " --claim data --claim-file base/large-file --yes" + short, why: hours + "; nobody is there to answer",
			},
		}
		w.follow(ctx)
		stop()
		s.expectNoBench(ctx)
	}, NodeTimeout(2*specLimit))

	It("describe the kubectl plugin", func(ctx SpecContext) {
		s := newSpace(ctx)
		v := s.inUse(ctx, "data", v1alpha1.CacheModeWritethrough)
		w := &walk{path: "docs/reference/kubectl.md", s: s, words: append(v.words(), word{`\b20Gi\b`, "96Mi"}, word{`~/\.local\b`, "."})}
		w.steps = map[string]step{
			"kubectl nearflash abandon":    {left: "nothing is to be abandoned; docs/how-to/abandon-writes.md"},
			"kubectl nearflash bench":      {left: "it measures for minutes; bench_command_test.go"},
			"kubectl nearflash adopt":      {left: "no claim of another driver is there; origin_adopt_test.go"},
			"kubectl nearflash release":    {left: "no claim is adopted; origin_adopt_test.go"},
			"kubectl nearflash invalidate": {left: "the pod goes on; TestWithAPIServer of pkg/kubectl"},
			"cat >~/.local": {before: func(ctx context.Context) {
				w.mustType(ctx, "mkdir -p bin share/bash-completion/completions")
			}},
			"kubectl nearflash drop": {after: func(ctx context.Context) {
				w.mustType(ctx, "kubectl nearflash mode -n shop data writethrough")
			}},
			"kubectl nearflash preload -n shop data --path": {before: func(ctx context.Context) {
				_, err := v.run(ctx, "mkdir -p "+cluster.MountPath+"/models/large && dd if=/dev/urandom of="+cluster.MountPath+"/models/large/0 bs=1M count=4 oflag=direct conv=fsync status=none")
				Expect(err).NotTo(HaveOccurred())
			}},
		}
		w.follow(ctx)
	}, NodeTimeout(2*specLimit))

	It("change the cache by a VolumeAttributesClass", func(ctx SpecContext) {
		const path = "docs/how-to/volume-attributes-class.md"
		// It cannot go before its last claim, which the space takes away.
		class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "cache-fast"}}
		DeferCleanup(func(ctx SpecContext) { Expect(k.DeleteAndWait(ctx, class, late)).To(Succeed()) }, NodeTimeout(2*late))
		s := newSpace(ctx)
		v := s.inUse(ctx, "orders", v1alpha1.CacheModeWritethrough)
		w := &walk{path: path, s: s, words: v.words()}
		w.steps = map[string]step{
			"kubectl patch pvc orders": {
				before: func(ctx context.Context) {
					text, err := os.ReadFile(filepath.Join(checkout(), path))
					Expect(err).NotTo(HaveOccurred())
					_, manifest, _ := strings.Cut(string(text), "or by hand:\n")
					manifest, _, _ = strings.Cut(manifest, "\n\n   Kubernetes")
					w.mustType(ctx, "kubectl apply -f - <<'END'\n"+strings.ReplaceAll(manifest, "\n       ", "\n")+"\nEND")
				},
				after: func(ctx context.Context) { Expect(v.awaitAttributes(ctx, class.Name)).To(Succeed()) },
			},
			"kubectl get pvc orders": {after: func(context.Context) {
				Expect(w.shown("kubectl get pvc orders")).To(Equal(class.Name))
			}},
		}
		w.follow(ctx)
	}, NodeTimeout(2*specLimit))

	It("move a node out", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.volume(ctx, volumeSpec{name: "data", mode: v1alpha1.CacheModeWriteback, kind: ext4, cacheSize: "64Mi"})
		Expect(err).NotTo(HaveOccurred())
		w := &walk{path: "docs/how-to/move-a-node-out.md", s: s, words: v.words()}
		DeferCleanup(func(ctx SpecContext) {
			Expect(exec.CommandContext(ctx, "kubectl", "uncordon", nodeA, nodeB).Run()).To(Succeed())
		}, NodeTimeout(soon))
		w.steps = map[string]step{
			// A pod of a Deployment, which a drain may end; on node A.
			"kubectl nearflash doctor": {before: func(ctx context.Context) {
				w.mustType(ctx, "kubectl cordon "+nodeB)
				w.deploy(ctx, v.claim)
				w.mustType(ctx, "kubectl uncordon "+nodeB)
			}},
			"kubectl drain":                      {after: func(ctx context.Context) { w.mustType(ctx, "kubectl rollout status deployment/work --timeout=4m") }},
			"kubectl nearflash migrations -A -w": {watch: true},
		}
		w.follow(ctx)
		Expect(v.awaitOwner(ctx, nodeB, 2)).To(Succeed())
		w.mustType(ctx, "kubectl delete deployment work")
	}, NodeTimeout(2*specLimit))
})

// workload applies a controller of one pod with a claim that exists.
const workload = `kubectl apply -f - <<'END'
apiVersion: apps/v1
kind: KIND
metadata: {name: NAME}
spec:
  OF-KIND
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: NAME
          image: nearflash.local/workload:1
          command: [sh, -c, "COMMAND"]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: CLAIM-NAME}}]
END
kubectl rollout status KIND/NAME --timeout=4m`

// run has a controller run a pod with the claim; ofKind is what its kind's specification needs.
func (w *walk) run(ctx context.Context, kind, name, ofKind, claim, command string) {
	GinkgoHelper()
	w.mustType(ctx, strings.NewReplacer("OF-KIND", ofKind, "KIND", kind, "CLAIM-NAME", claim, "NAME", name, "COMMAND", command).Replace(workload))
}

// deploy runs a pod with the claim that may be drained.
func (w *walk) deploy(ctx context.Context, claim string) {
	GinkgoHelper()
	w.run(ctx, "Deployment", "work", "strategy: {type: Recreate}", claim, "head -c 16M /dev/urandom >/data/blob && sync && sleep infinity")
}
