// Package kinds breaks the rules of apikinds.
package kinds

// Kinds has types that an API cannot have.
type Kinds struct {
	Any     any       // want `Kinds.Any: an interface has no schema`
	Several []*string // want `Kinds.Several: the elements of a list are no pointers`
	Number  int64
	Text    string
}
