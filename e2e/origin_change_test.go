//go:build e2e

package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
	"github.com/nearflash/nearflash/e2e/hoststate"
)

// managersVariable names kube-controller-managers of other versions, as PATH names folders: that one of
// them leaves our attachments alone is its behaviour, and no promise.
const managersVariable = "NEARFLASH_CONTROLLER_MANAGERS"

// awaitWritesThrough writes until the volume's table has writes go through to the origin.
func (v *vol) awaitWritesThrough(ctx context.Context, mib int) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		if _, err := v.write(ctx, 0, mib); err != nil {
			return "", err
		}
		if err := v.expectTable(ctx, v1alpha1.CacheModeWritethrough); err != nil {
			return "the limit does not hold writes: " + err.Error(), nil
		}
		return "", nil
	})
}

// unflushed is what a volume's cache alone has, in bytes.
func (v *vol) unflushed(ctx context.Context) (int64, error) {
	counters, err := hoststate.ReadCounters(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	table, err := hoststate.Table(ctx, k.Host, v.node, v.Handle)
	if err != nil {
		return 0, err
	}
	var begin, sectors, chunk int64
	var metadata, data, origin string
	if _, err := fmt.Sscanf(table, "%d %d cache %s %s %s %d", &begin, &sectors, &metadata, &data, &origin, &chunk); err != nil {
		return 0, fmt.Errorf("table %q: %w", table, err)
	}
	return int64(counters.Dirty) * chunk * 512, nil
}

// strayAttachment attaches a PersistentVolume as kube-controller-manager would, with nobody who wants it,
// and behind its back. The name is that of Kubernetes (pkg/volume/csi, getAttachmentName).
func strayAttachment(ctx context.Context, v *vol, node string) *storagev1.VolumeAttachment {
	GinkgoHelper()
	pv, err := v.claimed(ctx)
	Expect(err).NotTo(HaveOccurred())
	sum := sha256.Sum256([]byte(pv.Spec.CSI.VolumeHandle + pv.Spec.CSI.Driver + node))
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sum)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: pv.Spec.CSI.Driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(pv.Name)},
		},
	}
	Expect(k.API.Create(ctx, va)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(k.API.Delete(ctx, va))).To(Succeed())
	}, NodeTimeout(soon))
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		err := k.API.Get(ctx, client.ObjectKeyFromObject(va), va)
		if err == nil && !va.Status.Attached {
			return fmt.Sprintf("not attached: %+v", va.Status), nil
		}
		return "", err
	})).To(Succeed())
	return va
}

var _ = Describe("A volume over a disk of another CSI driver, below its pod", Label("origin", "lab", "slow"), Serial, func() {
	It("gets another mode and a limit by its VolumeAttributesClass, and keeps the limit", func(ctx SpecContext) {
		s := newSpace(ctx)
		const limit = "16Mi"
		through := s.attributes(ctx, "through", map[string]string{"cacheMode": "writethrough"})
		limited := s.attributes(ctx, "limited", map[string]string{"cacheMode": "writeback", "acceptDirtyLoss": "node-loss", "maxDirtyBytes": limit})
		v, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "changed", mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "128Mi"}, nodeA)
		Expect(err).NotTo(HaveOccurred())

		// Until the node has said that it has the volume, a class is current at once.
		Expect(v.awaitApplied(ctx)).To(Succeed())
		By("changing it to writeback, with a limit")
		v.changeTo(ctx, limited, v1alpha1.CacheModeWriteback)
		Expect(v.makeDirty(ctx)).To(Succeed())

		By("writing more than the limit, again and again")
		const mib = 64
		Expect(v.awaitWritesThrough(ctx, mib)).To(Succeed())
		most := resource.MustParse(limit)
		for range 5 { // nothing becomes dirty any more
			Expect(v.unflushed(ctx)).To(BeNumerically("<=", most.Value()))
			_, err := v.write(ctx, 0, mib)
			Expect(err).NotTo(HaveOccurred())
		}
		sum, err := v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())

		By("changing it back, and reading what the other driver's disk has on the other node")
		v.changeTo(ctx, through, v1alpha1.CacheModeWritethrough)
		Expect(v.awaitRecord(ctx, func(cv *v1alpha1.CachedVolume) string {
			if cv.Status.DirtyState != v1alpha1.DirtyStateClean {
				return "not clean"
			}
			return ""
		})).To(Succeed())
		Expect(v.expectLikeOrigin(ctx, nodeB, 0, sum)).To(Succeed())
	}, NodeTimeout(specLimit))

	It("keeps its disk when kube-controller-manager detaches what no pod wants", Label("versions"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "kept", mode: v1alpha1.CacheModeWriteback, kind: block, cacheSize: "128Mi"}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.makeDirty(ctx)).To(Succeed())
		disk, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		before, err := k.Attachments(ctx, disk.Name)
		Expect(err).NotTo(HaveOccurred())
		Expect(before).To(HaveLen(1))

		By("attaching another disk that no pod wants, so that its end shows when everything was judged")
		other, err := s.originVolume(ctx, pd, "stray", nodeB, true)
		Expect(err).NotTo(HaveOccurred())
		Expect(other.stop(ctx)).To(Succeed())
		awaitDetached(ctx, other.PV)
		stray := strayAttachment(ctx, other, nodeB)

		By("starting kube-controller-manager anew")
		const program = "kube-controller-manager"
		Expect(k.Lab.KillControl(ctx, program)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.StartControl(ctx)).To(Succeed()) }, NodeTimeout(late))
		Expect(k.Lab.StartControl(ctx)).To(Succeed())
		expectOnlyDetached := func() {
			Expect(cluster.AwaitEvery(ctx, time.Second, late, func(ctx context.Context) (string, error) {
				left, err := k.Attachments(ctx, other.PV)
				if err == nil && len(left) > 0 {
					return fmt.Sprintf("%s is still there", stray.Name), nil
				}
				return "", err
			})).To(Succeed())
			after, err := k.Attachments(ctx, disk.Name)
			Expect(err).NotTo(HaveOccurred())
			Expect(after).To(HaveLen(1))
			Expect(after[0].UID).To(Equal(before[0].UID))
			Expect(after[0].DeletionTimestamp).To(BeNil())
		}
		expectOnlyDetached()
		for _, path := range filepath.SplitList(os.Getenv(managersVariable)) {
			By("putting another version in its place: " + path)
			DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.ReplaceControl(ctx, program)).To(Succeed()) }, NodeTimeout(late))
			stray = strayAttachment(ctx, other, nodeB)
			Expect(k.Lab.ReplaceControl(ctx, program, path)).To(Succeed())
			expectOnlyDetached()
		}

		By("going on, and moving")
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(attachedTo(ctx, disk.Name)).To(ConsistOf(nodeB))
		expectGone(ctx, other)
	}, NodeTimeout(specLimit))
})
