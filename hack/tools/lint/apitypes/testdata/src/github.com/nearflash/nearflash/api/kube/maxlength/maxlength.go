// Package maxlength breaks the rules of the linter of that name.
package maxlength

// Thing is a thing.
type Thing struct {
	Text string `json:"text"` // want `field Thing.Text must have a maximum length`
	// +kubebuilder:validation:MaxItems=8
	List []string `json:"list"` // want `field Thing.List array element must have a maximum length`
}
