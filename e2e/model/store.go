package model

import "hash/maphash"

// pageStates is how many states a page of a store has.
const pageStates = 1 << 14

// store numbers different states. A state is kept once, in a page that never moves,
// and its number in a table that is probed from its hash on.
type store[W comparable] struct {
	seed  maphash.Seed
	pages [][]W
	n     int
	// table has numbers of states, plus one; 0 is free. Its length is a power of two.
	table []int32
}

func newStore[W comparable]() store[W] {
	return store[W]{seed: maphash.MakeSeed(), table: make([]int32, 1<<16)}
}

func (s *store[W]) len() int { return s.n }

func (s *store[W]) at(i int32) *W { return &s.pages[i/pageStates][i%pageStates] }

// add returns the number of a state, and whether it had one.
func (s *store[W]) add(w W) (at int32, known bool) {
	slot := s.slot(&w)
	if at := s.table[slot]; at != 0 {
		return at - 1, true
	}
	if s.n%pageStates == 0 {
		s.pages = append(s.pages, make([]W, pageStates))
	}
	at = int32(s.n)
	*s.at(at) = w
	s.n++
	s.table[slot] = at + 1
	if s.n > len(s.table)/2 {
		s.grow()
	}
	return at, false
}

// slot is where a state's number is, or belongs.
func (s *store[W]) slot(w *W) uint64 {
	mask := uint64(len(s.table) - 1)
	i := maphash.Comparable(s.seed, *w) & mask
	for s.table[i] != 0 && *s.at(s.table[i] - 1) != *w {
		i = (i + 1) & mask
	}
	return i
}

func (s *store[W]) grow() {
	s.table = make([]int32, 2*len(s.table))
	for at := range int32(s.n) {
		s.table[s.slot(s.at(at))] = at + 1
	}
}
