package charttest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// podOf is a pod that the chart makes, with its name and labels.
type podOf struct {
	name   string
	labels map[string]string
	spec   corev1.PodSpec
}

// podsIn returns the pods of rendered objects: those of workloads, and the one of helm test.
func podsIn(t *testing.T, objects []*unstructured.Unstructured) []podOf {
	t.Helper()
	var out []podOf
	for _, object := range objects {
		convert := func(to any) {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, to); err != nil {
				t.Fatal(err)
			}
		}
		switch object.GetKind() {
		case "Deployment", "DaemonSet":
			var d appsv1.Deployment // the template of a DaemonSet has the same form
			convert(&d)
			out = append(out, podOf{d.Name, d.Spec.Template.Labels, d.Spec.Template.Spec})
		case "Pod":
			var p corev1.Pod
			convert(&p)
			out = append(out, podOf{p.Name, p.Labels, p.Spec})
		}
	}
	return out
}

func networkPolicies(t *testing.T, objects []*unstructured.Unstructured) map[string]networkingv1.NetworkPolicy {
	t.Helper()
	out := map[string]networkingv1.NetworkPolicy{}
	for _, object := range objects {
		if object.GetKind() != "NetworkPolicy" {
			continue
		}
		var p networkingv1.NetworkPolicy
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &p); err != nil {
			t.Fatal(err)
		}
		out[p.Name] = p
	}
	return out
}

// TestNetworkPolicies: each policy selects the pod of its name and no other, and lets in to
// the ports that its containers declare, all of them and nothing else.
func TestNetworkPolicies(t *testing.T) {
	storage := []string{"--set", "target.address=192.0.2.7:9443", "--set", "target.tls.existingSecret=x"}
	all := append([]string{"--set", "snapshots.enabled=true"}, storage...)
	for name, args := range map[string][]string{
		"defaults": nil, "all": all, "less": {"--set", "metrics.enabled=false", "--set", "scheduling.enabled=false"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := mustTemplate(t, append([]string{"--set", "networkPolicy.enabled=true"}, args...)...)
			policies := networkPolicies(t, objects)
			for _, pod := range podsIn(t, objects) {
				policy, found := policies[pod.name]
				if pod.spec.HostNetwork == found {
					t.Errorf("pod %s: a policy: %v, host's network: %v", pod.name, found, pod.spec.HostNetwork)
				}
				for _, other := range policies {
					if got := policySelects(t, other, pod.labels); got != (other.Name == pod.name) {
						t.Errorf("policy %s selects pod %s: %v", other.Name, pod.name, got)
					}
				}
				if found {
					checkIngress(t, policy, pod)
				}
				delete(policies, pod.name)
			}
			for name := range policies {
				t.Errorf("policy %s is of no pod", name)
			}
		})
	}
}

func policySelects(t *testing.T, p networkingv1.NetworkPolicy, of map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(of))
}

func checkIngress(t *testing.T, p networkingv1.NetworkPolicy, pod podOf) {
	t.Helper()
	both := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	if !slices.Equal(p.Spec.PolicyTypes, both) {
		t.Errorf("policy %s is of %v", p.Name, p.Spec.PolicyTypes)
	}
	var want, got []string
	for _, c := range pod.spec.Containers {
		for _, port := range c.Ports {
			want = append(want, fmt.Sprintf("%s %s", cmp.Or(port.Protocol, corev1.ProtocolTCP), port.Name))
		}
	}
	for _, rule := range p.Spec.Ingress {
		if len(rule.Ports) == 0 {
			t.Errorf("policy %s opens every port", p.Name)
		}
		for _, port := range rule.Ports {
			got = append(got, fmt.Sprintf("%s %s", *port.Protocol, port.Port.String()))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("policy %s (-declared by containers +open):\n%s", p.Name, diff)
	}
}

// TestNetworkPolicyEgress: names, the API server, and the storage server by its address where it
// is one.
func TestNetworkPolicyEgress(t *testing.T) {
	const cluster = "UDP 53, TCP 53; TCP 443, TCP 6443"
	for address, want := range map[string]string{
		"":                         cluster,
		"192.0.2.7:9443":           cluster + "; TCP 9443 to 192.0.2.7/32",
		"[fd00::10]:9444":          cluster + "; TCP 9444 to fd00::10/128",
		"storage.example.com:9445": cluster + "; TCP 9445",
	} {
		t.Run(address, func(t *testing.T) {
			objects := mustTemplate(t, "--set", "networkPolicy.enabled=true", "--set", "target.address="+address, "--set", "target.tls.existingSecret=x")
			policies := networkPolicies(t, objects)
			if got := egress(policies["nearflash-controller"]); got != want {
				t.Errorf("controller: %s, want %s", got, want)
			}
			if got := egress(policies["nearflash-check"]); got != cluster {
				t.Errorf("check: %s, want %s", got, cluster)
			}
		})
	}
}

func egress(p networkingv1.NetworkPolicy) string {
	var rules []string
	for _, rule := range p.Spec.Egress {
		var ports, to []string
		for _, port := range rule.Ports {
			ports = append(ports, fmt.Sprintf("%s %s", *port.Protocol, port.Port.String()))
		}
		for _, peer := range rule.To {
			to = append(to, " to "+peer.IPBlock.CIDR)
		}
		rules = append(rules, strings.Join(ports, ", ")+strings.Join(to, ","))
	}
	return strings.Join(rules, "; ")
}

// TestNetworkPolicyMetricsFrom: those peers reach the metrics alone.
func TestNetworkPolicyMetricsFrom(t *testing.T) {
	objects := mustTemplate(t, "--set", "networkPolicy.enabled=true", "--set", "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring")
	for _, rule := range networkPolicies(t, objects)["nearflash-controller"].Spec.Ingress {
		metrics := len(rule.Ports) == 1 && rule.Ports[0].Port.String() == "metrics"
		if limited := len(rule.From) == 1; limited != metrics {
			t.Errorf("ports %v are open to %v", rule.Ports, rule.From)
		}
	}
}
