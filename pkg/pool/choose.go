package pool

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// Choice is the spec of the nodes that have certain labels.
type Choice struct {
	// NodeSelector are labels that a node must have, all of them.
	NodeSelector map[string]string `json:"nodeSelector"`
	// Devices, Evacuate, Redundancy and Integrity are as in CachePoolSpec.
	Devices    []string            `json:"devices"`
	Evacuate   []string            `json:"evacuate,omitempty"`
	Redundancy v1alpha1.Redundancy `json:"redundancy,omitempty"`
	Integrity  bool                `json:"integrity,omitempty"`
}

func (c Choice) spec() v1alpha1.CachePoolSpec {
	spec := v1alpha1.CachePoolSpec{Devices: c.Devices, Evacuate: c.Evacuate, Redundancy: c.Redundancy, Integrity: c.Integrity}
	if spec.Redundancy == "" {
		spec.Redundancy = v1alpha1.RedundancyNone
	}
	return spec
}

// Choose returns the spec of the first choice that matches, or the default.
func Choose(choices []Choice, otherwise v1alpha1.CachePoolSpec, node map[string]string) v1alpha1.CachePoolSpec {
	for _, c := range choices {
		if labels.SelectorFromSet(c.NodeSelector).Matches(labels.Set(node)) {
			spec := c.spec()
			spec.NamespaceSharePercent = otherwise.NamespaceSharePercent // of all kinds of nodes
			return spec
		}
	}
	return otherwise
}

// anyOf is where the pool of a node lies whose labels are not known, by any of the choices. It
// serves to find a pool, and none is made by it. Two copies, or checksums, are asked for if any
// choice does: a cache that has none by mistake would be one.
func anyOf(choices []Choice, otherwise v1alpha1.CachePoolSpec) v1alpha1.CachePoolSpec {
	all := *otherwise.DeepCopy()
	for _, c := range choices {
		all.Devices = slices.Concat(all.Devices, c.Devices, c.Evacuate)
		if c.Redundancy == v1alpha1.RedundancyMirror {
			all.Redundancy = c.Redundancy
		}
		all.Integrity = all.Integrity || c.Integrity
	}
	slices.Sort(all.Devices)
	all.Devices = slices.Compact(all.Devices)
	return all
}

// incomplete are the taints of nodes that do not have all of their labels yet: the cloud's
// controller, or Karpenter, adds them after the kubelet has made the Node.
var incomplete = []string{"node.cloudprovider.kubernetes.io/uninitialized", "karpenter.sh/unregistered"}

// NodeLabels returns the labels of a node, or an error as long as there may be more.
func NodeLabels(node *corev1.Node) (map[string]string, error) {
	for _, t := range node.Spec.Taints {
		if slices.Contains(incomplete, t.Key) {
			return nil, fmt.Errorf("node %s is about to get labels: it has the taint %s", node.Name, t.Key)
		}
	}
	return node.Labels, nil
}

// chosen is the spec by the plugin's flags. With an error it is where the pool may lie.
func (m *Manager) chosen(ctx context.Context) (v1alpha1.CachePoolSpec, error) {
	if len(m.Choices) == 0 {
		return m.Default, nil
	}
	node, err := m.Labels(ctx)
	if err != nil {
		return anyOf(m.Choices, m.Default), fmt.Errorf("which SSDs are for the pool depends on the node's labels: %w", err)
	}
	return Choose(m.Choices, m.Default, node), nil
}
