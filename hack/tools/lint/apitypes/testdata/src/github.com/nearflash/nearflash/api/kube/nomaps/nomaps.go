// Package nomaps breaks the rules of the linter of that name.
package nomaps

// Thing is a thing.
type Thing struct {
	Parts map[string]Part `json:"parts"` // want `Thing.Parts should not use a map type`
}

// Part is a part.
type Part struct{}
