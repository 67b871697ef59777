// Package pool keeps the node's SSD pool: one LVM volume group on the devices
// that the node's CachePool selects. It is the only part of nearflash that puts
// a label on a device, and it takes none that carries anything already.
package pool
