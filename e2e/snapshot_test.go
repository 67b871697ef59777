//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// snapshotClass makes a VolumeSnapshotClass that goes with the space.
func (s *space) snapshotClass(ctx context.Context, parameters map[string]string) string {
	GinkgoHelper()
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{GenerateName: s.name + "-"}, Driver: cluster.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		Parameters: parameters,
	}
	forSpec(ctx, class)
	return class.Name
}

// forSpec makes an object that is deleted when the spec is over.
func forSpec(ctx context.Context, obj client.Object) {
	GinkgoHelper()
	Expect(k.API.Create(ctx, obj)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k.API.Delete(ctx, obj))).To(Succeed()) })
}

// snapshot makes a snapshot of a volume and waits until volumes can be made of it.
func (v *vol) snapshot(ctx context.Context, class, name string) (*snapshotv1.VolumeSnapshot, error) {
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: name},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: &class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &v.claim},
		},
	}
	if err := k.API.Create(ctx, snapshot); err != nil {
		return nil, fmt.Errorf("snapshot %s: %w", name, err)
	}
	return snapshot, cluster.Await(ctx, cmp.Or(v.patience, late), func(ctx context.Context) (string, error) {
		if err := k.API.Get(ctx, client.ObjectKeyFromObject(snapshot), snapshot); err != nil {
			return "", err
		}
		if st := snapshot.Status; st == nil || st.ReadyToUse == nil || !*st.ReadyToUse {
			return fmt.Sprintf("snapshot %s is not ready: %+v", name, st), nil
		}
		return "", nil
	})
}

// made is a volume that begins as something else.
func (s *space) made(ctx context.Context, name, size string, like *vol, from corev1.TypedLocalObjectReference) (*vol, error) {
	v, err := s.claimFrom(ctx, name, size, like, from)
	if err != nil {
		return nil, err
	}
	return v, s.awaitBound(ctx, v)
}

// madeOn is the same with a pod on a node, for a class that waits for one.
func (s *space) madeOn(ctx context.Context, node, name, size string, like *vol, from corev1.TypedLocalObjectReference) (*vol, error) {
	v, err := s.claimFrom(ctx, name, size, like, from)
	if err != nil {
		return nil, err
	}
	if err := v.begin(ctx, node); err != nil {
		return nil, err
	}
	if err := s.awaitBound(ctx, v); err != nil {
		return nil, err
	}
	return v, v.awaitReady(ctx)
}

// claimFrom makes the claim of a volume that begins as something else.
func (s *space) claimFrom(ctx context.Context, name, size string, like *vol, from corev1.TypedLocalObjectReference) (*vol, error) {
	var parent corev1.PersistentVolumeClaim
	if err := k.API.Get(ctx, client.ObjectKey{Namespace: s.name, Name: like.claim}, &parent); err != nil {
		return nil, err
	}
	v := &vol{space: s, claim: name, block: like.block}
	claim := cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: name, Class: *parent.Spec.StorageClassName, Size: size, Block: like.block})
	claim.Spec.DataSource = &from
	if err := k.API.Create(ctx, claim); err != nil {
		return nil, fmt.Errorf("claim %s: %w", name, err)
	}
	return v, nil
}

// snapshotBetween writes, takes a snapshot below the running pod, and writes again. It returns the
// sums of what was written before, and later.
func (v *vol) snapshotBetween(ctx context.Context, class string) (s *snapshotv1.VolumeSnapshot, sum, later string) {
	GinkgoHelper()
	sum, err := v.write(ctx, 0, 16)
	Expect(err).NotTo(HaveOccurred())
	By("taking a snapshot below the running pod")
	s, err = v.snapshot(ctx, class, "before")
	Expect(err).NotTo(HaveOccurred())
	later, err = v.write(ctx, 0, 16)
	Expect(err).NotTo(HaveOccurred())
	return s, sum, later
}

func ofSnapshot(name string) corev1.TypedLocalObjectReference {
	group := snapshotv1.GroupName
	return corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
}

var _ = Describe("Snapshots and clones", Label("snapshot", "lab"), func() {
	It("have what a writeback cache had acknowledged, and nothing of later", Label("turn-1"), func(ctx SpecContext) {
		s := newSpace(ctx)
		class := s.snapshotClass(ctx, nil)
		v, err := s.volume(ctx, volumeSpec{name: "data", mode: v1alpha1.CacheModeWriteback, kind: xfs})
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		snapshot, sum, later := v.snapshotBetween(ctx, class)
		Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			if cv.Spec.Hold != nil || cv.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
				return "it is held, or has not gone back to writeback"
			}
			return ""
		})).To(Succeed())
		// The record says so before there is a table that takes writes.
		Expect(v.awaitTable(ctx, v1alpha1.CacheModeWriteback)).To(Succeed())

		By("restoring it, larger, beside its parent")
		restored, err := s.made(ctx, "restored", "640Mi", v, ofSnapshot(snapshot.Name))
		Expect(err).NotTo(HaveOccurred())
		Expect(restored.start(ctx, nodeA)).To(Succeed())
		Expect(restored.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(restored.size(ctx)).To(BeNumerically(">", 500<<20))

		By("cloning the volume as it is now")
		clone, err := s.made(ctx, "clone", "320Mi", v, corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: v.claim})
		Expect(err).NotTo(HaveOccurred())
		Expect(clone.start(ctx, nodeA)).To(Succeed())
		Expect(clone.verify(ctx, 0, 16, later)).To(Succeed())

		By("deleting parent and snapshot, which their children outlive")
		Expect(v.deleteClaim(ctx)).To(Succeed())
		Expect(k.DeleteAndWait(ctx, snapshot, late)).To(Succeed())
		Expect(restored.restart(ctx, nodeB)).To(Succeed())
		Expect(restored.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(clone.verify(ctx, 0, 16, later)).To(Succeed())
	}, NodeTimeout(specLimit))

	It("begin warm: their first cache is filled with what their parent reads most", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		class := s.snapshotClass(ctx, nil)
		v, sum := s.hot(ctx)
		snapshot, err := v.snapshot(ctx, class, "hot")
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		Expect(v.awaitHotSet(ctx)).To(Succeed())

		restored, err := s.made(ctx, "restored", "128Mi", v, ofSnapshot(snapshot.Name))
		Expect(err).NotTo(HaveOccurred())
		Expect(restored.start(ctx, nodeB)).To(Succeed())
		restored.expectFromHotSet(ctx, 1, sum)
	}, NodeTimeout(specLimit))
})
