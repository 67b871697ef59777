// Package lio builds and removes iSCSI targets of the Linux kernel (LIO) through
// configfs, /sys/kernel/config/target.
//
// It is level triggered: [Tree.Ensure] makes the kernel's tree equal to the wanted
// [Target], whatever a crash has left of it, and changes nothing that is right
// already, so that live sessions are not disturbed. [Tree.Remove] removes whatever
// is there.
//
// Everything of this package hangs under one HBA directory of its own
// (core/iblock_26110) and under target names with a common prefix; whatever else
// is in the tree belongs to others and is left alone.
//
// Facts of the kernel the code rests on, each seen on a running one:
//   - removing an initiator's ACL cuts its session; a directory that a symlink
//     points to is busy;
//   - the size of an iblock backstore follows the block device, an initiator sees
//     it after a rescan;
//   - emulate_write_cache cannot be set for iblock: the kernel reports the write
//     cache of the block device itself and passes flushes and FUA on;
//   - the LUN's NAA identifier takes only the first 25 hexadecimal digits of the
//     unit serial, see [WWID].
package lio
