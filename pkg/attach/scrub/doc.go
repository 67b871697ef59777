// Package scrub compares the clean blocks of attached volumes' caches with their origins, and
// replaces what the SSD has lost, in writethrough mode (docs/design/states.md, Scrub). What differs is judged by a process
// of its own, the guard, which suspends the volume's device for a moment and resumes it whatever has
// become of the plugin.
package scrub
