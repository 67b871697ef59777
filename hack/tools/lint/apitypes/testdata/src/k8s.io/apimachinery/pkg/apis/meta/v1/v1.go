// Package v1 has the names of the real one that the rules know.
package v1

type TypeMeta struct{}

type ObjectMeta struct{}

type ListMeta struct{}

type Time struct{}

type Duration struct{}

type Condition struct{}
