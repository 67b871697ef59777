// Package kinds breaks the rules of apikinds.
package kinds

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Kinds has types that an API cannot have.
type Kinds struct {
	Flag    bool              // want `Kinds.Flag: a bool cannot get a third value later`
	Pointer *bool             // want `Kinds.Pointer: a bool cannot`
	Ratio   float64           // want `Kinds.Ratio: a float changes on its way`
	Ratios  []float32         // want `Kinds.Ratios: a float`
	Labels  map[string]string // want `Kinds.Labels: a map cannot be extended`
	Wait    metav1.Duration   // want `Kinds.Wait: a duration is written as a number`
	Small   int               // want `Kinds.Small: an integer is int32 or int64, not int`
	Unsign  uint32            // want `Kinds.Unsign: an integer is int32 or int64, not uint32`
	Any     any               // want `Kinds.Any: an interface has no schema`
	Several []*string         // want `Kinds.Several: the elements of a list are no pointers`
	Number  int64
	Text    string
}
