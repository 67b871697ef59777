package pool

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// object returns the node's CachePool, made or updated from the flags. While it is not known
// what they say of this node, an object stays as it is, and none is made.
func (m *Manager) object(ctx context.Context, flags v1alpha1.CachePoolSpec, unknown error) (*v1alpha1.CachePool, error) {
	var obj v1alpha1.CachePool
	err := m.api.Get(ctx, client.ObjectKey{Name: m.Node}, &obj)
	if apierrors.IsNotFound(err) {
		if unknown != nil {
			return nil, unknown
		}
		obj = v1alpha1.CachePool{
			ObjectMeta: metav1.ObjectMeta{Name: m.Node, Labels: map[string]string{v1alpha1.LabelPoolSource: v1alpha1.PoolSourceFlags}},
			Spec:       flags,
		}
		return &obj, m.api.Create(ctx, &obj)
	}
	if err != nil {
		return nil, err
	}
	if obj.FromFlags() && unknown == nil && !equality.Semantic.DeepEqual(obj.Spec, flags) {
		obj.Spec = flags
		return &obj, m.api.Update(ctx, &obj)
	}
	return &obj, nil
}

// report writes the status when it changed.
func (m *Manager) report(ctx context.Context, obj *v1alpha1.CachePool, o outcome) error {
	before := obj.Status.DeepCopy()
	st := &obj.Status
	st.LoginPublicKey, st.VolumeGroup = m.LoginPublicKey, o.view.VG
	if !m.InitiatorUnknown {
		st.InitiatorIQN = m.InitiatorIQN
	}
	st.Capacity, st.Free, st.Retained = quantity(o.size), quantity(o.free), quantity(o.view.RetainedCacheBytes)
	if st.StreamPublicKey = ""; m.StreamPublicKey != nil {
		st.StreamPublicKey = m.StreamPublicKey()
	}
	st.Devices = nil
	evacuations := m.evacuations(ctx, o)
	m.notifyEvacuated(obj, o.left)
	for _, d := range o.devices {
		size := d.SizeBytes
		health := o.view.Health[d.Path]
		st.Devices = append(st.Devices, v1alpha1.CachePoolDevice{
			Path: d.Path, SizeBytes: &size, Message: d.message(), Evacuation: evacuations[d.Path], Health: DeviceHealth(health.Verdict), WearPercent: health.WearPercent,
		})
	}
	setCondition(obj, v1alpha1.ConditionReady, o.view.Ready, o.reason, o.message)
	m.reportCaches(ctx, obj)
	if problem := m.Preflight(); problem == "" {
		setCondition(obj, v1alpha1.ConditionPreflight, true, v1alpha1.ReasonPreflightPassed, "kernel and tools have what is needed")
	} else {
		setCondition(obj, v1alpha1.ConditionPreflight, false, v1alpha1.ReasonPreflightFailures, problem)
	}
	m.reportHostTools(obj)
	if equality.Semantic.DeepEqual(before, st) {
		return nil
	}
	if err := m.api.Status().Update(ctx, obj); err != nil {
		return fmt.Errorf("report pool: %w", err)
	}
	return nil
}

// message says why a device is not used, "" if it is.
func (d DeviceFacts) message() string {
	switch {
	case d.InPool || !d.Evacuate:
		return d.Problem
	case d.Problem == "":
		return "is out of the pool, and blank: spec.evacuate names it"
	}
	return "is out of the pool, since spec.evacuate names it; " + d.Problem
}

func (m *Manager) reportHostTools(obj *v1alpha1.CachePool) {
	if m.HostTools == nil {
		return
	}
	problem, note, looked := m.HostTools()
	switch {
	case !looked: // what was said before stays
	case problem == "":
		message := "the host's tools leave alone what pods write"
		if note != "" {
			message += " by themselves; " + note
		}
		setCondition(obj, v1alpha1.ConditionHostTools, true, v1alpha1.ReasonHostToolsKeptOut, message)
	default:
		setCondition(obj, v1alpha1.ConditionHostTools, false, v1alpha1.ReasonHostToolsLook, problem)
	}
}

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

func setCondition(obj *v1alpha1.CachePool, kind string, ok bool, reason, message string) {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: obj.Generation,
	})
}
