package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxAbandoned is how many losses status.abandoned keeps; the oldest goes first.
const MaxAbandoned = 8

// AbandonedWrites are acknowledged writes that an administrator has abandoned: they
// were on one node's SSD alone, and the volume goes on without them.
type AbandonedWrites struct {
	// generation is the ownership under which they were made.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation int64 `json:"generation,omitempty"`

	// nodeName is the node that had them.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`

	// consent is who gave them up.
	// +required
	Consent LossConsent `json:"consent,omitempty,omitzero"`

	// lastSeen is what the node last said of them; absent if it said nothing while it
	// had the volume attached.
	// +optional
	LastSeen LastSeenWrites `json:"lastSeen,omitempty,omitzero"`

	// told is the pod that was told first; absent until one has started with the volume.
	// +optional
	Told ToldPod `json:"told,omitempty,omitzero"`
}

// LossConsent is the word of an administrator that acknowledged writes may be lost.
type LossConsent struct {
	// time is when they were abandoned.
	// +required
	Time metav1.Time `json:"time,omitempty,omitzero"`

	// by is the user, as the API server knows him. It is the user's own word: the
	// audit log of the API server has the proof.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by,omitempty"`

	// given is how it was said, such as "--accept-data-loss".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Given string `json:"given,omitempty"`
}

// LastSeenWrites is what a node last said of its unflushed writes.
type LastSeenWrites struct {
	// observedTime is when the node said so.
	// +required
	ObservedTime metav1.Time `json:"observedTime,omitempty,omitzero"`

	// dirtyBytes were unflushed then.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	DirtyBytes *int64 `json:"dirtyBytes,omitempty"`

	// sinceTime is before every write that may be lost: the cache was seen without a
	// dirty block then. It is absent if the node did not know.
	// +optional
	SinceTime metav1.Time `json:"sinceTime,omitempty,omitzero"`
}

// ToldPod is a pod that an event has told of lost writes.
type ToldPod struct {
	// time of the event.
	// +required
	Time metav1.Time `json:"time,omitempty,omitzero"`

	// namespace of the pod.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// name of the pod; absent if the plugin was not told it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}
