package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ready is a node with a condition Ready.
func ready(status corev1.ConditionStatus, message string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Message: "node is shutting down"},
		{Type: corev1.NodeReady, Status: status, Reason: "KubeletNotReady", Message: message},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

func tainted(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
	}
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func TestLeaving(t *testing.T) {
	cases := map[string]struct {
		node *corev1.Node
		want string
	}{
		"in service":              {ready(corev1.ConditionTrue, "kubelet is posting ready status"), ""},
		"shut down":               {ready(corev1.ConditionFalse, "node is shutting down"), "node node-a is shutting down"},
		"shut down, and more":     {ready(corev1.ConditionFalse, "[container runtime is down, node is shutting down]"), "node node-a is shutting down"},
		"shut down, long ago":     {ready(corev1.ConditionTrue, "node is shutting down"), ""},
		"another trouble":         {ready(corev1.ConditionFalse, "container runtime network not ready"), ""},
		"silent":                  {ready(corev1.ConditionUnknown, "Kubelet stopped posting node status."), ""},
		"drained":                 {ready(corev1.ConditionTrue, "", cordoned, tainted(corev1.TaintNodeUnschedulable)), ""},
		"drained, then shut down": {ready(corev1.ConditionFalse, "node is shutting down", cordoned), "node node-a is shutting down"},
		"out of service":          {ready(corev1.ConditionUnknown, "", tainted(corev1.TaintNodeOutOfService)), "node node-a is out of service"},
		"unreachable":             {ready(corev1.ConditionUnknown, "", tainted(corev1.TaintNodeUnreachable)), ""},
		"being deleted":           {ready(corev1.ConditionTrue, "", func(n *corev1.Node) { n.DeletionTimestamp = ptr.To(metav1.Now()) }), "node node-a is being deleted"},
		"no conditions":           {&corev1.Node{}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := leaving(tc.node); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// nodeReader answers with one Node after the other, then always with the last; nil is
// none.
type nodeReader struct {
	client.Reader
	nodes []*corev1.Node
	reads int
}

func (r *nodeReader) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	n := r.nodes[min(r.reads, len(r.nodes)-1)]
	r.reads++
	if n == nil || key.Name != n.Name {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
	}
	n.DeepCopyInto(obj.(*corev1.Node))
	return nil
}

// TestAwaitLeaving: the kubelet writes the condition while it begins to stop pods.
func TestAwaitLeaving(t *testing.T) {
	up, down := ready(corev1.ConditionTrue, ""), ready(corev1.ConditionFalse, "node is shutting down")
	cases := map[string]struct {
		nodes []*corev1.Node
		want  string
		// after is how long the answer takes.
		after time.Duration
	}{
		"at once":    {[]*corev1.Node{down}, "node node-a is shutting down", 0},
		"later":      {[]*corev1.Node{up, nil, up, down}, "node node-a is shutting down", 3 * leavingPoll},
		"never":      {[]*corev1.Node{up}, "", leavingPatience},
		"not a node": {[]*corev1.Node{nil}, "", leavingPatience},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got := awaitLeaving(t.Context(), &nodeReader{nodes: tc.nodes}, "node-a")
				if took := time.Since(began); got != tc.want || took != tc.after {
					t.Errorf("got %q after %s, want %q after %s", got, took, tc.want, tc.after)
				}
			})
		})
	}
}
