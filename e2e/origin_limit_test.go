//go:build e2e

package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/cluster"
)

const (
	// pdDriver is the driver of [pd].
	pdDriver = "pd.csi.storage.gke.io"
	// machineDisks is how many disks of it a machine of the lab takes.
	machineDisks = 14
	// limitExceeded is why a kubelet ends a pod whose node has no place for its volume
	// (VolumeAttachmentLimitExceededReason of pkg/kubelet/volumemanager).
	limitExceeded = "VolumeAttachmentLimitExceeded"
)

// awaitTakes waits until the kubelet of a node says that it takes so many volumes of a driver.
func awaitTakes(ctx context.Context, node, driver string, want int32) {
	GinkgoHelper()
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var n storagev1.CSINode
		if err := k.API.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
			return "", err
		}
		for _, d := range n.Spec.Drivers {
			if d.Name == driver && d.Allocatable != nil && ptr.Deref(d.Allocatable.Count, 0) == want {
				return "", nil
			}
		}
		return fmt.Sprintf("node %s does not take %d volumes of %s: %+v", node, want, driver, n.Spec.Drivers), nil
	})).To(Succeed())
}

// preferring runs a Deployment with the volume that would rather be on a node.
func (v *vol) preferring(ctx context.Context, node string) error {
	pod := k.Pod(cluster.PodSpec{Namespace: v.space.name, Name: v.claim, Claim: v.claim, Block: v.block})
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}}},
	}}}}
	labels := map[string]string{"app": v.claim}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.space.name, Name: v.claim},
		Spec: appsv1.DeploymentSpec{
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}
	if err := k.API.Create(ctx, d); err != nil {
		return fmt.Errorf("deployment %s: %w", d.Name, err)
	}
	DeferCleanup(func(ctx SpecContext) {
		Expect(k.DeleteAndWait(ctx, d, soon, client.PropagationPolicy(metav1.DeletePropagationForeground))).To(Succeed())
	}, NodeTimeout(late))
	return nil
}

// awaitPod waits for a pod of the Deployment of a volume that is as wanted.
func (v *vol) awaitPod(ctx context.Context, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	GinkgoHelper()
	var found corev1.Pod
	Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
		var pods corev1.PodList
		if err := k.API.List(ctx, &pods, client.InNamespace(v.space.name), client.MatchingLabels{"app": v.claim}); err != nil {
			return "", err
		}
		states := ""
		for i := range pods.Items {
			p := &pods.Items[i]
			if is(p) {
				found = *p
				return "", nil
			}
			states += fmt.Sprintf(" %s on %q: %s %s;", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason)
		}
		return "no pod " + what + ":" + states, nil
	})).To(Succeed())
	return &found
}

var _ = Describe("A node that takes no more disks of another CSI driver", Label("origin", "lab", "slow"), Serial, func() {
	It("is said to be full, and a pod that was sent there before is made again elsewhere", func(ctx SpecContext) {
		s := newSpace(ctx)
		r := newRelease(ctx)
		Expect(k.Lab.LimitOrigin(ctx, nodeA, 2)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k.Lab.LimitOrigin(ctx, nodeA, machineDisks)).To(Succeed()) }, NodeTimeout(late))
		awaitTakes(ctx, nodeA, pdDriver, 2)
		r.helm(ctx, "upgrade", r.name, chart(), "--values", r.values, "--set", "origins.attachLimitOf="+pdDriver, "--wait", "--timeout", rolloutLimit)
		DeferCleanup(func(ctx SpecContext) {
			r.helm(ctx, "rollback", r.name, r.revision, "--wait", "--timeout", rolloutLimit)
			Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		}, NodeTimeout(2*late))
		Expect(k.AwaitDriver(ctx, late)).To(Succeed())
		awaitTakes(ctx, nodeA, cluster.DriverName, 2)
		awaitTakes(ctx, nodeB, cluster.DriverName, machineDisks)

		By("taking both places, one without a cache, of which nearflash does not learn at once")
		there, err := s.cachedOrigin(ctx, pd, volumeSpec{name: "there", mode: v1alpha1.CacheModeWritethrough, kind: block}, nodeA)
		Expect(err).NotTo(HaveOccurred())
		_, err = s.originVolume(ctx, pd, "plain", nodeA, true)
		Expect(err).NotTo(HaveOccurred())

		By("sending a pod there")
		more := &vol{space: s, claim: "more", block: true}
		Expect(k.API.Create(ctx, cluster.Claim(cluster.ClaimSpec{Namespace: s.name, Name: more.claim, Class: s.name + "-there", Size: "1Gi", Block: true}))).To(Succeed())
		Expect(more.preferring(ctx, nodeA)).To(Succeed())
		ended := more.awaitPod(ctx, "was ended on "+nodeA, func(p *corev1.Pod) bool {
			return p.Spec.NodeName == nodeA && p.Status.Phase == corev1.PodFailed && p.Status.Reason == limitExceeded
		})
		Expect(s.awaitBound(ctx, more)).To(Succeed())

		By("running the next one elsewhere, because the node is known to be full now")
		awaitTakes(ctx, nodeA, cluster.DriverName, 1)
		next := more.awaitPod(ctx, "runs elsewhere", func(p *corev1.Pod) bool { return p.Spec.NodeName == nodeB && p.Status.Phase == corev1.PodRunning })
		more.pod, more.node = next.Name, nodeB
		Expect(more.awaitReady(ctx)).To(Succeed())
		Expect(more.expectTable(ctx, v1alpha1.CacheModeWritethrough)).To(Succeed())
		pv, err := more.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(attachedTo(ctx, pv.Name)).To(ConsistOf(nodeB))
		below, err := there.origin(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(attachedTo(ctx, below.Name)).To(ConsistOf(nodeA))

		By("deleting the pod that has failed, so that Kubernetes does not try the full node any more")
		Expect(attachedTo(ctx, more.PV)).To(ConsistOf(nodeA, nodeB))
		Expect(k.DeleteAndWait(ctx, ended, soon)).To(Succeed())
		Expect(cluster.Await(ctx, late, func(ctx context.Context) (string, error) {
			nodes, err := attachedTo(ctx, more.PV)
			if len(nodes) != 1 {
				return fmt.Sprintf("volume %s has attachments to %v", more.PV, nodes), err
			}
			return "", err
		})).To(Succeed())
		Expect(attachedTo(ctx, more.PV)).To(ConsistOf(nodeB))
	}, NodeTimeout(2*specLimit))
})
