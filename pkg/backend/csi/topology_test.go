package csi

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestTopologies(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	term := func(e ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: e}
	}
	var many []string
	for i := range maxTopologies + 1 {
		many = append(many, fmt.Sprint(i))
	}
	cases := map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  []map[string]string
		bad   bool
	}{
		"everywhere":       {},
		"one zone":         {terms: []corev1.NodeSelectorTerm{term(in("zone", "a"))}, want: []map[string]string{{"zone": "a"}}},
		"two zones":        {terms: []corev1.NodeSelectorTerm{term(in("zone", "a")), term(in("zone", "b"))}, want: []map[string]string{{"zone": "a"}, {"zone": "b"}}},
		"zones in a term":  {terms: []corev1.NodeSelectorTerm{term(in("zone", "a", "b"))}, want: []map[string]string{{"zone": "a"}, {"zone": "b"}}},
		"zone and rack":    {terms: []corev1.NodeSelectorTerm{term(in("zone", "a", "b"), in("rack", "1"))}, want: []map[string]string{{"zone": "a", "rack": "1"}, {"zone": "b", "rack": "1"}}},
		"not in":           {terms: []corev1.NodeSelectorTerm{term(corev1.NodeSelectorRequirement{Key: "zone", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"a"}})}, bad: true},
		"a field":          {terms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "a")}}}, bad: true},
		"an empty term":    {terms: []corev1.NodeSelectorTerm{term()}, bad: true},
		"too many of them": {terms: []corev1.NodeSelectorTerm{term(in("zone", many...))}, bad: true},
	}
	for name, tc := range cases {
		pv := &corev1.PersistentVolume{}
		if tc.terms != nil {
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: tc.terms}}
		}
		got, err := topologies(pv)
		if errors.Is(err, volume.ErrInvalid) != tc.bad || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tc.want)
		}
	}
}
