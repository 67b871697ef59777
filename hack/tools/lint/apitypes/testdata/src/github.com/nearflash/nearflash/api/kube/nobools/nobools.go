// Package nobools breaks the rules of the linter of that name.
package nobools

// Thing is a thing.
type Thing struct {
	Flag bool `json:"flag"` // want `field Thing.Flag should not use a bool`
}
