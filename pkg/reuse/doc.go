// Package reuse learns how often a volume reads again what it has read, and predicts from it what
// a cache of any size would answer (a miss-ratio curve). It only computes.
//
// It is fed with what the kernel counts: the reads of each area of the volume, at one look after
// another. A read counts as a read again if its chunk was read before the look that saw it: what is
// read for the first time is a miss for a cache of any size, and so a scan predicts nothing. What
// a cache of some size holds of the rest follows from how often each area is read
// (docs/explanation/measuring.md#what-a-cache-would-answer has the limits).
package reuse
