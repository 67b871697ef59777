// Package nophase breaks the rules of the linter of that name.
package nophase

// Thing is a thing.
type Thing struct {
	BootPhase string `json:"bootPhase"` // want `BootPhase: phase fields are deprecated`
}
