// Package markers breaks the rules of apimarkers.
package markers

// Word is limited here.
//
// +kubebuilder:validation:Enum=a;b
type Word string

// Mute does not say what is wrong.
//
// +kubebuilder:validation:XValidation:rule="self.a == self.b"
type Mute struct{} // want `type Mute: a rule without a message`

// Markers are there more than once.
type Markers struct {
	// +optional
	// +optional
	Twice string // want `Markers.Twice: the marker \+optional is there twice`
	// +kubebuilder:validation:MaxLength=1
	// +kubebuilder:validation:MaxLength=2
	Length string // want `Markers.Length: MaxLength is set twice`
	// +kubebuilder:validation:Enum=a
	Enum Word // want `Markers.Enum: Enum is set on the field and on its type`
}
