// Package lease is the source node of a warm move: it exports or sends a retained cache, or
// sends one in use, to the one node that the record names, keeps the record of what is written meanwhile,
// and ends the lease (states.md, What the source node does).
package lease
