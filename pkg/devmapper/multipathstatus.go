package devmapper

import (
	"fmt"
	"slices"
	"strings"
)

// MultipathStatus is the status of a multipath device (drivers/md/dm-mpath.c,
// multipath_status).
//
//	2 <queues for initialisation> <#initialisations>
//	<#handler args> <handler arg>*
//	<#path groups> <next group>
//	(<group state> <#selector args> <selector arg>*
//	 <#paths> <#path args> (<dev> <A|F> <fail count> <path arg>*)+ )+
//
// It does not say whether I/O waits when no path is left; the live table does
// (MultipathTarget.QueueIfNoPath).
type MultipathStatus struct {
	// Queueing: I/O waits until a group of paths has been initialised.
	Queueing bool
	// Paths of all groups, in the table's order.
	Paths []PathStatus
}

// PathStatus is one path.
type PathStatus struct {
	// Device is "major:minor".
	Device string
	// Active is false after an I/O has failed on the path, or the message
	// fail_path, until the message reinstate_path.
	Active bool
	// Failures counts how often the path has failed.
	Failures uint64
}

// HasPath reports whether any path is active.
func (s MultipathStatus) HasPath() bool {
	return slices.ContainsFunc(s.Paths, func(p PathStatus) bool { return p.Active })
}

// ParseMultipathStatus reads the arguments of a multipath device's status line.
// Errors wrap ErrParse.
func ParseMultipathStatus(params string) (MultipathStatus, error) {
	c := &cursor{words: strings.Fields(params)}
	var s MultipathStatus
	if features := c.list(); len(features) > 0 {
		s.Queueing = features[0] != "0"
	} else {
		c.fail("the state of the queue is missing")
	}
	c.list() // handler
	groups := c.uint()
	c.uint() // the next group
	for ; groups > 0 && c.err == nil; groups-- {
		s.Paths = append(s.Paths, c.pathGroup()...)
	}
	if c.err != nil {
		return MultipathStatus{}, fmt.Errorf("multipath status %q: %w", params, c.err)
	}
	return s, nil
}

// pathGroup reads one group of paths.
func (c *cursor) pathGroup() []PathStatus {
	if state := c.word(); !slices.Contains([]string{"A", "E", "D"}, state) {
		c.fail("group state %q is neither A, E nor D", state)
	}
	c.list() // selector
	var paths []PathStatus
	n, args := c.uint(), c.uint()
	for ; n > 0 && c.err == nil; n-- {
		p := PathStatus{Device: c.word()}
		switch state := c.word(); state {
		case "A":
			p.Active = true
		case "F":
		default:
			c.fail("path state %q is neither A nor F", state)
		}
		p.Failures = c.uint()
		for i := args; i > 0 && c.err == nil; i-- {
			c.word()
		}
		paths = append(paths, p)
	}
	return paths
}
