// Package integrity gives logical volumes checksums (docs/design/states.md, Checksums of what the SSD
// holds): a client of LVM that lays dm-integrity over those that were asked for with checksums. Who
// uses it sees the device with checksums in the place of the logical volume.
package integrity
