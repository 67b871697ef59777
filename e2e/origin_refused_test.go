//go:build e2e

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// partition makes a partition with a filesystem on the disk of a volume, by the node that has it:
// an entry of 512 MiB from sector 2048 on, and the signature of a table.
func (v *vol) partition(ctx context.Context) error {
	_, err := k.Host.Run(ctx, v.node, fmt.Sprintf(`set -e
disk=/dev/disk/by-id/google-%s
printf '\0\0\0\0\203\0\0\0\0\010\0\0\0\0\020\0' | dd of="$disk" bs=1 seek=446 conv=notrunc status=none
printf '\125\252' | dd of="$disk" bs=1 seek=510 conv=notrunc,fsync status=none
blockdev --rereadpt "$disk"
udevadm settle --timeout=20 --exit-if-exists="$disk-part1"
mkfs.ext4 -q "$disk-part1"`, v.PV))
	return err
}

// relabelled has the volume of a claim described to the other driver with more attributes, as an
// administrator does who makes PersistentVolume and claim by hand.
func (v *vol) relabelled(ctx context.Context, attributes map[string]string) error {
	pv, err := v.claimed(ctx)
	if err != nil {
		return err
	}
	policy := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`))
	if err := k.API.Patch(ctx, pv.DeepCopy(), policy); err != nil {
		return err
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.claim}}
	if err := k.DeleteAndWait(ctx, claim, soon); err != nil {
		return err
	}
	if err := k.DeleteAndWait(ctx, pv.DeepCopy(), soon); err != nil {
		return err
	}
	again := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv.Name, Annotations: pv.Annotations}, Spec: pv.Spec}
	again.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
	again.Spec.ClaimRef = &corev1.ObjectReference{Namespace: v.space.name, Name: v.claim}
	if again.Spec.CSI.FSType = string(ext4); again.Spec.CSI.VolumeAttributes == nil {
		again.Spec.CSI.VolumeAttributes = map[string]string{}
	}
	for key, value := range attributes {
		again.Spec.CSI.VolumeAttributes[key] = value
	}
	if err := k.API.Create(ctx, again); err != nil {
		return err
	}
	claim = cluster.Claim(cluster.ClaimSpec{Namespace: v.space.name, Name: v.claim, Class: pd.class, Size: "1Gi"})
	claim.Spec.VolumeName = pv.Name
	v.block = false
	return k.API.Create(ctx, claim)
}

var _ = Describe("A claim of which the other CSI driver mounts a part", Label("origin", "lab", "slow"), func() {
	It("is not adopted, and nothing is changed", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.originVolume(ctx, pd, "parted", nodeA, true)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.partition(ctx)).To(Succeed())
		Expect(v.stop(ctx)).To(Succeed())
		Expect(v.relabelled(ctx, map[string]string{"partition": "1", "encrypted": "true"})).To(Succeed())
		Expect(v.start(ctx, nodeA)).To(Succeed())
		sum, err := v.write(ctx, 0, 8)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.stop(ctx)).To(Succeed())
		before, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		awaitDetached(ctx, before.Name)
		claim := func() *corev1.PersistentVolumeClaim {
			c := &corev1.PersistentVolumeClaim{}
			Expect(k.API.Get(ctx, client.ObjectKey{Namespace: s.name, Name: v.claim}, c)).To(Succeed())
			return c
		}
		first := claim()

		for _, args := range [][]string{{"--dry-run"}, {"--yes"}} {
			out, errOut, status, err := plugin(ctx, append([]string{"adopt", "-n", s.name, v.claim}, args...)...)
			Expect(err).NotTo(HaveOccurred())
			Expect(status).To(Equal(1), out)
			Expect(errOut).To(And(
				ContainSubstring(`volumeAttribute partition="1": nearflash mounts whole devices; accepted are volumes without partitions`),
				ContainSubstring(`volumeAttribute encrypted="true": the other driver's mount decrypts`)), "all reasons at once")
		}
		after, err := v.claimed(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after).To(Equal(before))
		Expect(claim()).To(Equal(first))
		var journals corev1.ConfigMapList
		Expect(k.API.List(ctx, &journals, client.InNamespace(originsNamespace), client.HasLabels{"nearflash.io/adoption"})).To(Succeed())
		Expect(journals.Items).To(BeEmpty())

		By("going on without a cache")
		Expect(v.start(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 8, sum)).To(Succeed())
		Expect(v.stop(ctx)).To(Succeed())
		policy := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`))
		Expect(k.API.Patch(ctx, after, policy)).To(Succeed())
		Expect(k.DeleteAndWait(ctx, first, soon)).To(Succeed())
		expectDiskGone(ctx, before.Name)
	}, NodeTimeout(specLimit))
})
