// Package cachefault notices caches whose SSD fails, and has their volumes go on without
// them (docs/design/states.md, The cache device fails). It asks the kernel and the SSDs, and
// decides; what is done to a volume is its Host's. It keeps nothing on disk.
package cachefault
