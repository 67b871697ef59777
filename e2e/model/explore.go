// Package model explores the decisions of docs/design/states.md in an abstract
// world: two nodes with an SSD each, disks out of the past, a record, a storage
// server, an API server that forgets, a second cluster that has a copy of it, and
// one block of data. It drives the production decision functions, breadth first,
// with every other event between any two of their acts.
//
// Snapshots have a world of their own, Cutting: one node and two blocks, whose order tells
// whether a snapshot is crash-consistent.
//
// What it does not have: sizes, timing, more blocks, warm moves.
package model

import (
	"fmt"
	"strings"
)

// explorable is a state of a world, by its pointer.
type explorable[W comparable] interface {
	*W
	// normal gives names that are random the lowest ones that say the same.
	normal()
	// busy is a node whose next act is seen by nobody else, if there is one.
	busy() Node
	// ofUse tells a state that is as users want it.
	ofUse() bool
	// canonical is the state without what only chances and checks depend on.
	canonical() W
}

// event is one of World.
type event = eventOf[World]

// eventOf is one thing that may happen next. apply returns the violation of an
// invariant that it is, or "". An event that cannot happen returns ok false.
type eventOf[W comparable] struct {
	name  string
	apply func(*W) (violation string, ok bool)
	kind  kind
	// on is the node that alone is concerned, if it is one.
	on Node
}

// kind tells what an event costs those who use the volume.
type kind uint8

const (
	// ordinary is the work of the programs, of the kernel and of Kubernetes.
	ordinary kind = iota
	// remedy is what a document asks an administrator to do.
	remedy
	// chance is bounded by the world's Budget: disasters, and what pods do.
	chance
)

// Result is what an exploration has found.
type Result[W comparable] struct {
	// States is the number of different states, Depth that of the longest shortest
	// way to one. Exhausted is true if no state was left to look at.
	States, Depth int
	Exhausted     bool
	// Beyond is how many more states were looked at only for whether they lead on.
	Beyond int
	// Violation is the first one, "" if there was none; Trace leads to it by a shortest way.
	Violation string
	Trace     []string
	// Last is the state that the trace leads to.
	Last W
}

func (r Result[W]) String() string {
	s := fmt.Sprintf("%d states, depth %d, exhausted %t, %d beyond", r.States, r.Depth, r.Exhausted, r.Beyond)
	if r.Violation != "" {
		s += "\n" + r.Violation + "\n  " + strings.Join(folded(r.Trace), "\n  ") + fmt.Sprintf("\n%+v", r.Last)
	}
	return s
}

// explorer keeps each state once, with the state and the event that it was first
// reached by.
type explorer[W comparable, P explorable[W]] struct {
	events []eventOf[W]
	states store[W]
	parent []int32
	by     []uint8
	// from and to are the steps that need no chance: each leads from a state to another.
	from, to []int32
}

// explore goes on until limit states are known, all are, or an invariant is broken.
// Then it sees whether each of them leads on: whether some way without a chance leads
// to a state in which the volume is of use. Of those whose ways were not looked at any
// more, what only chances and checks depend on is left out for that.
func explore[W comparable, P explorable[W]](start W, events []eventOf[W], limit int) Result[W] {
	x := &explorer[W, P]{events: events, states: newStore[W]()}
	x.add(start, -1, 0)
	r := Result[W]{}
	at, end := 0, 1 // end of the states of this depth
	for ; at < x.states.len() && x.states.len() < limit; at++ {
		if at == end {
			r.Depth, end = r.Depth+1, x.states.len()
		}
		if violation, by := x.expand(int32(at)); violation != "" {
			return x.violated(r, violation, int32(at), by)
		}
	}
	r.States, r.Exhausted = x.states.len(), at == x.states.len()
	g := newGuide[W, P](events)
	bad := at
	for bad < r.States && g.leads(*x.states.at(int32(bad))) {
		bad++
	}
	r.Beyond = len(g.good)
	if at, stuck := x.stuck(int32(at), int32(bad)); stuck {
		return x.violated(r, Stuck, at, -1)
	}
	return r
}

func (x *explorer[W, P]) violated(r Result[W], violation string, at int32, by int) Result[W] {
	r.States, r.Violation, r.Last = x.states.len(), violation, *x.states.at(at)
	r.Trace = x.trace(at)
	if by >= 0 {
		r.Trace = append(r.Trace, x.events[by].name)
	}
	return r
}

func (x *explorer[W, P]) add(w W, parent int32, by int) int32 {
	at, known := x.states.add(w)
	if !known {
		x.parent, x.by = append(x.parent, parent), append(x.by, uint8(by))
	}
	return at
}

// expand adds what may follow a state. If a node is about to do what nobody else sees,
// what others do may as well come after it.
func (x *explorer[W, P]) expand(at int32) (violation string, by int) {
	only := P(x.states.at(at)).busy()
	for i := range x.events {
		e := &x.events[i]
		if only != NoNode && e.on != only {
			continue
		}
		w := *x.states.at(at)
		violation, ok := e.apply(&w)
		if violation != "" {
			return violation, i
		}
		if !ok {
			continue
		}
		P(&w).normal()
		next := x.add(w, at, i)
		if e.kind != chance {
			x.step(at, next)
		}
	}
	return "", 0
}

func (x *explorer[W, P]) step(from, to int32) {
	if from != to {
		x.from, x.to = append(x.from, from), append(x.to, to)
	}
}

func (x *explorer[W, P]) trace(at int32) []string {
	var out []string
	for ; x.parent[at] >= 0; at = x.parent[at] {
		out = append(out, x.events[x.by[at]].name)
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// stuck returns the first state from which no state of use can be reached. Of those from
// open on, whose ways were not looked at, all lead on but the one of number bad, if there
// is one.
func (x *explorer[W, P]) stuck(open, bad int32) (int32, bool) {
	n := x.states.len()
	// The states before each one, as ranges of a list: before[first[s]:first[s+1]].
	first, before := make([]int32, n+2), make([]int32, len(x.to))
	for _, to := range x.to {
		first[to+2]++
	}
	for i := 2; i < len(first); i++ {
		first[i] += first[i-1]
	}
	for i, to := range x.to {
		before[first[to+1]] = x.from[i]
		first[to+1]++
	}
	leads := make([]bool, n)
	var queue []int32
	for at := range int32(n) {
		if at >= open && at != bad || P(x.states.at(at)).ofUse() {
			leads[at] = true
			queue = append(queue, at)
		}
	}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, b := range before[first[at]:first[at+1]] {
			if !leads[b] {
				leads[b] = true
				queue = append(queue, b)
			}
		}
	}
	for at := range int32(n) {
		if !leads[at] {
			return at, true
		}
	}
	return 0, false
}
