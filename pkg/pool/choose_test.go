package pool

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

func TestChoose(t *testing.T) {
	otherwise := v1alpha1.CachePoolSpec{Devices: []string{"/dev/default"}, Redundancy: v1alpha1.RedundancyMirror, NamespaceSharePercent: 25}
	choices := []Choice{
		{NodeSelector: map[string]string{"kind": "large", "zone": "a"}, Devices: []string{"/dev/first"}, Redundancy: v1alpha1.RedundancyMirror, Integrity: true},
		{NodeSelector: map[string]string{"kind": "large"}, Devices: []string{"/dev/second"}, Evacuate: []string{"/dev/third"}},
		{NodeSelector: map[string]string{"kind": "none"}},
	}
	none := v1alpha1.RedundancyNone
	cases := map[string]struct {
		labels map[string]string
		want   v1alpha1.CachePoolSpec
	}{
		"the first that matches":     {map[string]string{"kind": "large", "zone": "a", "x": "y"}, v1alpha1.CachePoolSpec{Devices: []string{"/dev/first"}, Redundancy: v1alpha1.RedundancyMirror, Integrity: true, NamespaceSharePercent: 25}},
		"all labels have to":         {map[string]string{"kind": "large", "zone": "b"}, v1alpha1.CachePoolSpec{Devices: []string{"/dev/second"}, Evacuate: []string{"/dev/third"}, Redundancy: none, NamespaceSharePercent: 25}},
		"a kind of node without any": {map[string]string{"kind": "none"}, v1alpha1.CachePoolSpec{Redundancy: none, NamespaceSharePercent: 25}},
		"no match":                   {map[string]string{"kind": "small"}, otherwise},
		"no labels":                  {nil, otherwise},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Choose(choices, otherwise, tc.labels)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	want := v1alpha1.CachePoolSpec{Devices: []string{"/dev/default", "/dev/first", "/dev/second", "/dev/third"}, Redundancy: v1alpha1.RedundancyMirror, Integrity: true, NamespaceSharePercent: 25}
	if diff := cmp.Diff(want, anyOf(choices, otherwise)); diff != "" {
		t.Errorf("where the pool may lie (-want +got):\n%s", diff)
	}
}

// Labels that are still to come could choose other devices.
func TestNodeLabels(t *testing.T) {
	node := &corev1.Node{}
	node.Labels = map[string]string{"kind": "large"}
	node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady}}
	if got, err := NodeLabels(node); err != nil || got["kind"] != "large" {
		t.Errorf("labels %v, %v", got, err)
	}
	for _, key := range incomplete {
		node.Spec.Taints = []corev1.Taint{{Key: key}}
		if got, err := NodeLabels(node); err == nil {
			t.Errorf("labels %v of a node with taint %s", got, key)
		}
	}
}
