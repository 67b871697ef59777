// Package devmapper drives the kernel's device mapper through dmsetup(8), and asks
// the control device itself for what cannot wait for a disk: which devices there are,
// the statistics of hundreds of them, and what stops or starts a copy.
//
// Tables and status lines are typed values with a pure build and parse; what
// the kernel expects is stated above each target. [Client] is the interface,
// [New] the real one.
//
// Traps that this package knows and callers need not:
//
//   - Sizes are sectors of 512 bytes everywhere, whatever the device's blocks are.
//
//   - A table is swapped by load and resume, never by suspend, load, resume: a
//     process that dies after its suspend leaves every user of the device hanging.
//     A load that fails leaves the live table alone.
//
//   - Devices are named "major:minor" in tables. The kernel resolves a path in
//     its own initial namespace, where a container's /dev does not exist.
//
//   - The text "No such device or address" of a reload may mean the device, or a
//     device of its table.
//
//   - A cache's status may be one word, "Fail" or "Error".
//
//   - A cache's counters go back when its table is swapped; see [Counters].
//
//   - A region of dm-stats has no identity of its own and does not grow; see
//     [Stats].
//
// Why statistics are read without a process: dmsetup stats lists the regions of
// each device before it prints them one by one in a form for people, and that of
// LVM2 2.03.31 gave up ("Could not parse @stats_list response") on regions with a
// histogram, its own included. One message for each device takes as long as the
// one dmsetup that reads the status of all caches (docs/benchmarks.md). Making a
// region and reading the status of a cache can wait for a disk, and stay with
// dmsetup: a process can be abandoned, a thread of the plugin cannot.
//
// Facts rest on Documentation/admin-guide/device-mapper of the kernel.
package devmapper
