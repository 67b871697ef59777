// Package faultpoint marks the places between two steps where a test may kill
// the process, so that "kill -9 between any two steps" is a list and not luck.
//
// In an ordinary build Hit does nothing. With the build tag faultpoints, Hit
// looks for a file named like the point in the directory NEARFLASH_FAULT_DIR;
// see faultpoint_on.go.
package faultpoint

import (
	"slices"
	"sync"
)

// Point is one named place. Points are package variables: the set is complete
// before main begins.
type Point struct {
	name string
}

// registry is written by the initialisation of packages only; the lock is for
// tests that declare points of their own.
var registry struct {
	sync.Mutex
	names []string
}

// New declares a point. Names look like "stage.journaled" and are unique; a
// second declaration panics at program start.
func New(name string) Point {
	registry.Lock()
	defer registry.Unlock()
	if name == "" || slices.Contains(registry.names, name) {
		panic("faultpoint: name is empty or taken: " + name)
	}
	registry.names = append(registry.names, name)
	return Point{name: name}
}

// List returns the names of all points of this program, sorted.
func List() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(slices.Values(registry.names))
}

// Name returns the point's name.
func (p Point) Name() string { return p.name }

// Hit passes the point.
func (p Point) Hit() { hit(p.name) }
