package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// startLimit bounds the making of a volume and the start of its pod, endLimit the end of a pod.
	startLimit, endLimit = 10 * time.Minute, 5 * time.Minute
	// lookEvery is the time between two looks at an object that is waited for.
	lookEvery = 250 * time.Millisecond
	// tellAfter is how long somebody wonders before being told what is waited for.
	tellAfter = 15 * time.Second
)

// errLimit is what waiting ends with when its time has run out.
var errLimit = errors.New("timed out")

// volume is a subject with the pod that has it.
type volume struct {
	Subject
	// handle is the name of the CachedVolume.
	handle    string
	pod, node string
	pods      int
}

// make makes what a subject needs, and starts its pod.
func (r *Runner) make(ctx context.Context, s Subject) (*volume, error) {
	v := &volume{Subject: s}
	if s.Temporary != nil {
		// A copy: what the API server adds does not belong into the plan.
		if err := r.Client.Create(ctx, s.Temporary.DeepCopy()); err != nil {
			return nil, fmt.Errorf("make StorageClass %s: %w", s.Temporary.Name, err)
		}
	}
	if s.Claim == "" {
		claim := r.plan.claim(s)
		if err := r.Client.Create(ctx, claim); err != nil {
			return nil, fmt.Errorf("make claim %s: %w", claim.Name, err)
		}
	}
	if err := r.start(ctx, v, r.plan.Node); err != nil {
		return nil, err
	}
	return v, r.findHandle(ctx, v)
}

// start runs a pod with the volume on a node.
func (r *Runner) start(ctx context.Context, v *volume, node string) error {
	v.pods++
	pod := r.plan.pod(v.Subject, node, v.pods)
	if err := r.Client.Create(ctx, pod); err != nil {
		return fmt.Errorf("make pod %s: %w", pod.Name, err)
	}
	v.pod, v.node = pod.Name, node
	err := r.await(ctx, startLimit, func() (string, error) {
		if err := r.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return "", fmt.Errorf("read pod %s: %w", pod.Name, err)
		}
		switch {
		case ready(pod):
			return "", nil
		case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
			return "", fmt.Errorf("%s: the image %s has to have %s", podProblem(pod), r.plan.Image, r.plan.programs())
		}
		return podProblem(pod), nil
	})
	if errors.Is(err, errLimit) {
		err = fmt.Errorf("%w%s", err, r.lastWarning(ctx, pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName, pod.Name))
	}
	return err
}

// lastWarning is what was said last about one of some objects, which are deleted when the run ends.
func (r *Runner) lastWarning(ctx context.Context, names ...string) string {
	var list corev1.EventList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.plan.Namespace)); err != nil {
		return "" // an account that may not read events
	}
	var last *corev1.Event
	for i := range list.Items {
		e := &list.Items[i]
		if e.Type == corev1.EventTypeWarning && slices.Contains(names, e.InvolvedObject.Name) && (last == nil || last.LastTimestamp.Before(&e.LastTimestamp)) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return fmt.Sprintf("; the last warning about %s: %s", last.InvolvedObject.Name, last.Message)
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// stop ends the pod of a volume.
func (r *Runner) stop(ctx context.Context, v *volume) error {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = r.plan.Namespace, v.pod
	return r.remove(ctx, pod)
}

// remove deletes an object and waits until it is gone.
func (r *Runner) remove(ctx context.Context, o client.Object) error {
	if err := client.IgnoreNotFound(r.Client.Delete(ctx, o)); err != nil {
		return fmt.Errorf("delete %s: %w", o.GetName(), err)
	}
	return r.await(ctx, endLimit, func() (string, error) {
		err := r.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("read %s: %w", o.GetName(), err)
		}
		return o.GetName() + " still exists", nil
	})
}

// drop deletes what was made for a volume, so that the next one has the room.
func (r *Runner) drop(ctx context.Context, v *volume) error {
	if err := r.stop(ctx, v); err != nil || v.Claim != "" {
		return err
	}
	claim := r.plan.claim(v.Subject)
	if err := r.remove(ctx, claim); err != nil {
		return err
	}
	// The volume goes before its class, which its driver may need.
	err := r.await(ctx, endLimit, func() (string, error) {
		var pvs corev1.PersistentVolumeList
		err := r.Client.List(ctx, &pvs)
		if apierrors.IsForbidden(err) {
			return "", nil
		}
		for i := range pvs.Items {
			if ref := pvs.Items[i].Spec.ClaimRef; ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name {
				return "PersistentVolume " + pvs.Items[i].Name + " still exists", nil
			}
		}
		return "", err
	})
	if err != nil || v.Temporary == nil {
		return err
	}
	class := &storagev1.StorageClass{}
	class.Name = v.Temporary.Name
	return r.remove(ctx, class)
}

// findHandle learns under which name nodes know a volume.
func (r *Runner) findHandle(ctx context.Context, v *volume) error {
	key := client.ObjectKey{Namespace: r.plan.Namespace, Name: v.Claim}
	if v.Claim == "" {
		key.Name = r.plan.meta(v.Subject).Name
	}
	var claim corev1.PersistentVolumeClaim
	if err := r.Client.Get(ctx, key, &claim); err != nil {
		return fmt.Errorf("read claim %s: %w", key.Name, err)
	}
	var pv corev1.PersistentVolume
	err := r.Client.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, &pv)
	switch {
	case apierrors.IsForbidden(err):
		// Of volumes that were made, the names are the same.
		v.handle = claim.Spec.VolumeName
	case err != nil:
		return fmt.Errorf("read PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	case pv.Spec.CSI != nil:
		v.handle = pv.Spec.CSI.VolumeHandle
	}
	return nil
}

// await looks until nothing is missing.
func (r *Runner) await(ctx context.Context, limit time.Duration, look func() (missing string, err error)) error {
	began, told := r.Now(), ""
	for {
		missing, err := look()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || missing == "" {
			return err
		}
		if r.Now().Sub(began) >= limit {
			return fmt.Errorf("%w after %s: %s", errLimit, limit, missing)
		}
		if r.Now().Sub(began) >= tellAfter && missing != told {
			r.Say("waiting: %s", missing)
			told = missing
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.After(lookEvery):
		}
	}
}
