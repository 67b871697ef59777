package records

import (
	"context"
	"errors"
	"unicode/utf8"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// maxConditionMessage and maxEventNote are the API server's bounds in bytes
	// (validation of metav1.Condition and of events.k8s.io/v1).
	maxConditionMessage = 32768
	maxEventNote        = 1024

	actionCache = "Cache"
)

// Report implements volume.Records. An event is sent when the condition has
// changed, and with r.Warning always: the recorder folds repetitions.
func (r *Records) Report(ctx context.Context, id volume.ID, rep volume.CacheReport) error {
	if rep.EventOnly {
		return r.emitReport(ctx, id, rep)
	}
	var seen *v1alpha1.CachedVolume
	var changed bool
	err := UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		seen = obj
		if byMany(obj) {
			return nil // a condition is one node's word
		}
		if rep.Owner != "" && obj.Status.OwnerNode != rep.Owner {
			return nil
		}
		changed = meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
			Type:               v1alpha1.ConditionCached,
			Status:             conditionStatus(rep.Cached),
			Reason:             rep.Reason,
			Message:            truncate(rep.Message, maxConditionMessage),
			ObservedGeneration: obj.Generation,
			LastTransitionTime: metav1.NewTime(r.now()),
		})
		return nil
	})
	if err != nil {
		return err
	}
	if changed || rep.Warning {
		Emit(ctx, r.client, r.events, seen, Event{Warning: rep.Warning, Reason: rep.Reason, Action: actionCache, Note: rep.Message})
	}
	return nil
}

// ReportTorn implements volume.Records.
func (r *Records) ReportTorn(ctx context.Context, id volume.ID, f volume.Fence, message string) error {
	var seen *v1alpha1.CachedVolume
	err := r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		seen = obj
		meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionConsistent, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUncleanStop,
			Message: truncate(message, maxConditionMessage), ObservedGeneration: obj.Generation, LastTransitionTime: metav1.NewTime(r.now()),
		})
		return nil
	})
	if err != nil {
		return err
	}
	Emit(ctx, r.client, r.events, seen, Event{Warning: true, Reason: v1alpha1.ReasonUncleanStop, Action: actionCache, Note: message})
	return nil
}

// emitReport is Report without a condition.
func (r *Records) emitReport(ctx context.Context, id volume.ID, rep volume.CacheReport) error {
	obj, err := Load(ctx, r.client, id)
	if err != nil {
		return err
	}
	Emit(ctx, r.client, r.events, obj, Event{Warning: rep.Warning, Reason: rep.Reason, Action: actionCache, Note: rep.Message})
	return nil
}

// ReportApplied implements volume.Records.
func (r *Records) ReportApplied(ctx context.Context, id volume.ID, node string, rep volume.AppliedReport) error {
	err := UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		if obj.Status.OwnerNode != node {
			return nil
		}
		meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
			Type:               v1alpha1.ConditionApplied,
			Status:             appliedStatus(rep.State),
			Reason:             rep.Reason,
			Message:            truncate(rep.Message, maxConditionMessage),
			ObservedGeneration: rep.SpecGeneration,
			LastTransitionTime: metav1.NewTime(r.now()),
		})
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

func appliedStatus(s volume.AppliedState) metav1.ConditionStatus {
	switch s {
	case volume.AppliedDone:
		return metav1.ConditionTrue
	case volume.AppliedPending:
		return metav1.ConditionFalse
	case volume.AppliedDetached:
	}
	return metav1.ConditionUnknown
}

// ReportFlushed implements volume.Records.
func (r *Records) ReportFlushed(ctx context.Context, id volume.ID, f volume.Fence, request string) error {
	return r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		if obj.Status.Flush.Request != request {
			obj.Status.Flush = v1alpha1.FlushStatus{Request: request, CompletionTime: metav1.NewTime(r.now())}
		}
		return nil
	})
}

func conditionStatus(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// Event is what Emit tells.
type Event struct {
	Warning bool
	// Reason and Action are CamelCase words.
	Reason, Action string
	Note           string
}

// Emit sends an event on the volume and, if it has a claim, on the claim, where
// the owner of the data looks. It never fails: events are for humans.
func Emit(ctx context.Context, c client.Client, rec events.EventRecorder, obj *v1alpha1.CachedVolume, e Event) {
	eventType := corev1.EventTypeNormal
	if e.Warning {
		eventType = corev1.EventTypeWarning
	}
	note := truncate(e.Note, maxEventNote)
	self := &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "CachedVolume", Name: obj.Name, UID: obj.UID,
	}
	rec.Eventf(self, nil, eventType, e.Reason, e.Action, "%s", note)
	if ref := claim(ctx, c, obj); ref != nil {
		rec.Eventf(ref, self, eventType, e.Reason, e.Action, "%s", note)
	}
}

// claim refers to the claim of a volume. The UID is read because kubectl
// describe selects events by it; without permission to read it the event is sent
// all the same.
func claim(ctx context.Context, c client.Client, obj *v1alpha1.CachedVolume) *corev1.ObjectReference {
	if obj.Spec.ClaimRef == nil {
		return nil
	}
	ref := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: obj.Spec.ClaimRef.Namespace, Name: obj.Spec.ClaimRef.Name,
	}
	pvc := &metav1.PartialObjectMetadata{}
	pvc.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	if err := c.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, pvc); err != nil {
		logr.FromContextOrDiscard(ctx).V(2).Info("Event without the UID of the claim", "claim", ref.Namespace+"/"+ref.Name, "reason", err.Error())
		return ref
	}
	ref.UID = pvc.UID
	return ref
}

// truncate shortens s to at most n bytes without cutting a character in two.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "..."
	cut := n - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
