// Package lists breaks the rules of apilists.
package lists

// Element has no required field.
type Element struct {
	// +optional
	Name string
}

// Part has one.
type Part struct {
	// +required
	Name string
}

// Lists are unclear.
type Lists struct {
	None []string // want `Lists.None: listType is missing`
	// +listType=bag
	Bag []string // want `Lists.Bag: listType is none of`
	// +listType=set
	Set []Part // want `Lists.Set: a list of structs cannot be a set`
	// +listType=map
	Words []string // want `Lists.Words: listType=map is for lists of structs`
	// +listType=map
	Key []Part // want `Lists.Key: listMapKey is missing`
	// +listType=map
	// +listMapKey=name
	Alike []Element // want `Lists.Alike: its elements have no required field`
	// +listType=atomic
	Good []string
}
