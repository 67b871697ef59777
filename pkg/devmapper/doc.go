// Package devmapper drives the kernel's device mapper through dmsetup(8).
//
// Tables and status lines are typed values with a pure build and parse; what
// the kernel expects is stated above each target. [Client] is the interface,
// [New] the real one.
//
// Traps that this package knows and callers need not:
//
//   - Sizes are sectors of 512 bytes everywhere, whatever the device's blocks are.
//   - A table is swapped by load and resume, never by suspend, load, resume: a
//     process that dies after its suspend leaves every user of the device hanging.
//     A load that fails leaves the live table alone.
//   - Devices are named "major:minor" in tables. The kernel resolves a path in
//     its own initial namespace, where a container's /dev does not exist.
//   - The text "No such device or address" of a reload may mean the device, or a
//     device of its table.
//   - A cache's status may be one word, "Fail" or "Error".
//
// Facts rest on Documentation/admin-guide/device-mapper of the kernel.
package devmapper
