package scheduling

import (
	corev1 "k8s.io/api/core/v1"
)

// operation is one of a JSON patch (RFC 6902). A patch is built by hand: one that
// is made by comparing the pod with its decoded form would drop the fields that
// this program's version of the API does not know.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// terms turns preferences into what the scheduler understands. Nodes without a
// hostname are left out.
func terms(preferences []Preference, hostname map[string]string) []corev1.PreferredSchedulingTerm {
	var out []corev1.PreferredSchedulingTerm
	for _, p := range preferences {
		var names []string
		for _, node := range p.Nodes {
			if name := hostname[node]; name != "" {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			continue
		}
		out = append(out, corev1.PreferredSchedulingTerm{
			Weight: int32(p.Weight), // at most 100
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names},
			}},
		})
	}
	return out
}

// patchFor adds the terms after those that the pod has.
func patchFor(pod *corev1.Pod, add []corev1.PreferredSchedulingTerm) []operation {
	const (
		affinity  = "/spec/affinity"
		node      = affinity + "/nodeAffinity"
		preferred = node + "/preferredDuringSchedulingIgnoredDuringExecution"
	)
	a := pod.Spec.Affinity
	switch {
	case a == nil:
		return []operation{{"add", affinity, corev1.Affinity{NodeAffinity: preferring(add)}}}
	case a.NodeAffinity == nil:
		return []operation{{"add", node, preferring(add)}}
	case len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) == 0:
		return []operation{{"add", preferred, add}}
	}
	out := make([]operation, 0, len(add))
	for _, term := range add {
		out = append(out, operation{"add", preferred + "/-", term})
	}
	return out
}

func preferring(terms []corev1.PreferredSchedulingTerm) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}
}
