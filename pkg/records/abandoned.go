package records

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// ReasonWritesAbandoned is the reason of the Warning event that a volume goes on
	// without writes that had been acknowledged.
	ReasonWritesAbandoned = "WritesAbandoned"

	actionAbandon = "Abandon"
)

// untold returns the losses of which no pod was told.
func untold(obj *v1alpha1.CachedVolume) []v1alpha1.AbandonedWrites {
	var out []v1alpha1.AbandonedWrites
	for _, a := range obj.Status.Abandoned {
		if a.Told.Time.IsZero() {
			out = append(out, a)
		}
	}
	return out
}

// givenUp reports whether writes of the record's own ownership were abandoned.
func givenUp(obj *v1alpha1.CachedVolume) bool {
	f := Fence(obj)
	return slices.ContainsFunc(obj.Status.Abandoned, func(a v1alpha1.AbandonedWrites) bool {
		return a.Generation == f.Generation && a.NodeName == f.Node
	})
}

// ReportAbandoned implements volume.Records. The events come before the note that
// they were sent: killed between the two, it tells twice.
func (r *Records) ReportAbandoned(ctx context.Context, id volume.ID, f volume.Fence, pod *volume.Pod) error {
	obj, err := Load(ctx, r.client, id)
	if err != nil {
		return err
	}
	if FenceFor(obj, f.Node) != f {
		return fencedError(obj, f)
	}
	losses := untold(obj)
	if len(losses) == 0 {
		return nil
	}
	for _, a := range losses {
		r.notify(ctx, obj, LossMessage(a), pod)
	}
	if pod == nil || byMany(obj) { // of many readers each is told, and the next who writes
		return nil
	}
	return r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		for i := range obj.Status.Abandoned {
			a := &obj.Status.Abandoned[i]
			if slices.ContainsFunc(losses, func(l v1alpha1.AbandonedWrites) bool { return equality.Semantic.DeepEqual(l, *a) }) {
				a.Told = v1alpha1.ToldPod{Time: metav1.NewTime(r.now()), Namespace: pod.Namespace, Name: pod.Name}
			}
		}
		return nil
	})
}

// notify sends the events of one loss. Before there is a pod they are on what there is;
// the pod's own says the same.
func (r *Records) notify(ctx context.Context, obj *v1alpha1.CachedVolume, message string, pod *volume.Pod) {
	if pod == nil || pod.Name == "" {
		Emit(ctx, r.client, r.events, obj, Event{Warning: true, Reason: ReasonWritesAbandoned, Action: actionAbandon, Note: message})
		return
	}
	self := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "CachedVolume", Name: obj.Name, UID: obj.UID}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
	r.events.Eventf(ref, self, corev1.EventTypeWarning, ReasonWritesAbandoned, actionAbandon, "%s", truncate(message, maxEventNote))
}

// LossMessage says for people what was given up.
func LossMessage(a v1alpha1.AbandonedWrites) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The writes that node %s had not flushed (generation %d) were abandoned at %s", a.NodeName, a.Generation, stamp(a.Consent.Time))
	if a.Consent.By != "" {
		fmt.Fprintf(&b, " by %s", a.Consent.By)
	}
	if a.Consent.Given != "" {
		fmt.Fprintf(&b, " (%s)", a.Consent.Given)
	}
	b.WriteString(": acknowledged writes may be lost")
	seen := a.LastSeen
	if !seen.SinceTime.IsZero() {
		fmt.Fprintf(&b, ", none of them from before %s", stamp(seen.SinceTime))
	}
	if seen.DirtyBytes != nil {
		fmt.Fprintf(&b, "; %d bytes were unflushed when the node was last heard of, at %s", *seen.DirtyBytes, stamp(seen.ObservedTime))
	}
	b.WriteString(". The volume goes on with what the storage server had: check the data before you trust them.")
	return b.String()
}

func stamp(t metav1.Time) string { return t.UTC().Format(time.RFC3339) }
