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
