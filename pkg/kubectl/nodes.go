package kubectl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeState is whether a node of the cluster answers.
type nodeState struct {
	ready bool
	// since is when it last changed; zero for a node that is not in the cluster.
	since metav1.Time
	gone  bool
	// unknown is of an account that may not read nodes.
	unknown bool
}

// stateOf judges a node; nil is one that is not in the cluster.
func stateOf(node *corev1.Node) nodeState {
	if node == nil {
		return nodeState{gone: true}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return nodeState{ready: c.Status == corev1.ConditionTrue, since: c.LastTransitionTime}
		}
	}
	return nodeState{}
}

// nodeState reads the state of a node.
func (s *session) nodeState(ctx context.Context, node string) (nodeState, error) {
	var obj corev1.Node
	err := s.client.Get(ctx, client.ObjectKey{Name: node}, &obj)
	switch {
	case apierrors.IsNotFound(err):
		return stateOf(nil), nil
	case apierrors.IsForbidden(err):
		return nodeState{unknown: true}, nil
	case err != nil:
		return nodeState{}, fmt.Errorf("read node %s: %w", node, err)
	}
	return stateOf(&obj), nil
}

// words says in words how a node is.
func (f *Factory) nodeWords(s nodeState) string {
	switch {
	case s.unknown:
		return "you may not see its state"
	case s.gone:
		return "not in the cluster"
	case s.ready:
		return "Ready"
	}
	return "not Ready since " + ago(f.Clock.Now(), s.since)
}

// users returns the pods that use a claim and have not ended.
func (s *session) users(ctx context.Context, namespace, claim string) ([]corev1.Pod, error) {
	if claim == "" {
		return nil, nil
	}
	var list corev1.PodList
	if err := s.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", namespace, err)
	}
	var out []corev1.Pod
	for _, pod := range list.Items {
		if ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed; !ended && uses(&pod, claim) {
			out = append(out, pod)
		}
	}
	return out, nil
}

// uses reports whether a pod names a claim, or has it made for itself.
func uses(pod *corev1.Pod, claim string) bool {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim || v.Ephemeral != nil && pod.Name+"-"+v.Name == claim {
			return true
		}
	}
	return false
}

// podReady reports whether a pod is ready, and if not, why.
func podReady(pod *corev1.Pod) (bool, string) {
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return false, fmt.Sprintf("container %s waits: %s %s", c.Name, w.Reason, w.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "phase " + string(pod.Status.Phase)
}
