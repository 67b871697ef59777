// Package jsontags breaks the rules of the linter of that name.
package jsontags

// Thing is a thing.
type Thing struct {
	None  string // want `field Thing.None is missing json tag`
	Snake string `json:"snake_case"` // want `field Thing.Snake json tag does not match pattern`
}
