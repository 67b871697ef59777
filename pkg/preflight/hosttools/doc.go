// Package hosttools looks whether the host's own tools leave alone what pods write: udev and
// what its rules start (LVM, MD RAID, btrfs, bcache, dmraid), and multipathd.
//
// Facts are gathered ([Host]) and then judged ([Facts.Problems]), which only computes. A volume
// works without all of this, until a pod writes what a tool takes for its own: a volume group in
// a raw block volume, for example, which the host activates and so keeps open.
//
// The one file that it writes is a rule of udev. dmsetup has no option for the flags by which udev
// leaves a device of the device mapper alone (libdevmapper.h, DM_UDEV_DISABLE_DISK_RULES_FLAG),
// and disks of iSCSI have no flags. The rule does not use DM_UDEV_DISABLE_OTHER_RULES_FLAG: at an
// event "add", as `udevadm trigger` makes one for every device, systemd would call a mounted
// device not ready (99-systemd.rules), and may unmount it.
package hosttools
