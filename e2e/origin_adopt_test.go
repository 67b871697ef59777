//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// claimed is what the claim of a volume is bound to now.
func (v *vol) claimed(ctx context.Context) (*corev1.PersistentVolume, error) {
	var err error
	if v.Volume, err = k.AwaitBound(ctx, v.space.name, v.claim, soon); err != nil {
		return nil, err
	}
	pv := &corev1.PersistentVolume{}
	return pv, k.API.Get(ctx, client.ObjectKey{Name: v.PV}, pv)
}

// inTree makes the claim of a disk of Google's driver again over a PersistentVolume of the in-tree kind,
// as clusters have them that are older than the driver.
func (v *vol) inTree(ctx context.Context) *corev1.PersistentVolume {
	GinkgoHelper()
	old, err := v.claimed(ctx)
	Expect(err).NotTo(HaveOccurred())
	awaitDetached(ctx, old.Name)
	kept := old.DeepCopy()
	kept.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	Expect(k.API.Patch(ctx, kept, client.MergeFrom(old))).To(Succeed())
	claim := &corev1.PersistentVolumeClaim{}
	Expect(k.API.Get(ctx, client.ObjectKey{Namespace: v.space.name, Name: v.claim}, claim)).To(Succeed())
	Expect(k.DeleteAndWait(ctx, claim.DeepCopy(), soon)).To(Succeed())
	Expect(k.DeleteAndWait(ctx, kept, soon)).To(Succeed())

	handle := strings.Split(old.Spec.CSI.VolumeHandle, "/") // projects/P/zones/Z/disks/D
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: old.Name, Labels: map[string]string{corev1.LabelTopologyZone: handle[3]},
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "kubernetes.io/gce-pd"},
		},
		Spec: *old.Spec.DeepCopy(),
	}
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: handle[5], FSType: "ext4"}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: v.space.name, Name: v.claim}
	Expect(k.API.Create(ctx, pv)).To(Succeed())
	again := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.claim}, Spec: claim.Spec}
	again.Spec.VolumeName = pv.Name
	Expect(k.API.Create(ctx, again)).To(Succeed())
	bound, err := v.claimed(ctx)
	Expect(err).NotTo(HaveOccurred())
	return bound
}

var _ = Describe("A claim of another CSI driver with data", Label("origin", "lab", "slow"), func() {
	DescribeTable("gets a cache in front under its name, and is given back, with all its data", func(ctx SpecContext, kind kind, mode v1alpha1.CacheMode) {
		s := newSpace(ctx)
		driver := pd
		if kind == xfs {
			var err error
			driver, err = s.originClass(ctx, pd, "xfs", map[string]string{"csi.storage.k8s.io/fstype": "xfs"})
			Expect(err).NotTo(HaveOccurred())
		}
		v, err := s.originVolume(ctx, driver, "data", nodeA, kind == block)
		Expect(err).NotTo(HaveOccurred())
		before, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		first, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())

		By("refusing while the pod runs")
		_, errOut, status, err := plugin(ctx, "adopt", "-n", s.name, v.claim, "--yes")
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(1))
		Expect(errOut).To(ContainSubstring("pod " + v.pod + " (Running) uses the claim"))
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, before.Name)

		By("adopting it")
		args := []string{"adopt", "-n", s.name, v.claim, "--yes", "--cache-size", "128Mi", "--cache-mode", string(mode)}
		if mode == v1alpha1.CacheModeWriteback {
			args = append(args, "--accept-dirty-loss", "node-loss")
		}
		out, err := shown(ctx, args...)
		Expect(err).NotTo(HaveOccurred(), out)
		front, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(front.Spec.CSI.Driver).To(Equal(cluster.DriverName))
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.expectTable(ctx, mode)).To(Succeed())
		Expect(v.expectKind(ctx, kind)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, first)).To(Succeed())
		second, err := v.write(ctx, 16, 16)
		Expect(err).NotTo(HaveOccurred())
		block, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(block.Spec.CSI.VolumeHandle).To(Equal(before.Spec.CSI.VolumeHandle))
		Expect(attachedTo(ctx, block.Name)).To(ConsistOf(nodeA))

		By("moving it to the other node")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.expectTable(ctx, mode)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, first)).To(Succeed())

		By("releasing it")
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, front.Name)
		awaitDetached(ctx, block.Name)
		out, err = shown(ctx, "release", "-n", s.name, v.claim, "--yes")
		Expect(err).NotTo(HaveOccurred(), out)
		after, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Name).To(Equal(before.Name))
		Expect(after.Spec.CSI.VolumeHandle).To(Equal(before.Spec.CSI.VolumeHandle))
		Expect(after.Spec.PersistentVolumeReclaimPolicy).To(Equal(before.Spec.PersistentVolumeReclaimPolicy))

		By("reading both on the bare disk, without nearflash")
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(attachedTo(ctx, after.Name)).To(ConsistOf(nodeA))
		Expect(v.expectKind(ctx, kind)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, first)).To(Succeed())
		Expect(v.verify(ctx, 16, 16, second)).To(Succeed())

		By("deleting it, with the disk")
		expectGone(ctx, v)
	},
		Entry("of ext4", ext4, v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
		Entry("of ext4, writeback", ext4, v1alpha1.CacheModeWriteback, NodeTimeout(specLimit)),
		Entry("of xfs", xfs, v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
		Entry("of raw blocks", block, v1alpha1.CacheModeWritethrough, NodeTimeout(specLimit)),
	)

	It("is adopted from the in-tree kind that the disk had before there were CSI drivers, and is of it again", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.originVolume(ctx, pd, "old", nodeA, false)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		before := v.inTree(ctx)
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, before.Name)

		By("adopting it")
		out, err := shown(ctx, "adopt", "-n", s.name, v.claim, "--yes", "--cache-size", "128Mi")
		Expect(err).NotTo(HaveOccurred(), out)
		Expect(out).To(ContainSubstring("of the in-tree kind gcePersistentDisk"))
		front, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, front.Name)
		awaitDetached(ctx, front.Name+"-origin")

		By("releasing it, and reading it without nearflash")
		out, err = shown(ctx, "release", "-n", s.name, v.claim, "--yes")
		Expect(err).NotTo(HaveOccurred(), out)
		after, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Name).To(Equal(before.Name))
		Expect(after.Spec.PersistentVolumeSource).To(Equal(before.Spec.PersistentVolumeSource))
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		expectGone(ctx, v)
	}, NodeTimeout(specLimit))

	It("comes through a command that is killed again and again, and a claim that somebody makes again at once", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.originVolume(ctx, pd, "killed", nodeA, false)
		Expect(err).NotTo(HaveOccurred())
		before, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, before.Name)
		stop := s.makeAgain(ctx, v.claim)

		Expect(killing(ctx, "adopt", "-n", s.name, v.claim, "--yes")).To(Succeed())
		front, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(front.Spec.CSI.Driver).To(Equal(cluster.DriverName))
		Expect(v.start(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(v.stop(ctx)).To(Succeed())
		awaitDetached(ctx, front.Name)
		awaitDetached(ctx, front.Name+"-origin")

		Expect(killing(ctx, "release", "-n", s.name, v.claim, "--yes")).To(Succeed())
		stop()
		after, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after.Spec.CSI.VolumeHandle).To(Equal(before.Spec.CSI.VolumeHandle))
		Expect(after.Spec.PersistentVolumeReclaimPolicy).To(Equal(before.Spec.PersistentVolumeReclaimPolicy))
		Expect(v.start(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		expectGone(ctx, v)
	}, NodeTimeout(specLimit))
})

// expectKind fails unless the pod sees a volume of this kind.
func (v *vol) expectKind(ctx context.Context, want kind) error {
	got, err := v.run(ctx, fmt.Sprintf("if [ -b %s ]; then echo %s; else stat --file-system --format=%%T %s; fi", cluster.DevicePath, block, cluster.MountPath))
	// stat(1) names the filesystem by its number, which ext4 has of ext2.
	if err == nil && string(want) != strings.Replace(got, "ext2/ext3", string(ext4), 1) {
		err = fmt.Errorf("volume %s is %q in its pod, want %s", v.claim, got, want)
	}
	return err
}

// makeAgain makes a claim whenever it is not there, as an operator does, until it is stopped.
func (s *space) makeAgain(ctx context.Context, name string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// Refused while it is there.
			_ = k.API.Create(ctx, cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: name, Class: pd.class, Size: "1Gi"}))
			time.Sleep(10 * time.Millisecond)
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	DeferCleanup(stop)
	return stop
}

// killing runs the plugin, and kills it after a while that is longer each time, until it ends by
// itself.
func killing(ctx context.Context, args ...string) error {
	for life := 100 * time.Millisecond; ; life += 100 * time.Millisecond {
		short, cancel := context.WithTimeout(ctx, life)
		_, errOut, status, err := plugin(short, args...)
		killed := short.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case killed:
			continue
		case err == nil && status != 0:
			return fmt.Errorf("kubectl nearflash %v: %s", args, errOut)
		}
		return err
	}
}

// awaitDetached waits until a PersistentVolume is attached to no node.
func awaitDetached(ctx context.Context, pv string) {
	GinkgoHelper()
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		nodes, err := attachedTo(ctx, pv)
		if len(nodes) > 0 {
			return fmt.Sprintf("%s is attached to %v", pv, nodes), err
		}
		return "", err
	})).To(Succeed())
}
