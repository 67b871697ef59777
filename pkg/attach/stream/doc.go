// Package stream fills the cache of a volume that runs meanwhile on its origin, hottest chunks
// first, and has them serve level by level (states.md, The stream). The chunks come from the
// node that had the volume before, or from the origin.
package stream
