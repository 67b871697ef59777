package charttest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// placements are the specs of all pods that run the project's own images.
func placements(t *testing.T, args ...string) map[string]corev1.PodSpec {
	t.Helper()
	objects := mustTemplate(t, append(valuesArgs("static"), args...)...)
	return map[string]corev1.PodSpec{
		"node":       convert[appsv1.DaemonSet](t, find(objects, "DaemonSet", "nearflash-node")).Spec.Template.Spec,
		"controller": convert[appsv1.Deployment](t, find(objects, "Deployment", "nearflash-controller")).Spec.Template.Spec,
		"check":      convert[corev1.Pod](t, find(objects, "Pod", "nearflash-check")).Spec,
	}
}

// requiredTerms are those of the node affinity, one of which has to match.
func requiredTerms(t *testing.T, pod corev1.PodSpec) []corev1.NodeSelectorTerm {
	t.Helper()
	if a := pod.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	return nil
}

// TestArchitectures: pods go only to nodes that there are images for, by default those that
// the tests run on.
func TestArchitectures(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"by default": {nil, []string{"amd64"}},
		"both":       {[]string{"--set-json", `images.architectures=["amd64","arm64"]`}, []string{"amd64", "arm64"}},
		"the other":  {[]string{"--set-json", `images.architectures=["arm64"]`}, []string{"arm64"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: tc.want},
			}}}
			for pod, spec := range placements(t, tc.args...) {
				if diff := cmp.Diff(want, requiredTerms(t, spec)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", pod, diff)
				}
			}
		})
	}
}

// TestArchitecturesBesideAffinity: whoever has an affinity keeps it, and no term of it
// leads to a node without images.
func TestArchitecturesBesideAffinity(t *testing.T) {
	const affinity = `{
		"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname"}]},
		"nodeAffinity":{
			"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}],
			"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[
				{"matchExpressions":[{"key":"b","operator":"Exists"}]},
				{"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]}]}}}`
	for pod, spec := range placements(t, "--set-json", "node.affinity="+affinity, "--set-json", "controller.affinity="+affinity) {
		terms := requiredTerms(t, spec)
		if len(terms) != 2 || len(terms[0].MatchExpressions) != 2 || terms[0].MatchExpressions[0].Key != "b" || len(terms[1].MatchFields) != 1 {
			t.Errorf("%s: terms %+v, want both of the values", pod, terms)
		}
		for i, term := range terms {
			if !slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
				return r.Key == corev1.LabelArchStable && slices.Equal(r.Values, []string{"amd64"})
			}) {
				t.Errorf("%s: term %d leads to nodes of any architecture", pod, i)
			}
		}
		if len(spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1 || spec.Affinity.PodAntiAffinity == nil {
			t.Errorf("%s: affinity %+v, want the rest of the values too", pod, spec.Affinity)
		}
	}
}
