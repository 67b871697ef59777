// Package ssatags breaks the rules of the linter of that name.
package ssatags

// Thing is a thing.
type Thing struct {
	None []string `json:"none"` // want `Thing.None should have a listType marker`
}
