//go:build e2e

package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// attachNothing has Kubernetes, and us, take a driver for one that attaches nothing, until the spec ends.
// Whether it does cannot be changed of a CSIDriver.
func attachNothing(ctx context.Context, o originDriver) {
	GinkgoHelper()
	class := &storagev1.StorageClass{}
	Expect(k.API.Get(ctx, client.ObjectKey{Name: o.class}, class)).To(Succeed())
	driver := class.Provisioner
	old := &storagev1.CSIDriver{}
	Expect(k.API.Get(ctx, client.ObjectKey{Name: driver}, old)).To(Succeed())
	instead := func(ctx context.Context, attach bool) {
		Expect(k.DeleteAndWait(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}}, soon)).To(Succeed())
		object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: *old.Spec.DeepCopy()}
		object.Spec.AttachRequired = ptr.To(attach)
		Expect(k.API.Create(ctx, object)).To(Succeed())
	}
	DeferCleanup(func(ctx SpecContext) { instead(ctx, true) }, NodeTimeout(late))
	instead(ctx, false)
}

var _ = Describe("A volume over a driver that attaches nothing", Label("origin-ceph", "lab", "slow"), Serial, func() {
	It("is cached, moves and is deleted without an attachment; writeback wants consent", func(ctx SpecContext) {
		s := newSpace(ctx)
		attachNothing(ctx, cephRBD)
		class, err := s.class(ctx, "refused", cluster.ClassSpec{Mode: v1alpha1.CacheModeWriteback, Parameters: originParameters(cephRBD)})
		Expect(err).NotTo(HaveOccurred())
		claim := cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: "refused-" + s.name, Class: class, Size: "1Gi"})
		Expect(k.API.Create(ctx, claim)).To(Succeed())
		awaitProvisioningFailed(ctx, claim, late, "keeps no lost node from writing")

		for name, spec := range map[string]volumeSpec{
			"through": {mode: v1alpha1.CacheModeWritethrough},
			"back":    {mode: v1alpha1.CacheModeWriteback, parameters: map[string]string{"withoutFence": "AcceptTwoWriters"}},
		} {
			By(name)
			spec.name = name
			v, err := s.cachedOrigin(ctx, cephRBD, spec, nodeA)
			Expect(err).NotTo(HaveOccurred())
			Expect(v.expectTable(ctx, spec.mode)).To(Succeed())
			pv, err := v.origin(ctx)
			Expect(err).NotTo(HaveOccurred())
			Expect(attachedTo(ctx, pv.Name)).To(BeEmpty())
			sum, err := v.write(ctx, 0, 16)
			Expect(err).NotTo(HaveOccurred())
			Expect(v.restart(ctx, nodeB)).To(Succeed())
			Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
			Expect(k.Expand(ctx, s.name, v.claim, v.pod, "2Gi", late)).To(Succeed())
			Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
			Expect(attachedTo(ctx, pv.Name)).To(BeEmpty())
			v.deleteCeph(ctx, pv.Name)
		}
	}, NodeTimeout(specLimit))
})
