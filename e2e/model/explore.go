// Package model explores the decisions of docs/design/states.md in an abstract
// world: two nodes with an SSD each, a record, a storage server, an API server
// that may be set back, and one block of data. It drives the production decision
// functions, breadth first, with every other event between any two of their acts.
//
// What it does not have: sizes, timing, more than one block, warm moves.
package model

import (
	"fmt"
	"strings"
)

// event is one thing that may happen next. apply returns the violation of an
// invariant that it is, or "". An event that cannot happen returns ok false.
type event struct {
	name  string
	apply func(*World) (violation string, ok bool)
}

// Result is what an exploration has found.
type Result struct {
	// States is the number of different states, Depth that of the longest shortest
	// way to one. Exhausted is true if no state was left to look at.
	States, Depth int
	Exhausted     bool
	// Violation is the first one, "" if there was none; Trace leads to it by a shortest way.
	Violation string
	Trace     []string
	// Stuck is a state from which no way leads to rest, with Trace to it; only
	// looked for if the exploration was exhaustive and without a violation.
	Stuck string
}

func (r Result) String() string {
	s := fmt.Sprintf("%d states, depth %d, exhausted %v", r.States, r.Depth, r.Exhausted)
	for _, problem := range []string{r.Violation, r.Stuck} {
		if problem != "" {
			s += "\n" + problem + "\n  " + strings.Join(r.Trace, "\n  ")
		}
	}
	return s
}

// explorer keeps each state once, with the state and the event that it was first
// reached by.
type explorer struct {
	events []event
	index  map[World]int32
	states []World
	parent []int32
	by     []uint16
	depth  []uint16
	// next are the numbers of the states that follow each one; kept for Stuck.
	next [][]int32
}

// explore goes on until limit states are known, all are, or an invariant is broken.
func explore(start World, events []event, limit int) Result {
	x := &explorer{events: events, index: map[World]int32{}}
	x.add(start, -1, 0)
	for at := 0; at < len(x.states); at++ {
		if len(x.states) >= limit {
			return Result{States: len(x.states), Depth: int(x.depth[at])}
		}
		if violation, by := x.expand(int32(at)); violation != "" {
			return Result{States: len(x.states), Depth: int(x.depth[at]), Violation: violation,
				Trace: append(x.trace(int32(at)), events[by].name)}
		}
	}
	r := Result{States: len(x.states), Depth: int(x.depth[len(x.depth)-1]), Exhausted: true}
	if at, stuck := x.stuck(); stuck {
		r.Stuck, r.Trace = fmt.Sprintf("no way leads to rest from %+v", x.states[at]), x.trace(at)
	}
	return r
}

func (x *explorer) add(w World, parent int32, by int) int32 {
	if at, known := x.index[w]; known {
		return at
	}
	at, depth := int32(len(x.states)), uint16(0)
	if parent >= 0 {
		depth = x.depth[parent] + 1
	}
	x.index[w] = at
	x.states, x.parent, x.by = append(x.states, w), append(x.parent, parent), append(x.by, uint16(by))
	x.depth, x.next = append(x.depth, depth), append(x.next, nil)
	return at
}

// expand adds what may follow a state.
func (x *explorer) expand(at int32) (violation string, by int) {
	for i, e := range x.events {
		w := x.states[at]
		violation, ok := e.apply(&w)
		if violation != "" {
			return violation, i
		}
		if ok {
			x.next[at] = append(x.next[at], x.add(w, at, i))
		}
	}
	return "", 0
}

func (x *explorer) trace(at int32) []string {
	var out []string
	for ; x.parent[at] >= 0; at = x.parent[at] {
		out = append([]string{x.events[x.by[at]].name}, out...)
	}
	return out
}

// stuck returns a state from which no state at rest can be reached.
func (x *explorer) stuck() (int32, bool) {
	before := make([][]int32, len(x.states))
	for at, next := range x.next {
		for _, n := range next {
			before[n] = append(before[n], int32(at))
		}
	}
	leads := make([]bool, len(x.states))
	var queue []int32
	for at := range x.states {
		if x.states[at].atRest() {
			leads[at] = true
			queue = append(queue, int32(at))
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, b := range before[queue[0]] {
			if !leads[b] {
				leads[b] = true
				queue = append(queue, b)
			}
		}
	}
	for at := range leads {
		if !leads[at] {
			return int32(at), true
		}
	}
	return 0, false
}
