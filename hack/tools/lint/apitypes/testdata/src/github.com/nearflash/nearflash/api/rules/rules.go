// Package rules breaks the rule of apirules.
package rules

// Mute does not say what is wrong.
//
// +kubebuilder:validation:XValidation:rule="self.a == self.b"
type Mute struct{} // want `type Mute: a rule without a message`

// Rules are of fields too.
type Rules struct {
	// +kubebuilder:validation:XValidation:rule="self > 1"
	Mute int64 // want `Rules.Mute: a rule without a message`
	// +kubebuilder:validation:XValidation:rule="self > 1",message="must be more than 1"
	Good int64
}
