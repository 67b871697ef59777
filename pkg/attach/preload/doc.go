// Package preload fills the cache of an attached volume on demand, by reading what is to be cached until
// the kernel has taken it in (docs/design/states.md, Preload on demand).
package preload
