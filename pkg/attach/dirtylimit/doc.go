// Package dirtylimit keeps writeback caches within the limits that their volumes have for
// what is dirty: so many bytes, and so long (docs/design/states.md, The dirty limit). It
// swaps the live table of a volume that comes near its limit for one under which no block
// becomes dirty, and back. It keeps nothing on disk: the table that is live tells all.
package dirtylimit
