package charttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// testPodSecurity has the API server's own admission judge the chart's pods: only the node
// plugin needs the level privileged, the others pass the strictest.
func (c *cluster) testPodSecurity(t *testing.T) {
	ctx := t.Context()
	for _, level := range []string{"privileged", "baseline", "restricted"} {
		c.make(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: level, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}})
		for _, pod := range podsIn(t, mustTemplate(t, valuesArgs("target")...)) {
			spec := *pod.spec.DeepCopy()
			spec.PriorityClassName = "" // there are none here
			err := c.admin.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: level, Name: pod.name}, Spec: spec}, client.DryRunAll)
			switch want := level != "privileged" && pod.name == "nearflash-node"; {
			case want && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "violates PodSecurity")):
				t.Errorf("pod %s at the level %s: %v, want it refused", pod.name, level, err)
			case !want && err != nil:
				t.Errorf("pod %s at the level %s: %v", pod.name, level, err)
			}
		}
	}
}
