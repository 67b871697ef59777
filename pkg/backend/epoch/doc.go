// Package epoch keeps two clusters off one storage server (docs/design/states.md, "Two
// clusters and one storage server").
//
// A second cluster that was made from a copy of etcd has every name, key and record of
// the first. What tells them apart is outside of etcd: the epoch, a random number on the
// storage server, which each new leader replaces by compare-and-swap. What it is about to
// put there, a cluster records first, in a ConfigMap.
package epoch
