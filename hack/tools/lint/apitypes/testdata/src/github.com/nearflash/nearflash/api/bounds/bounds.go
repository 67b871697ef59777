// Package bounds breaks the rules of apibounds.
package bounds

// Name is bounded where it is declared.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
type Name string

// Bounds are missing.
type Bounds struct {
	// +kubebuilder:validation:MaxLength=10
	Short string // want `Bounds.Short: MinLength is missing`
	// +kubebuilder:validation:Minimum=0
	Number *int64 // want `Bounds.Number: Minimum or Maximum is missing`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740992
	Large *int64 // want `Bounds.Large: its bounds exceed 9007199254740991`
	// +kubebuilder:validation:MaxItems=8
	Long []string // want `Bounds.Long: MinLength of the items is missing`
	// +required
	// +kubebuilder:validation:MaxItems=8
	Empty []Name // want `Bounds.Empty: MinItems is missing`
	// +kubebuilder:validation:MaxItems=8
	Good []Name
}
