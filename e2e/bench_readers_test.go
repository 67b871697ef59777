//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const (
	// modelMiB is what each pod loads, and loaders how many pods there are.
	modelMiB = 2048
	loaders  = 30
	// loaded bounds how long that may take.
	loaded = 45 * time.Minute
	// pieceMiB is how much of the model is written at a time.
	pieceMiB = 256
	// tableHead is that of docs/benchmarks.md.
	tableHead = "| caches | when | until the last pod is ready, s | MiB read from the storage server |\n|---|---|---|---|"
)

// What thirty pods cost that load one model, for docs/benchmarks.md: make bench-readers. They read past the
// page cache, as of a model that is larger than what their node has of memory for it.
var _ = Describe("A model that thirty pods load, measured", Label("bench", "readers", "slow", "lab"), Serial, func() {
	It("comes from the storage server, or from the nodes' caches", func(ctx SpecContext) {
		s := newSpace(ctx)
		snapshot, sum := s.model(ctx)
		nodes := workers(ctx)
		say("%d pods on %d nodes, a model of %d MiB\n%s", loaders, len(nodes), modelMiB, tableHead)
		size := fmt.Sprintf("%dMi", modelMiB+512)
		none, err := s.class(ctx, "none", cluster.ClassSpec{Mode: v1alpha1.CacheModeNone, FSType: "ext4"})
		Expect(err).NotTo(HaveOccurred())
		direct := s.readableOf(ctx, none, "read-none", size, snapshot)
		without := direct.round(ctx, "none", "each", 0, nodes)
		direct.unload(ctx, 0)

		preloaded, err := s.class(ctx, "preloaded", cluster.ClassSpec{
			Mode: v1alpha1.CacheModeWritethrough, CacheSize: "100%", FSType: "ext4", Parameters: map[string]string{"preload": "all"},
		})
		Expect(err).NotTo(HaveOccurred())
		v := s.readableOf(ctx, preloaded, "read-preloaded", size, snapshot)
		begun := time.Now()
		var held []*vol
		for _, node := range nodes {
			held = append(held, v.another(ctx, node))
		}
		for _, pod := range held {
			Expect(pod.awaitFilled(ctx)).To(Succeed())
		}
		filling := servedMiB(ctx, v.Handle)
		say("| one on each node | being filled, by a pod that reads nothing | %.0f | %d |", time.Since(begun).Seconds(), filling)
		first := v.round(ctx, "one on each node", "filled before", 1, nodes) - filling
		for _, pod := range held {
			Expect(pod.verify(ctx, modelMiB-pieceMiB, pieceMiB, sum)).To(Succeed())
			pod.endPod(ctx)
		}
		v.unload(ctx, 1)
		again := v.round(ctx, "one on each node", "again, after no node had the volume", 2, nodes)
		v.unload(ctx, 2)
		Expect(without).To(BeNumerically(">=", loaders*modelMiB))
		Expect(first+again).To(BeNumerically("<", modelMiB/4), "the caches do not answer")
	}, NodeTimeout(100*time.Minute))
})

// model writes what is to be loaded, and returns a snapshot of it and the checksum of its last piece.
func (s *space) model(ctx context.Context) (snapshot, sum string) {
	GinkgoHelper()
	snapshots := s.snapshotClass(ctx, nil)
	written, err := s.volume(ctx, volumeSpec{name: "model", mode: v1alpha1.CacheModeNone, kind: ext4, size: fmt.Sprintf("%dMi", modelMiB+256)})
	Expect(err).NotTo(HaveOccurred())
	written.patience = 10 * time.Minute
	Expect(written.start(ctx, nodeA)).To(Succeed())
	for at := 0; at < modelMiB; at += pieceMiB {
		sum, err = written.write(ctx, at, pieceMiB)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(written.stop(ctx)).To(Succeed())
	cut, err := written.snapshot(ctx, snapshots, "model")
	Expect(err).NotTo(HaveOccurred())
	return cut.Name, sum
}

// workers are the nodes that have a pool.
func workers(ctx context.Context) []string {
	GinkgoHelper()
	var pools v1alpha1.CachePoolList
	Expect(k.API.List(ctx, &pools)).To(Succeed())
	var names []string
	for i := range pools.Items {
		names = append(names, pools.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

// servedMiB is what the kernel's target has read of a volume for its initiators since it exports it.
func servedMiB(ctx context.Context, handle string) int64 {
	GinkgoHelper()
	out, err := k.Host.Run(ctx, cluster.StorageMachine, "cat /sys/kernel/config/target/core/iblock_*/*"+handle+"/statistics/scsi_lu/read_mbytes")
	Expect(err).NotTo(HaveOccurred())
	n, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	Expect(err).NotTo(HaveOccurred(), out)
	return n
}

// awaitFilled waits until the cache below a pod is filled: it has no device of a copy any more.
func (v *vol) awaitFilled(ctx context.Context) error {
	return cluster.Await(ctx, loaded, func(ctx context.Context) (string, error) {
		out, err := k.Host.Run(ctx, v.node, fmt.Sprintf("dmsetup table nf-%[1]s; dmsetup table nf-%[1]s.data", v.Handle))
		if err != nil {
			return "", err
		}
		if lines := strings.Split(strings.TrimSpace(out), "\n"); !strings.Contains(lines[0], " cache ") || !strings.Contains(lines[len(lines)-1], " linear ") {
			return "the cache is being filled: " + out, nil
		}
		return "", nil
	})
}

func (v *vol) loader(round, i int) string { return fmt.Sprintf("%s-%d-%d", v.claim, round, i) }

// round runs the pods, which are ready once they have read the model, and returns how many MiB the
// storage server has sent since it exports the volume.
func (v *vol) round(ctx context.Context, caches, when string, round int, nodes []string) int64 {
	GinkgoHelper()
	begun, before := time.Now(), int64(0)
	if round == 1 {
		before = servedMiB(ctx, v.Handle)
	}
	for i := range loaders {
		pod := k.Pod(cluster.PodSpec{Namespace: v.space.name, Name: v.loader(round, i), Node: nodes[i%len(nodes)], Claim: v.claim, Tolerant: true})
		c := &pod.Spec.Containers[0]
		c.Command[2] = fmt.Sprintf("dd if=%s bs=1M count=%d iflag=direct of=/dev/null status=none && touch /tmp/loaded\n%s", v.path(), modelMiB, c.Command[2])
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-f", "/tmp/loaded"}}}, PeriodSeconds: 2, TimeoutSeconds: 10}
		Expect(k.API.Create(ctx, pod)).To(Succeed())
	}
	for i := range loaders {
		Expect(k.AwaitPodReady(ctx, v.space.name, v.loader(round, i), loaded)).To(Succeed())
	}
	took, served := time.Since(begun), servedMiB(ctx, v.Handle)
	say("| %s | %s | %.0f | %d |", caches, when, took.Seconds(), served-before)
	return served
}

// unload ends the pods, and waits until nobody is admitted: the next round counts from nothing.
func (v *vol) unload(ctx context.Context, round int) {
	GinkgoHelper()
	var all errgroup.Group
	for i := range loaders {
		all.Go(func() error {
			return k.DeleteAndWait(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.loader(round, i)}}, loaded)
		})
	}
	Expect(all.Wait()).To(Succeed())
	Expect(k.AwaitDetached(ctx, v.Volume, late)).To(Succeed())
}
