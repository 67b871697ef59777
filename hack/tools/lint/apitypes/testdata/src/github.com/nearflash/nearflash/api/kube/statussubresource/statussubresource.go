// Package statussubresource breaks the rules of the linter of that name.
package statussubresource

// Thing is a kind.
//
// +kubebuilder:object:root=true
type Thing struct { // want `root object type "Thing" has a status field but does not have the marker "kubebuilder:subresource:status"`
	Status Status `json:"status"`
}

// Status is what is.
type Status struct{}
