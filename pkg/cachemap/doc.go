// Package cachemap is about the map of a dm-cache: which block of the origin each
// block of the cache holds, and how hot it is. It knows three forms of it: the XML
// of cache_dump(8) and cache_restore(8), the origin remap table (a table that shows the
// cached blocks of the origin in the order of the cache), and the hot set (the list
// of blocks that is kept when the cache is gone). See "The warm move" in states.md.
//
// Everything here is pure: nothing is read from or written to a device.
package cachemap
