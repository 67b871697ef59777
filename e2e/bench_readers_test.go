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
	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const (
	// modelMiB is what each pod loads, and loaders how many pods there are.
	modelMiB = 512
	loaders  = 30
)

// What thirty pods cost that load one model, for docs/benchmarks.md: LABELS='bench && readers'. They
// read past the page cache, as of a model that is larger than a node's memory.
var _ = Describe("A model that thirty pods load, measured", Label("bench", "readers", "slow", "lab"), Serial, func() {
	It("comes from the storage server, or from the nodes' caches", func(ctx SpecContext) {
		s := newSpace(ctx)
		snapshots := s.snapshotClass(ctx, nil)
		written, err := s.volume(ctx, volumeSpec{name: "model", mode: v1alpha1.CacheModeNone, kind: ext4, size: "768Mi"})
		Expect(err).NotTo(HaveOccurred())
		written.patience = 10 * time.Minute
		Expect(written.start(ctx, nodeA)).To(Succeed())
		_, err = written.write(ctx, 0, modelMiB)
		Expect(err).NotTo(HaveOccurred())
		Expect(written.stop(ctx)).To(Succeed())
		snapshot, err := written.snapshot(ctx, snapshots, "model")
		Expect(err).NotTo(HaveOccurred())
		nodes := workers(ctx)
		say("%d pods on %d nodes, a model of %d MiB\n", loaders, len(nodes), modelMiB)
		say("| caches | round | last pod ready, s | MiB read from the storage server |\n|---|---|---|---|")
		for _, c := range []struct {
			name string
			cluster.ClassSpec
		}{
			{"none", cluster.ClassSpec{Mode: v1alpha1.CacheModeNone, FSType: "ext4"}},
			{"preloaded", cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough, CacheSize: "100%", FSType: "ext4", Parameters: map[string]string{"preload": "all"}}},
		} {
			class, err := s.class(ctx, c.name, c.ClassSpec)
			Expect(err).NotTo(HaveOccurred())
			v := s.readableOf(ctx, class, "read-"+c.name, "768Mi", snapshot.Name)
			for round := range 3 {
				took := v.load(ctx, round, nodes)
				say("| %s | %d | %.0f | %d |", c.name, round+1, took.Seconds(), servedMiB(ctx, v.Handle))
				v.unload(ctx, round)
			}
		}
	}, NodeTimeout(40*time.Minute))
})

// workers are the nodes that have a pool.
func workers(ctx context.Context) []string {
	GinkgoHelper()
	var pools v1alpha1.CachePoolList
	Expect(k.API.List(ctx, &pools)).To(Succeed())
	var names []string
	for _, p := range pools.Items {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// servedMiB is what the kernel's target has read of a volume for its initiators since it exports it.
func servedMiB(ctx context.Context, handle string) int64 {
	GinkgoHelper()
	out, err := k.Host.Run(ctx, cluster.StorageMachine, "cat /sys/kernel/config/target/core/iblock_*/*"+handle+"/statistics/scsi_lu/read_mbytes 2>/dev/null || echo 0")
	Expect(err).NotTo(HaveOccurred())
	n, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	Expect(err).NotTo(HaveOccurred(), out)
	return n
}

func (v *vol) loader(round, i int) string { return fmt.Sprintf("%s-%d-%d", v.claim, round, i) }

// load runs the pods, which are ready once they have read the model, and returns how long the last one
// took.
func (v *vol) load(ctx context.Context, round int, nodes []string) time.Duration {
	GinkgoHelper()
	begun := time.Now()
	for i := range loaders {
		pod := k.Pod(cluster.PodSpec{Namespace: v.space.name, Name: v.loader(round, i), Node: nodes[i%len(nodes)], Claim: v.claim, Tolerant: true})
		c := &pod.Spec.Containers[0]
		c.Command[2] = fmt.Sprintf("dd if=%s bs=1M count=%d iflag=direct of=/dev/null status=none && touch /tmp/loaded\n%s", v.path(), modelMiB, c.Command[2])
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-f", "/tmp/loaded"}}}, PeriodSeconds: 2, TimeoutSeconds: 10}
		Expect(k.API.Create(ctx, pod)).To(Succeed())
	}
	for i := range loaders {
		Expect(k.AwaitPodReady(ctx, v.space.name, v.loader(round, i), 10*time.Minute)).To(Succeed())
	}
	return time.Since(begun)
}

// unload ends the pods, and waits until nobody is admitted: the next round counts from nothing.
func (v *vol) unload(ctx context.Context, round int) {
	GinkgoHelper()
	for i := range loaders {
		pod := *v
		pod.pod = v.loader(round, i)
		pod.endPod(ctx)
	}
	Expect(k.AwaitDetached(ctx, v.Volume, late)).To(Succeed())
}
