package kubectl_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestControllerOver: a pod of the controller that has ended for good has another one in its place, and is no finding.
func TestControllerOver(t *testing.T) {
	over := driverPod("controller", "nearflash-controller-0", "control", false)
	over.Status.Phase = corev1.PodFailed
	for want, objs := range map[string][]client.Object{
		"ok       controller: 1 pod ready\n":                 append(healthy(t), over),
		"error    controller: no pod of the controller runs": append(without(healthy(t), "nearflash-controller-1"), over.DeepCopy()),
	} {
		if _, out, _ := newRig(t, objs...).run("doctor"); !strings.Contains(out, want) {
			t.Errorf("output has no %q:\n%s", want, out)
		}
	}
}
