package model

// guide finds ways to a state in which the volume is of use.
type guide[W comparable, P explorable[W]] struct {
	events []eventOf[W]
	// good are states that lead on.
	good map[W]struct{}
}

func newGuide[W comparable, P explorable[W]](events []eventOf[W]) *guide[W, P] {
	return &guide[W, P]{events: events, good: map[W]struct{}{}}
}

// crumb is a state on the way, and the event that is tried next from there.
type crumb[W comparable] struct {
	w    W
	next int
}

// leads reports whether some way without a chance leads from a state to one of use: depth
// first, because each act that is taken is mostly one on the way. What only chances and
// checks depend on is left out.
func (g *guide[W, P]) leads(w W) bool {
	seen := map[W]struct{}{}
	path := []crumb[W]{{w: P(&w).canonical()}}
	seen[path[0].w] = struct{}{}
	for len(path) > 0 {
		at := &path[len(path)-1]
		if _, known := g.good[at.w]; known || P(&at.w).ofUse() {
			for _, c := range path {
				g.good[c.w] = struct{}{}
			}
			return true
		}
		next, found := g.follow(at, seen)
		if !found {
			path = path[:len(path)-1]
			continue
		}
		seen[next] = struct{}{}
		path = append(path, crumb[W]{w: next})
	}
	return false
}

// follow returns the next state after at that was not seen yet.
func (g *guide[W, P]) follow(at *crumb[W], seen map[W]struct{}) (next W, found bool) {
	for ; at.next < len(g.events); at.next++ {
		e := &g.events[at.next]
		if e.kind == chance {
			continue
		}
		w := at.w
		if _, ok := e.apply(&w); !ok {
			continue
		}
		P(&w).normal()
		if _, was := seen[w]; !was {
			return w, true
		}
	}
	return next, false
}

// canonical is a state without what only chances and checks depend on.
func (w *World) canonical() World {
	c := *w
	c.Left, c.Backup, c.Image = Budget{}, Record{}, Disks{}
	c.Truth = Truth{Unwanted: w.Truth.Unwanted, Owner: w.Truth.Owner, Acked: 1, Origin: 1, Given: 1}
	c.BackupKnown, c.BackupEpochs = Acts{}, Epochs{}
	c.normal()
	for _, n := range nodes {
		c.at(n).SSD.Cached = min(c.at(n).SSD.Cached, 1)
	}
	return c
}
