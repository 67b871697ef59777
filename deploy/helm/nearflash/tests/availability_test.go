package charttest

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// find returns the only object of a kind with a name, nil if there is none.
func find(objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			return object
		}
	}
	return nil
}

func convert[T any](t *testing.T, object *unstructured.Unstructured) T {
	t.Helper()
	var out T
	if object == nil {
		t.Fatalf("no object for a %T", out)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// selects says whether a selector takes the pods of a template, and no others of the
// chart: an empty one would take every pod of the namespace.
func selects(t *testing.T, selector *metav1.LabelSelector, pods, others labels.Set) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(pods) && !s.Matches(others)
}

// TestControllerDisruption wants the budget and the spreading to be about the
// controller's pods, and the budget to let every drain go on.
func TestControllerDisruption(t *testing.T) {
	objects := mustTemplate(t, append(valuesArgs("static"), "--set", "controller.replicas=2")...)
	deployment := convert[appsv1.Deployment](t, find(objects, "Deployment", "nearflash-controller"))
	daemonSet := convert[appsv1.DaemonSet](t, find(objects, "DaemonSet", "nearflash-node"))
	pods, others := labels.Set(deployment.Spec.Template.Labels), labels.Set(daemonSet.Spec.Template.Labels)

	budget := convert[policyv1.PodDisruptionBudget](t, find(objects, "PodDisruptionBudget", "nearflash-controller"))
	if !selects(t, budget.Spec.Selector, pods, others) {
		t.Errorf("the budget selects %v, want the pods with %v alone", budget.Spec.Selector, pods)
	}
	if max := budget.Spec.MaxUnavailable; max == nil || max.IntValue() < 1 || budget.Spec.MinAvailable != nil {
		t.Errorf("the budget allows %v, want at least one pod: a single controller must not block a drain", budget.Spec)
	}
	spread := deployment.Spec.Template.Spec.TopologySpreadConstraints
	if len(spread) != 1 {
		t.Fatalf("%d constraints, want 1", len(spread))
	}
	if c := spread[0]; c.TopologyKey != corev1.LabelHostname || c.WhenUnsatisfiable != corev1.ScheduleAnyway || !selects(t, c.LabelSelector, pods, others) {
		t.Errorf("spread by %+v, want over nodes, if possible, the pods with %v alone", c, pods)
	}

	off := mustTemplate(t, append(valuesArgs("static"),
		"--set", "controller.podDisruptionBudget.enabled=false", "--set-json", "controller.topologySpreadConstraints=[]")...)
	if find(off, "PodDisruptionBudget", "nearflash-controller") != nil {
		t.Error("a budget that is switched off is rendered")
	}
	deployment = convert[appsv1.Deployment](t, find(off, "Deployment", "nearflash-controller"))
	if n := len(deployment.Spec.Template.Spec.TopologySpreadConstraints); n != 0 {
		t.Errorf("%d constraints, want none", n)
	}
}

// TestContainersAreBounded wants of every container a request and a memory limit, a
// priority of every workload, and no more rights than needed: only the node plugin
// touches devices.
func TestContainersAreBounded(t *testing.T) {
	objects := mustTemplate(t, valuesArgs("monitoring")...)
	deployment := convert[appsv1.Deployment](t, find(objects, "Deployment", "nearflash-controller"))
	daemonSet := convert[appsv1.DaemonSet](t, find(objects, "DaemonSet", "nearflash-node"))
	check := convert[corev1.Pod](t, find(objects, "Pod", checkName))
	specs := map[string]corev1.PodSpec{
		"controller": deployment.Spec.Template.Spec, "node": daemonSet.Spec.Template.Spec, "check": check.Spec,
	}
	for name, spec := range specs {
		if spec.PriorityClassName == "" && name != "check" {
			t.Errorf("%s has no priority class", name)
		}
		for _, c := range spec.Containers {
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: container %s asks for %v, want CPU, memory and a limit of memory", name, c.Name, c.Resources)
			}
			if name == "node" {
				continue
			}
			context := c.SecurityContext
			if context == nil || context.AllowPrivilegeEscalation == nil || *context.AllowPrivilegeEscalation ||
				context.ReadOnlyRootFilesystem == nil || !*context.ReadOnlyRootFilesystem ||
				context.Capabilities == nil || len(context.Capabilities.Drop) != 1 || context.Capabilities.Drop[0] != "ALL" || len(context.Capabilities.Add) != 0 {
				t.Errorf("%s: container %s has more rights than it needs: %+v", name, c.Name, context)
			}
		}
		if name == "node" {
			continue
		}
		if p := spec.SecurityContext; p == nil || p.RunAsNonRoot == nil || !*p.RunAsNonRoot ||
			p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s runs as %+v, want no root and the runtime's seccomp profile", name, p)
		}
	}
}
