// Package status breaks the rules of apistatus.
package status

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BareStatus has no conditions.
type BareStatus struct {
	// +required
	Must string // want `BareStatus.Must: a field of a status is optional`
}

// Bare has no subresource.
//
// +kubebuilder:object:root=true
type Bare struct {
	Status BareStatus // want `type Bare has a status and no \+kubebuilder:subresource:status` `type BareStatus has no conditions`
}

// Own is a type of its own.
type Own struct{}

// OddStatus has odd conditions.
type OddStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Own // want `OddStatus.Conditions: conditions are of type metav1.Condition`
}

// AtomicStatus has conditions that cannot be merged.
type AtomicStatus struct {
	// +optional
	// +listType=atomic
	Conditions []metav1.Condition // want `AtomicStatus.Conditions: conditions are a list of listType=map`
}

// TextStatus has a text for conditions.
type TextStatus struct {
	// +optional
	Conditions string // want `TextStatus.Conditions: conditions are a list`
}
