// Package optionalorrequired breaks the rules of the linter of that name.
package optionalorrequired

// Thing is a thing.
type Thing struct {
	Neither string `json:"neither"` // want `field Thing.Neither must be marked as optional or required`
}
