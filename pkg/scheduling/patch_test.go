package scheduling

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestTerms(t *testing.T) {
	got := terms([]Preference{{80, []string{"a", "gone"}}, {60, []string{"gone"}}, {20, []string{"a", "b"}}}, map[string]string{"a": "host-a", "b": "host-b", "gone": ""})
	want := []corev1.PreferredSchedulingTerm{term(80, "host-a"), term(20, "host-a", "host-b")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func term(weight int32, hosts ...string) corev1.PreferredSchedulingTerm {
	return corev1.PreferredSchedulingTerm{Weight: weight, Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: hosts}},
	}}
}

func TestPatchFor(t *testing.T) {
	const (
		one = `{"weight":80,"preference":{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["a"]}]}}`
		two = `{"weight":20,"preference":{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["b"]}]}}`
	)
	cases := map[string]struct {
		affinity *corev1.Affinity
		want     string
	}{
		"nothing": {
			want: `[{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[` + one + `,` + two + `]}}}]`,
		},
		"affinity of pods": {
			affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}},
			want:     `[{"op":"add","path":"/spec/affinity/nodeAffinity","value":{"preferredDuringSchedulingIgnoredDuringExecution":[` + one + `,` + two + `]}}]`,
		},
		"requirements": {
			affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}},
			want:     `[{"op":"add","path":"/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution","value":[` + one + `,` + two + `]}]`,
		},
		"preferences": {
			affinity: &corev1.Affinity{NodeAffinity: preferring([]corev1.PreferredSchedulingTerm{term(1, "x")})},
			want: `[{"op":"add","path":"/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/-","value":` + one + `},` +
				`{"op":"add","path":"/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/-","value":` + two + `}]`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: tc.affinity}}
			got, err := json.Marshal(patchFor(pod, []corev1.PreferredSchedulingTerm{term(80, "a"), term(20, "b")}))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
