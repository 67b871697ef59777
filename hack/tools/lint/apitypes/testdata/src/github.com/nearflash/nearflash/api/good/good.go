// Package good breaks no rule.
package good

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Colour is a word.
//
// +kubebuilder:validation:Enum=red;green
type Colour string

// Part can be told from other parts by its name.
type Part struct {
	// name of the part.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`

	// count is how often.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Count *int32 `json:"count,omitempty"`

	// number is one at least.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Number int64 `json:"number,omitempty"`
}

// ThingSpec is what is asked for.
//
// +kubebuilder:validation:XValidation:rule="self.colour == oldSelf.colour",message="colour cannot be changed"
type ThingSpec struct {
	// colour of the thing.
	// +optional
	// +default="red"
	Colour Colour `json:"colour,omitempty"`

	// words are short.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=8
	Words []string `json:"words,omitempty"`

	// ownerRef is another thing.
	// +optional
	OwnerRef *Part `json:"ownerRef,omitempty"`
}

// ThingStatus is what is.
type ThingStatus struct {
	// parts are there.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Parts []Part `json:"parts,omitempty"`

	// startTime is when.
	// +optional
	StartTime metav1.Time `json:"startTime,omitempty,omitzero"`

	// conditions say how.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Thing is a kind.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Thing struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is asked for.
	// +required
	Spec ThingSpec `json:"spec,omitzero"`
	// status is observed.
	// +optional
	Status ThingStatus `json:"status,omitempty,omitzero"`
}

// ThingList is a list.
//
// +kubebuilder:object:root=true
type ThingList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the list's.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the things.
	// +required
	Items []Thing `json:"items"`
}
