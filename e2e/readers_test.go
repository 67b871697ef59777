//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
	"github.com/nearflash/nearflash/pkg/moves"
	"github.com/nearflash/nearflash/pkg/volume"
)

// readable makes a claim that many nodes read, of a snapshot.
func (s *space) readable(ctx context.Context, name, size string, like *vol, snapshot string) *vol {
	GinkgoHelper()
	var parent corev1.PersistentVolumeClaim
	Expect(k.API.Get(ctx, client.ObjectKey{Namespace: s.name, Name: like.claim}, &parent)).To(Succeed())
	return s.readableOf(ctx, *parent.Spec.StorageClassName, name, size, snapshot)
}

// readableOf is readable with a class.
func (s *space) readableOf(ctx context.Context, class, name, size, snapshot string) *vol {
	GinkgoHelper()
	v := &vol{space: s, claim: name}
	claim := cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: name, Class: class, Size: size, AccessMode: corev1.ReadOnlyMany})
	from := ofSnapshot(snapshot)
	claim.Spec.DataSource = &from
	Expect(k.API.Create(ctx, claim)).To(Succeed())
	Expect(s.awaitBound(ctx, v)).To(Succeed())
	return v
}

// another is a pod more of the same volume.
func (v *vol) another(ctx context.Context, node string) *vol {
	GinkgoHelper()
	more := *v
	Expect(more.start(ctx, node)).To(Succeed())
	v.starts = more.starts
	return &more
}

// endPod deletes a pod and waits for nothing but its end.
func (v *vol) endPod(ctx context.Context) {
	GinkgoHelper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.pod}}
	Expect(k.DeleteAndWait(ctx, pod, late)).To(Succeed())
}

// awaitReaders waits until the record names just these nodes as readers.
func (v *vol) awaitReaders(ctx context.Context, nodes ...string) {
	GinkgoHelper()
	Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		got := slices.Sorted(slices.Values(cv.Status.Readers))
		if cv.Status.OwnerNode != volume.Readers || !slices.Equal(got, nodes) || cv.Status.DirtyState == v1alpha1.DirtyStatePossiblyDirty {
			return fmt.Sprintf("the readers are not %q", nodes)
		}
		return ""
	})).To(Succeed())
}

// awaitReaderWarm waits until a node that reads has got what another one has cached. late is true if the
// pod did not wait for it, as on a busy machine.
func (v *vol) awaitReaderWarm(ctx context.Context, from string) (late bool) {
	GinkgoHelper()
	cm := &v1alpha1.CacheMigration{}
	Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
		if err := k.API.Get(ctx, client.ObjectKey{Name: moves.ReadName(volume.ID(v.Handle), *cv.Status.Generation, v.node)}, cm); err != nil {
			return err.Error()
		}
		late = cm.Status.Outcome == v1alpha1.MigrationFailed && strings.Contains(cm.Status.OutcomeMessage, streamLate)
		if !late && (cm.Spec.SourceNode != from || cm.Spec.Method != v1alpha1.MigrationStream || cm.Status.Outcome != v1alpha1.MigrationCompleted) {
			return fmt.Sprintf("the move is not completed: %+v, %+v", cm.Spec, cm.Status)
		}
		return ""
	})).To(Succeed())
	Expect(v.awaitFilled(ctx)).To(Succeed())
	return late
}

// readWarm has one node read a volume with all of it cached, and another one begin from that. It returns
// how many MiB the storage server sent to the second. The stages of pods that began without what they
// should have found are late: another volume is taken.
func (s *space) readWarm(ctx context.Context, class, snapshot, sum string, mib int) int64 {
	GinkgoHelper()
	for tries := 1; ; tries++ {
		v := s.readableOf(ctx, class, fmt.Sprintf("read-%d", tries), "320Mi", snapshot)
		first := v.another(ctx, nodeA)
		Expect(first.awaitFilled(ctx)).To(Succeed())
		c, err := hoststate.ReadCounters(ctx, k.Host, nodeA, v.Handle)
		Expect(err).NotTo(HaveOccurred())
		late := c.UsedBlocks < uint64(mib)<<20/(128<<10) // chunks of the default size
		before := servedMiB(ctx, v.Handle)
		second := v.another(ctx, nodeB)
		late = late || second.awaitReaderWarm(ctx, nodeA)
		Expect(second.verify(ctx, 0, mib, sum)).To(Succeed())
		served := servedMiB(ctx, v.Handle) - before
		v.endReaders(ctx, first, second, mib, sum)
		if !late {
			return served
		}
		Expect(tries).To(BeNumerically("<", 8), "a stage was late each time")
	}
}

// endReaders ends the pods of both nodes.
func (v *vol) endReaders(ctx context.Context, first, second *vol, mib int, sum string) {
	GinkgoHelper()
	Expect(first.verify(ctx, 0, mib, sum)).To(Succeed())
	v.awaitReaders(ctx, nodeA, nodeB)
	first.endPod(ctx)
	second.endPod(ctx)
	Expect(k.AwaitDetached(ctx, v.Volume, late)).To(Succeed())
}

var _ = Describe("A volume that many nodes read", Label("readers", "lab"), func() {
	It("is a snapshot's content on each of them, through a cache of its own, and nobody writes", Label("smoke"), func(ctx SpecContext) {
		s := newSpace(ctx)
		class := s.snapshotClass(ctx, nil)
		written, err := s.volume(ctx, volumeSpec{name: "model", mode: v1alpha1.CacheModeWriteback, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		Expect(written.start(ctx, nodeA)).To(Succeed())
		sum, err := written.write(ctx, 0, 32)
		Expect(err).NotTo(HaveOccurred())
		Expect(written.stop(ctx)).To(Succeed())
		snapshot, err := written.snapshot(ctx, class, "model")
		Expect(err).NotTo(HaveOccurred())

		By("reading it on two nodes at a time, and twice on one of them")
		v := s.readable(ctx, "read", "320Mi", written, snapshot.Name)
		a, b, second := v.another(ctx, nodeA), v.another(ctx, nodeB), v.another(ctx, nodeB)
		for _, pod := range []*vol{a, b, second} {
			Expect(pod.verify(ctx, 0, 32, sum)).To(Succeed())
			Expect(pod.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
			_, err := pod.run(ctx, "echo x >"+cluster.MountPath+"/x")
			Expect(err).To(MatchError(ContainSubstring("Read-only file system")))
		}
		v.awaitReaders(ctx, nodeA, nodeB)

		By("ending one node's pods: the other goes on")
		second.endPod(ctx)
		b.endPod(ctx)
		v.awaitReaders(ctx, nodeA)
		Expect(a.verify(ctx, 0, 32, sum)).To(Succeed())
		b = v.another(ctx, nodeB)
		Expect(b.verify(ctx, 0, 32, sum)).To(Succeed())
		v.awaitReaders(ctx, nodeA, nodeB)
		a.endPod(ctx)
		b.endPod(ctx)
		Expect(k.AwaitDetached(ctx, v.Volume, late)).To(Succeed())
		v.awaitReaders(ctx)
	})

	It("begins on a new node from one that has it", func(ctx SpecContext) {
		const mib = 64
		s := newSpace(ctx)
		snapshots := s.snapshotClass(ctx, nil)
		written, err := s.volume(ctx, volumeSpec{name: "model", mode: v1alpha1.CacheModeNone, kind: ext4})
		Expect(err).NotTo(HaveOccurred())
		Expect(written.start(ctx, nodeA)).To(Succeed())
		sum, err := written.write(ctx, 0, mib)
		Expect(err).NotTo(HaveOccurred())
		Expect(written.stop(ctx)).To(Succeed())
		snapshot, err := written.snapshot(ctx, snapshots, "model")
		Expect(err).NotTo(HaveOccurred())
		served := map[string]int64{}
		for start, parameters := range map[string]map[string]string{"peer": {"warmStart": "peer", "preload": "all"}, "off": {"warmStart": "off"}} {
			By("reading it on a second node, with warmStart: " + start)
			class, err := s.class(ctx, start, cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough, CacheSize: "100%", FSType: "ext4", Parameters: parameters})
			Expect(err).NotTo(HaveOccurred())
			if start == "peer" {
				served[start] = s.readWarm(ctx, class, snapshot.Name, sum, mib)
			} else {
				v := s.readableOf(ctx, class, "read-cold", "320Mi", snapshot.Name)
				first := v.another(ctx, nodeA)
				Expect(first.verify(ctx, 0, mib, sum)).To(Succeed())
				before := servedMiB(ctx, v.Handle)
				second := v.another(ctx, nodeB)
				Expect(second.verify(ctx, 0, mib, sum)).To(Succeed())
				served[start] = servedMiB(ctx, v.Handle) - before
				v.endReaders(ctx, first, second, mib, sum)
			}
			say("warmStart: %s: the second node had %d MiB of %d from the storage server", start, served[start], mib)
		}
		Expect(served["off"]).To(BeNumerically(">=", mib))
		Expect(served["peer"]).To(BeNumerically("<=", served["off"]/4))
	}, NodeTimeout(2*specLimit))

	It("is refused without a source", func(ctx SpecContext) {
		s := newSpace(ctx)
		class, err := s.class(ctx, "empty", cluster.ClassSpec{Mode: v1alpha1.CacheModeWritethrough, FSType: "ext4"})
		Expect(err).NotTo(HaveOccurred())
		Expect(k.API.Create(ctx, cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: "empty", Class: class, Size: "320Mi", AccessMode: corev1.ReadOnlyMany}))).To(Succeed())
		_, err = k.AwaitEvent(ctx, "empty", soon, func(e cluster.Event) bool {
			return e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, "dataSource")
		})
		Expect(err).NotTo(HaveOccurred())
	})
})
