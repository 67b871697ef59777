package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// NodeReady reports whether Kubernetes hears of a node: its condition Ready is True.
func NodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Registered reports whether the kubelet of a node knows a CSI driver.
func Registered(node *storagev1.CSINode, driver string) bool {
	return slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
}

// AttachLimit is how many volumes of a CSI driver a node takes, if its kubelet has been told.
func AttachLimit(node *storagev1.CSINode, driver string) (limit int64, known bool) {
	for _, d := range node.Spec.Drivers {
		if d.Name == driver && d.Allocatable != nil && d.Allocatable.Count != nil {
			return int64(*d.Allocatable.Count), true
		}
	}
	return 0, false
}
