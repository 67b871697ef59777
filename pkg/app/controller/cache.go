package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/scheduling"
)

// cacheOptions keep in the informers what somebody asks for, and no more: there may
// be tens of thousands of objects, most PersistentVolumes may be other drivers', and
// half of an object is the record of who wrote which of its fields. Nothing is ever
// written from what an informer has.
func cacheOptions(plugins *pluginPods) cache.Options {
	byObject := scheduling.CacheOptions()
	if plugins != nil {
		byObject[&corev1.Pod{}] = cache.ByObject{
			Namespaces: map[string]cache.Config{plugins.namespace: {LabelSelector: plugins.selector}}, Transform: keepOfPod,
		}
	}
	byObject[&corev1.PersistentVolume{}] = cache.ByObject{Transform: keepOfVolume}
	byObject[&corev1.Node{}] = cache.ByObject{Transform: keepOfNode}
	return cache.Options{ByObject: byObject, DefaultTransform: keep}
}

// keepOfNode is what the metrics of the cluster and admissions rest on.
func keepOfNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return keep(obj)
	}
	out := scheduling.KeepOfNode(node)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return out, nil
}

// keepOfPod is what says where the node plugin is to run.
func keepOfPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return keep(obj)
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}}
	out.Spec.NodeName = pod.Spec.NodeName
	return out, nil
}

// keep drops what nobody reads of any object.
func keep(obj any) (any, error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil // not an object: the last known state of one that is gone
	}
	o.SetManagedFields(nil)
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m.Annotations = nil
	}
	return obj, nil
}

// keepOfVolume is what the reconciler and the scheduling webhook read.
func keepOfVolume(obj any) (any, error) {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return obj, nil
	}
	out := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv.Name, UID: pv.UID, ResourceVersion: pv.ResourceVersion}}
	csi := pv.Spec.CSI
	if csi == nil || csi.Driver != driver.Name {
		return out, nil
	}
	out.Spec.Capacity = pv.Spec.Capacity
	out.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle, VolumeAttributes: csi.VolumeAttributes}
	if claim := pv.Spec.ClaimRef; claim != nil {
		out.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name}
	}
	return out, nil
}
