// Package status breaks the rule of apistatus.
package status

// BareStatus has no conditions.
type BareStatus struct {
	// +optional
	May string
}

// Bare has a status.
//
// +kubebuilder:object:root=true
type Bare struct {
	Status BareStatus // want `type BareStatus has no conditions`
}
