//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

// originsNamespace is where the chart has the claims of origins by default.
const originsNamespace = "nearflash-origins"

// originParameters are those of a class over a driver.
func originParameters(o originDriver) map[string]string {
	parameters := map[string]string{"backend": "csi", "originStorageClass": o.class}
	for key := range k.SecretParameters {
		parameters[key] = "" // they are the storage server's
	}
	maps.Copy(parameters, o.parameters)
	return parameters
}

// cachedOrigin makes a volume over a disk of an origin driver, and a pod with it on a node: both
// classes wait for that.
func (s *space) cachedOrigin(ctx context.Context, o originDriver, spec volumeSpec, node string) (*vol, error) {
	parameters := originParameters(o)
	maps.Copy(parameters, spec.parameters)
	class, err := s.class(ctx, spec.name, cluster.ClassSpec{Mode: spec.mode, CacheSize: spec.cacheSize, Delayed: true, Parameters: parameters})
	if err != nil {
		return nil, err
	}
	v := &vol{space: s, claim: spec.name, block: spec.kind == block}
	claim := cluster.ClaimSpec{Namespace: s.name, Name: v.claim, Class: class, Size: "1Gi", Block: v.block}
	if err := k.API.Create(ctx, cluster.Claim(claim)); err != nil {
		return nil, fmt.Errorf("claim %s: %w", v.claim, err)
	}
	if err := v.begin(ctx, node); err != nil {
		return nil, err
	}
	if err := s.awaitBound(ctx, v); err != nil {
		return nil, err
	}
	return v, v.awaitReady(ctx)
}

// origin is the PersistentVolume below a volume.
func (v *vol) origin(ctx context.Context) (*corev1.PersistentVolume, error) {
	var claim corev1.PersistentVolumeClaim
	if err := k.API.Get(ctx, client.ObjectKey{Namespace: originsNamespace, Name: v.Handle}, &claim); err != nil {
		return nil, fmt.Errorf("claim of the origin: %w", err)
	}
	pv := &corev1.PersistentVolume{}
	return pv, k.API.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, pv)
}

// ask asks for a size, and waits until the volume has it but for what its next node does.
func (v *vol) ask(ctx context.Context, size string) error {
	if err := k.AskSize(ctx, v.space.name, v.claim, size); err != nil {
		return err
	}
	want := resource.MustParse(size)
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pv corev1.PersistentVolume
		if err := k.API.Get(ctx, client.ObjectKey{Name: v.PV}, &pv); err != nil {
			return "", err
		}
		if have := pv.Spec.Capacity[corev1.ResourceStorage]; have.Cmp(want) < 0 {
			return fmt.Sprintf("PersistentVolume %s has %s", pv.Name, have.String()), nil
		}
		return "", nil
	})
}

// attachedTo are the nodes that a PersistentVolume is attached to, or about to be.
func attachedTo(ctx context.Context, pv string) (nodes []string, err error) {
	var all storagev1.VolumeAttachmentList
	err = k.API.List(ctx, &all)
	for _, a := range all.Items {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == pv {
			nodes = append(nodes, a.Spec.NodeName)
		}
	}
	return nodes, err
}

// awaitDetaching waits until the end of an attachment of a PersistentVolume has been asked for.
func awaitDetaching(ctx context.Context, pv string) error {
	return cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		attachments, err := k.Attachments(ctx, pv)
		if err != nil {
			return "", err
		}
		for _, a := range attachments {
			if a.DeletionTimestamp != nil {
				return "", nil
			}
		}
		return fmt.Sprintf("no attachment of %s is being deleted: %+v", pv, attachments), nil
	})
}

// expectCloned: the cache of a volume that has just moved came with it by clone, and serves at once.
func (v *vol) expectCloned(ctx context.Context, generation int64, before float64) {
	GinkgoHelper()
	v.expectHits(ctx, before)
	cm, err := v.awaitMoved(ctx, generation)
	Expect(err).NotTo(HaveOccurred())
	v.expectFollowed(ctx, cm, v1alpha1.MigrationClone, before)
}

// expectFollowed: the cache of a volume has come with it, by the method.
func (v *vol) expectFollowed(ctx context.Context, cm *v1alpha1.CacheMigration, method v1alpha1.MigrationMethod, before float64) {
	GinkgoHelper()
	Expect(cm.Spec.SourceNode).To(Equal(otherNode(v.node)))
	Expect(cm.Spec.Method).To(Equal(method))
	Expect(v.expectWhole(ctx)).To(Succeed())
	v.expectHits(ctx, before)
}

// expectHits: the first reads find about as much in the cache as before.
func (v *vol) expectHits(ctx context.Context, before float64) {
	GinkgoHelper()
	rate, err := v.hitRate(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(rate).To(BeNumerically(">=", 0.9*before), "hit rate of %d reads; it was %.3f", firstReads, before)
}

var _ = Describe("A volume over a disk of another CSI driver", Label("origin", "lab"), func() {
	It("is cached, moves with its cache, by clone and by stream, and is deleted with the disk", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "over", mode: v1alpha1.CacheModeWritethrough, kind: block, cacheSize: "128Mi"}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
		pv, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(pv.Spec.PersistentVolumeReclaimPolicy).To(Equal(corev1.PersistentVolumeReclaimRetain))
		v.expectInZone(ctx, pv)
		Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(nodeA))
		Expect(k.Lab.Unplug(ctx, nodeA, pv.Name)).NotTo(Succeed(), "the cache has the disk open")
		sum, before, old := v.warm(ctx)

		By("moving it to the other node, by clone")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		generation := int64(2)
		v.expectCloned(ctx, generation, before)
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())
		Expect(v.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
		Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(nodeB))
		Expect(v.awaitCacheGone(ctx, nodeA, old)).To(Succeed())

		By("moving it back by stream, after a write and a restart of the other driver's controller")
		Expect(v.change(ctx, func(spec *v1alpha1.CachedVolumeSpec) {
			spec.WarmStart = v1alpha1.WarmStart{Method: v1alpha1.WarmStartStream}
		})).To(Succeed())
		sum, err = v.write(ctx, 0, workingSet)
		Expect(err).NotTo(HaveOccurred())
		Expect(k.Lab.KillOrigin(ctx)).To(Succeed())
		Expect(k.Lab.StartOrigin(ctx)).To(Succeed())
		cm := v.moveByStream(ctx, &generation, func() {}, func() { Expect(v.warmUp(ctx)).To(Succeed()) })
		v.expectFollowed(ctx, cm, v1alpha1.MigrationStream, before)
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())

		By("growing it; a machine sees that when the disk is plugged in anew")
		Expect(v.ask(ctx, "2Gi")).To(Succeed())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.size(ctx)).To(BeEquivalentTo(2 << 30))
		Expect(v.verify(ctx, 0, workingSet, sum)).To(Succeed())

		By("deleting it")
		Expect(v.deleteClaim(ctx)).To(Succeed())
		expectDiskGone(ctx, pv.Name)
		Expect(attachedTo(ctx, pv.Name)).To(BeEmpty())
	}, NodeTimeout(specLimit))

	It("keeps its unflushed writes for its node, and the disk with it, when the node loses its power", Label("slow"), func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "dirty", mode: v1alpha1.CacheModeWriteback}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		pv, err := v.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())

		Expect(powerOff(ctx, nodeA)).To(Succeed())
		Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(nodeA))
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(nodeB))
	}, NodeTimeout(specLimit))

	It("is taken from a lost node only with its writes and by the other driver", func(ctx SpecContext) {
		s := newSpace(ctx)
		clean, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "clean", mode: v1alpha1.CacheModeWritethrough}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		dirty, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "dirty", mode: v1alpha1.CacheModeWriteback}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		sums := map[*vol]string{}
		disks := map[*vol]string{}
		for _, v := range []*vol{clean, dirty} {
			sums[v], err = v.write(ctx, 0, 16)
			Expect(err).NotTo(HaveOccurred())
			pv, err := v.origin(ctx)
			Expect(err).NotTo(HaveOccurred())
			disks[v] = pv.Name
		}

		By("losing the node, and taking the volumes from it by force")
		loseNode(ctx)
		Expect(k.Lab.KillOrigin(ctx, "attacher")).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.StartOrigin(ctx)).To(Succeed()) }, NodeTimeout(late))
		lost := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: clean.pod}}
		Expect(k.DeleteAndWait(ctx, lost, soon, client.GracePeriodSeconds(0))).To(Succeed())
		Expect(awaitDetaching(ctx, disks[clean])).To(Succeed())
		Expect(k.Attachments(ctx, clean.PV)).NotTo(BeEmpty(), "our attachment lasts as long as that of the disk, which the other driver ends")
		Expect(k.Lab.StartOrigin(ctx)).To(Succeed())
		Expect(k.AwaitDetached(ctx, clean.Volume, late)).To(Succeed())
		Expect(attachedTo(ctx, disks[clean])).To(BeEmpty())
		dirty.takeFromLostNode(ctx)
		Expect(attachedTo(ctx, disks[dirty])).To(ConsistOf(nodeA), "the node keeps the disk that its writes belong to")

		By("going on elsewhere")
		Expect(clean.start(ctx, nodeB)).To(Succeed())
		Expect(clean.verify(ctx, 0, 16, sums[clean])).To(Succeed())
		Expect(attachedTo(ctx, disks[clean])).To(ConsistOf(nodeB))
		Expect(dirty.begin(ctx, nodeB)).To(Succeed())
		Expect(dirty.awaitFenced(ctx, "fenced")).To(Succeed())

		By("bringing the node back")
		Expect(outOfService(ctx, nodeA, false)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(dirty.awaitReady(ctx)).To(Succeed())
		Expect(dirty.verify(ctx, 0, 16, sums[dirty])).To(Succeed())
		Expect(clean.verify(ctx, 0, 16, sums[clean])).To(Succeed())
		Expect(attachedTo(ctx, disks[dirty])).To(ConsistOf(nodeB))
	}, NodeTimeout(specLimit))
})
