//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/e2e/cluster"
)

// originDriver is another CSI driver of the lab.
type originDriver struct {
	// class is its class: raw disks, without a cache.
	class string
	// parameters are those of a class of ours over it, but the name of its class.
	parameters map[string]string
}

// pd is what `lab up --origin pd` brings.
var pd = originDriver{class: "pd"}

// originClass makes a class like the one that an origin driver has, with other parameters too.
func (s *space) originClass(ctx context.Context, o originDriver, name string, parameters map[string]string) (originDriver, error) {
	var class storagev1.StorageClass
	if err := k.API.Get(ctx, client.ObjectKey{Name: o.class}, &class); err != nil {
		return o, fmt.Errorf("class %s: %w", o.class, err)
	}
	o.class = s.name + "-origin-" + name // ours over it may have its name
	class.ObjectMeta = metav1.ObjectMeta{Name: o.class}
	class.Parameters = maps.Clone(class.Parameters)
	maps.Copy(class.Parameters, parameters)
	if err := k.API.Create(ctx, &class); err != nil {
		return o, fmt.Errorf("class %s: %w", o.class, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.classes = append(s.classes, o.class)
	return o, nil
}

// originVolume makes a pod on a node with a new disk of the origin, raw or with the filesystem
// that the origin's node plugin makes.
func (s *space) originVolume(ctx context.Context, o originDriver, name, node string, block bool) (*vol, error) {
	v := &vol{space: s, claim: name, block: block}
	claim := cluster.ClaimSpec{Namespace: s.name, Name: name, Class: o.class, Size: "1Gi", Block: block}
	if err := k.API.Create(ctx, cluster.Claim(claim)); err != nil {
		return nil, fmt.Errorf("claim %s: %w", name, err)
	}
	// The class waits for the pod.
	if err := v.begin(ctx, node); err != nil {
		return nil, err
	}
	// It is no volume of the space's: those are the driver's.
	var err error
	if v.Volume, err = k.AwaitBound(ctx, s.name, name, soon); err != nil {
		return nil, err
	}
	return v, v.awaitReady(ctx)
}

// expectGone ends the pod, deletes the volume, and looks for what is left of it.
func expectGone(ctx context.Context, v *vol) {
	GinkgoHelper()
	Expect(v.deleteClaim(ctx)).To(Succeed())
	expectDiskGone(ctx, v.PV)
}

// expectDiskGone: the origin driver has deleted the disk of a PersistentVolume, and no machine has
// it plugged in.
func expectDiskGone(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pv corev1.PersistentVolume
		err := k.API.Get(ctx, client.ObjectKey{Name: name}, &pv)
		if err == nil {
			return fmt.Sprintf("volume %s still exists: %s %s", name, pv.Status.Phase, pv.Status.Message), nil
		}
		return "", client.IgnoreNotFound(err)
	})).To(Succeed())
	for _, node := range []string{nodeA, nodeB} {
		disks, err := k.Lab.Disks(ctx, node)
		Expect(err).NotTo(HaveOccurred())
		Expect(disks).NotTo(ContainElement(ContainSubstring(name)), "machine %s", node)
	}
}

var _ = Describe("A disk of the origin alone", Label("origin", "lab", "slow"), func() {
	It("goes from node to node with its data, grows, and leaves nothing", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.originVolume(ctx, pd, "disk", nodeA, true)
		Expect(err).NotTo(HaveOccurred())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())
		Expect(k.Lab.Unplug(ctx, nodeA, v.PV)).NotTo(Succeed(), "the pod has the disk open")

		By("moving it to the other node")
		Expect(v.restart(ctx, nodeB)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())

		By("expanding it; a machine sees that when the disk is plugged in anew")
		Expect(k.Expand(ctx, s.name, v.claim, v.pod, "2Gi", late)).To(Succeed())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.size(ctx)).To(BeEquivalentTo(2 << 30))
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())

		By("deleting it")
		expectGone(ctx, v)
	}, NodeTimeout(specLimit))

	It("is there after a power loss of its machine and a restart of its controller", func(ctx SpecContext) {
		s := newSpace(ctx)
		v, err := s.originVolume(ctx, pd, "disk", nodeA, true)
		Expect(err).NotTo(HaveOccurred())
		sum, err := v.write(ctx, 0, 16)
		Expect(err).NotTo(HaveOccurred())

		Expect(powerOff(ctx, nodeA)).To(Succeed())
		Expect(k.Lab.KillOrigin(ctx)).To(Succeed())
		Expect(k.Lab.StartOrigin(ctx)).To(Succeed())
		Expect(k.Lab.Start(ctx, nodeA)).To(Succeed())
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			links, err := k.Host.Run(ctx, nodeA, "ls /dev/disk/by-id")
			if err == nil && !strings.Contains(links, "google-"+v.PV) {
				return "no link to " + v.PV, nil
			}
			return "", err
		})).To(Succeed())
		Expect(v.restart(ctx, nodeA)).To(Succeed())
		Expect(v.verify(ctx, 0, 16, sum)).To(Succeed())
		expectGone(ctx, v)
	}, NodeTimeout(specLimit))
})
