//go:build e2e

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// byStream asks for a stream, whatever the nodes have.
var byStream = map[string]string{"warmStart": "peer", "warmStartMethod": "stream"}

// streamLate is in the message of a move that a pod did not wait for.
const streamLate = "was not ready when the cache was needed"

// startWarm starts a volume on node A with a warm working set, of which it returns the checksum,
// the hit rate and the cache's own identity.
func startWarm(ctx context.Context, spec volumeSpec) (v *vol, sum string, rate float64, cache string) {
	GinkgoHelper()
	v, err := newSpace(ctx).volume(ctx, spec)
	Expect(err).NotTo(HaveOccurred())
	Expect(v.start(ctx, nodeA)).To(Succeed())
	sum, rate, cache = v.warm(ctx)
	return v, sum, rate, cache
}

// warm writes the working set of a volume that runs, and warms its cache; it returns what startWarm
// does.
func (v *vol) warm(ctx context.Context) (sum string, rate float64, cache string) {
	GinkgoHelper()
	sum, err := v.write(ctx, 0, workingSet)
	Expect(err).NotTo(HaveOccurred())
	Expect(v.warmUp(ctx)).To(Succeed())
	rate, err = v.hitRate(ctx)
	Expect(err).NotTo(HaveOccurred())
	cache, err = v.cacheUUID(ctx, v.node)
	Expect(err).NotTo(HaveOccurred())
	return sum, rate, cache
}

// otherNode is the other one of the two nodes.
func otherNode(node string) string {
	if node == nodeA {
		return nodeB
	}
	return nodeA
}

// moveByStream moves a volume to the other node by stream, and returns the move. beside is called
// as soon as the pod runs there. A pod does not wait for a stream that is late, as one is on a busy
// machine: the volume is then warmed where it is, and moved once more.
func (v *vol) moveByStream(ctx context.Context, generation *int64, beside, warm func()) *v1alpha1.CacheMigration {
	GinkgoHelper()
	for tries := 1; ; tries++ {
		Expect(v.restart(ctx, otherNode(v.node))).To(Succeed())
		*generation++
		beside()
		cm, err := v.awaitMoveEnded(ctx, *generation)
		Expect(err).NotTo(HaveOccurred())
		if cm.Status.Outcome == v1alpha1.MigrationCompleted {
			return cm
		}
		Expect(cm.Status.OutcomeMessage).To(ContainSubstring(streamLate))
		Expect(tries).To(BeNumerically("<", 8), "the stream was late each time")
		By("moving it once more: the stream was late")
		warm()
	}
}

// followByStream moves a volume to the other node and back, and wants its cache to follow it by
// stream each time.
func followByStream(ctx context.Context, mode v1alpha1.CacheMode, parameters map[string]string) {
	GinkgoHelper()
	v, sum, before, old := startWarm(ctx, volumeSpec{name: "stream", mode: mode, kind: block, size: "128Mi", cacheSize: "100%", parameters: parameters})

	By("moving it away, and writing there while the stream comes")
	written, generation := "", int64(1)
	cm := v.moveByStream(ctx, &generation, func() {
		var err error
		written, err = v.write(ctx, workingSet, 4)
		Expect(err).NotTo(HaveOccurred())
		if parameters["warmStartBandwidth"] != "" { // it is under way for long enough
			v.expectStreamShown(ctx, generation)
		}
	}, func() { sum, before, old = v.warm(ctx) })
	source := otherNode(v.node)
	Expect(cm.Spec.SourceNode).To(Equal(source))
	Expect(cm.Spec.Method).To(Equal(v1alpha1.MigrationStream))
	Expect(cm.Spec.MethodReason).NotTo(BeEmpty())
	Expect(cm.Status.Source.Portals).To(BeEmpty(), "nothing is exported over iSCSI")
	Expect(v.expectWhole(ctx)).To(Succeed())
	// What the record asks for follows when there is one map, by another table, which counts anew.
	Expect(v.awaitTable(ctx, mode)).To(Succeed())
	after, err := v.hitRate(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(after).To(BeNumerically(">=", 0.9*before), "hit rate of %d reads after the stream; it was %.3f", firstReads, before)
	Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
	Expect(v.verify(ctx, workingSet, 4, written)).To(Succeed())
	Expect(v.awaitCacheGone(ctx, source, old)).To(Succeed())
	Expect(v.expectNoLease(ctx, source)).To(Succeed())

	By("writing there, and moving it back")
	sum, err = v.write(ctx, 4, workingSet)
	Expect(err).NotTo(HaveOccurred())
	v.moveByStream(ctx, &generation, func() {
		Expect(v.verify(ctx, 4, workingSet, sum)).To(Succeed())
	}, func() { Expect(v.warmUp(ctx)).To(Succeed()) })
	Expect(v.verify(ctx, 4, workingSet, sum)).To(Succeed())
	Expect(v.expectLikeOrigin(ctx, otherNode(v.node), 4, sum)).To(Succeed())
}

// expectStreamShown wants the metrics of the node to show a stream as long as it is under way. One
// that was late is over already, which moveByStream sees.
func (v *vol) expectStreamShown(ctx context.Context, generation int64) {
	GinkgoHelper()
	cm, err := v.migration(ctx, generation)
	Expect(err).NotTo(HaveOccurred())
	if cm.Status.Outcome != "" {
		Expect(cm.Status.OutcomeMessage).To(ContainSubstring(streamLate))
		return
	}
	Expect(v.awaitHydrating(ctx, generation)).To(Succeed())
	f, err := v.scrape(ctx, readerToken(ctx, v.space))
	Expect(err).NotTo(HaveOccurred())
	Expect(f.sum("nearflash_volume_hydration_info", "from=peer")).To(BeEquivalentTo(1))
	total := f.sum("nearflash_volume_hydration_size_bytes", "")
	Expect(total).To(BeNumerically(">=", workingSet<<20/2))
	Expect(f.sum("nearflash_volume_hydration_done_bytes", "")).To(BeNumerically("<", total))
}

var _ = Describe("A cache follows its pod by stream", Label("warmmove", "stream"), func() {
	It("where it is asked for", func(ctx SpecContext) {
		followByStream(ctx, v1alpha1.CacheModeWriteback, byStream)
	}, NodeTimeout(specLimit))

	It("where the kernel has neither dm-clone nor an iSCSI target", Label("slow", "lab", "upgrade"), Serial, func(ctx SpecContext) {
		r := newRelease(ctx)
		DeferCleanup(func(ctx SpecContext) {
			r.helm(ctx, "rollback", r.name, r.revision, "--wait", "--timeout", rolloutLimit)
			Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		}, NodeTimeout(2*late))
		r.helm(ctx, "upgrade", r.name, chart(), "--values", r.values, "--set", "node.withoutTargets={clone,iscsi}", "--wait", "--timeout", rolloutLimit)
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		followByStream(ctx, v1alpha1.CacheModeWritethrough, slowly)
	}, NodeTimeout(2*specLimit))
})
