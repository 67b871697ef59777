package scheduling

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// KeepOfNode is what an informer has to keep of a Node for an admission.
func KeepOfNode(node *corev1.Node) *corev1.Node {
	out := &corev1.Node{}
	out.Name, out.UID, out.ResourceVersion, out.Labels = node.Name, node.UID, node.ResourceVersion, node.Labels
	out.Spec = corev1.NodeSpec{Unschedulable: node.Spec.Unschedulable, Taints: node.Spec.Taints}
	return out
}

// hostnames returns the labels kubernetes.io/hostname, by which pods select nodes and which may
// differ from their names, of the nodes that the pod may go to.
func (g *gatherer) hostnames(ctx context.Context, pod *corev1.Pod) (map[string]string, error) {
	list := &corev1.NodeList{}
	if err := g.informed.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	out := map[string]string{}
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	for i := range list.Items {
		node := &list.Items[i]
		if name := node.Labels[corev1.LabelHostname]; name != "" && usable(ctx, pod, required, node) {
			out[node.Name] = name
		}
	}
	return out, nil
}

// usable reports whether the scheduler could place a pod on a node, as far as selectors, taints
// and a cordon tell: a name that it cannot would take the place of one that it can.
func usable(ctx context.Context, pod *corev1.Pod, required nodeaffinity.RequiredNodeAffinity, node *corev1.Node) bool {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable {
		taints = append(taints[:len(taints):len(taints)], corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	hard := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	if _, found := schedulinghelpers.FindMatchingUntoleratedTaint(klog.FromContext(ctx), taints, pod.Spec.Tolerations, hard, false); found {
		return false
	}
	ok, err := required.Match(node)
	return ok || err != nil // what is wrong with the pod is the scheduler's to say
}
