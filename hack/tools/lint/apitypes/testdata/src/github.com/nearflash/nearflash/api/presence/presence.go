// Package presence breaks the rules of apipresence.
package presence

// Word is not empty.
//
// +kubebuilder:validation:Enum=a;b
type Word string

// Inner has no required field.
type Inner struct{}

// Presence is unclear.
type Presence struct {
	// +optional
	Inner Inner `json:"inner,omitempty"` // want `Presence.Inner: a struct that may be absent needs omitzero`
	// +required
	Tag Word `json:"tag"` // want `Presence.Tag: omitempty is missing`
	// +optional
	Empty string `json:"empty,omitempty"` // want `Presence.Empty: its zero value is valid`
	// +optional
	// +kubebuilder:validation:Minimum=0
	Zero int32 `json:"zero,omitempty"` // want `Presence.Zero: its zero value is valid`
	// +optional
	// +kubebuilder:validation:Minimum=1
	One *int32 `json:"one,omitempty"` // want `Presence.One: its zero value is not valid: it needs no pointer`
	// +optional
	Pointer *Word `json:"pointer,omitempty"` // want `Presence.Pointer: its zero value is not valid`
	// +optional
	List *[]string `json:"list,omitempty"` // want `Presence.List: a list needs no pointer`
	// +optional
	Good Word `json:"good,omitempty"`
}
