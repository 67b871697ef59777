package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// Volume names one persistent volume in its three forms.
type Volume struct {
	// PV is the PersistentVolume's name, Handle the CSI volume id.
	PV, Handle string
}

// AwaitBound waits until the claim is bound and returns its volume.
func (c *Cluster) AwaitBound(ctx context.Context, namespace, claim string, timeout time.Duration) (Volume, error) {
	var v Volume
	err := Await(ctx, timeout, func(ctx context.Context) (string, error) {
		var pvc corev1.PersistentVolumeClaim
		if err := c.API.Get(ctx, client.ObjectKey{Namespace: namespace, Name: claim}, &pvc); err != nil {
			return "", err
		}
		if pvc.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is %s", claim, pvc.Status.Phase), nil
		}
		var pv corev1.PersistentVolume
		if err := c.API.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, &pv); err != nil {
			return "", err
		}
		v = Volume{PV: pv.Name}
		if pv.Spec.CSI != nil { // one of an in-tree kind has none
			v.Handle = pv.Spec.CSI.VolumeHandle
		}
		return "", nil
	})
	return v, err
}

// AwaitPodReady waits until the pod runs.
func (c *Cluster) AwaitPodReady(ctx context.Context, namespace, name string, timeout time.Duration) error {
	return Await(ctx, timeout, func(ctx context.Context) (string, error) {
		var pod corev1.Pod
		if err := c.API.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
			return "", err
		}
		if PodReady(&pod) {
			return "", nil
		}
		return podProblem(&pod), nil
	})
}

// DeleteAndWait deletes an object and waits until it is gone; an object that
// does not exist is success.
func (c *Cluster) DeleteAndWait(ctx context.Context, obj client.Object, timeout time.Duration, opts ...client.DeleteOption) error {
	key := client.ObjectKeyFromObject(obj)
	if err := client.IgnoreNotFound(c.API.Delete(ctx, obj, opts...)); err != nil {
		return fmt.Errorf("delete %T %s: %w", obj, key, err)
	}
	err := Await(ctx, timeout, func(ctx context.Context) (string, error) {
		err := c.API.Get(ctx, key, obj)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("%T %s still exists, finalizers %v", obj, key, obj.GetFinalizers()), err
	})
	if err != nil {
		return fmt.Errorf("delete %T %s: %w", obj, key, err)
	}
	return nil
}

// Attachments returns the VolumeAttachments of a PersistentVolume.
func (c *Cluster) Attachments(ctx context.Context, pv string) ([]storagev1.VolumeAttachment, error) {
	var list storagev1.VolumeAttachmentList
	if err := c.API.List(ctx, &list); err != nil {
		return nil, err
	}
	var out []storagev1.VolumeAttachment
	for _, va := range list.Items {
		if va.Spec.Source.PersistentVolumeName != nil && *va.Spec.Source.PersistentVolumeName == pv {
			out = append(out, va)
		}
	}
	return out, nil
}

// AwaitDetached waits until no node has the volume attached.
func (c *Cluster) AwaitDetached(ctx context.Context, v Volume, timeout time.Duration) error {
	return Await(ctx, timeout, func(ctx context.Context) (string, error) {
		vas, err := c.Attachments(ctx, v.PV)
		if err != nil || len(vas) == 0 {
			return "", err
		}
		pending := fmt.Sprintf("volume %s is still attached to %s", v.Handle, vas[0].Spec.NodeName)
		if e := vas[0].Status.DetachError; e != nil {
			pending += ": " + e.Message
		}
		return pending, nil
	})
}

// resizeNudge is the time between two nudges of Expand.
const resizeNudge = 3 * time.Second

// Expand asks for a new size and waits until node and filesystem have it. A
// kubelet resizes the volume of a running pod when it next looks at the pod, up
// to a minute and a half later, or at once when the pod has changed: it is given
// an annotation.
func (c *Cluster) Expand(ctx context.Context, namespace, claim, pod, size string, timeout time.Duration) error {
	if err := c.AskSize(ctx, namespace, claim, size); err != nil {
		return err
	}
	want := resource.MustParse(size)
	var pvc corev1.PersistentVolumeClaim
	key := client.ObjectKey{Namespace: namespace, Name: claim}
	var nudged time.Time
	return Await(ctx, timeout, func(ctx context.Context) (string, error) {
		if err := c.API.Get(ctx, key, &pvc); err != nil {
			return "", err
		}
		if have := pvc.Status.Capacity[corev1.ResourceStorage]; have.Cmp(want) >= 0 {
			return "", nil
		}
		pending := fmt.Sprintf("claim %s has not got %s: %v, conditions %v", claim, size, pvc.Status.Capacity, pvc.Status.Conditions)
		if !awaitsNode(&pvc) || time.Since(nudged) < resizeNudge {
			return pending, nil
		}
		nudged = time.Now()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"e2e.nearflash.io/nudge":%q}}}`, nudged.Format(time.RFC3339))
		obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}}
		return pending, c.API.Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(patch)))
	})
}

// AskSize asks for a size of a claim, and waits for nothing.
func (c *Cluster) AskSize(ctx context.Context, namespace, claim, size string) error {
	var pvc corev1.PersistentVolumeClaim
	if err := c.API.Get(ctx, client.ObjectKey{Namespace: namespace, Name: claim}, &pvc); err != nil {
		return err
	}
	old := pvc.DeepCopy()
	pvc.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	if err := c.API.Patch(ctx, &pvc, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("expand claim %s: %w", claim, err)
	}
	return nil
}

// awaitsNode reports whether only the node's part of an expansion is left.
func awaitsNode(pvc *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pvc.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	})
}

// CachedVolume returns the driver's record of a volume.
func (c *Cluster) CachedVolume(ctx context.Context, v Volume) (*v1alpha1.CachedVolume, error) {
	var cv v1alpha1.CachedVolume
	if err := c.API.Get(ctx, client.ObjectKey{Name: v.Handle}, &cv); err != nil {
		return nil, err
	}
	return &cv, nil
}

// Event is one event, whichever of the two APIs it was written with.
type Event struct{ Type, Reason, Message, Object string }

// Events returns the events about an object of that name, in any namespace:
// events of cluster-scoped objects are kept in "default".
func (c *Cluster) Events(ctx context.Context, object string) ([]Event, error) {
	var list eventsv1.EventList
	if err := c.API.List(ctx, &list); err != nil {
		return nil, err
	}
	var out []Event
	for _, e := range list.Items {
		if e.Regarding.Name == object {
			out = append(out, Event{Type: e.Type, Reason: e.Reason, Message: e.Note, Object: e.Regarding.Kind + "/" + e.Regarding.Name})
		}
	}
	return out, nil
}

// AwaitEvent waits for an event about the object for which match is true.
func (c *Cluster) AwaitEvent(ctx context.Context, object string, timeout time.Duration, match func(Event) bool) (Event, error) {
	var found Event
	err := Await(ctx, timeout, func(ctx context.Context) (string, error) {
		events, err := c.Events(ctx, object)
		if err != nil {
			return "", err
		}
		for _, e := range events {
			if match(e) {
				found = e
				return "", nil
			}
		}
		return fmt.Sprintf("no such event among %+v", events), nil
	})
	return found, err
}

// Change changes the spec of a volume's record and waits until the node has carried it out.
func (c *Cluster) Change(ctx context.Context, v Volume, limit time.Duration, change func(*v1alpha1.CachedVolumeSpec)) error {
	cv, err := c.CachedVolume(ctx, v)
	if err != nil {
		return err
	}
	base := cv.DeepCopy()
	change(&cv.Spec)
	if err := c.API.Patch(ctx, cv, client.MergeFrom(base)); err != nil {
		return fmt.Errorf("change volume %s: %w", v.Handle, err)
	}
	want := cv.Generation
	return Await(ctx, limit, func(ctx context.Context) (string, error) {
		now, err := c.CachedVolume(ctx, v)
		if err != nil {
			return "", err
		}
		applied := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionApplied)
		if applied == nil || applied.Status != metav1.ConditionTrue || applied.ObservedGeneration < want {
			return fmt.Sprintf("volume %s: generation %d, condition %+v", v.Handle, want, applied), nil
		}
		return "", nil
	})
}
