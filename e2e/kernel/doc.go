// Package kernel holds the tests of the whole data path on one real kernel:
// nearflash-target's LVM and LIO, the open-iscsi initiator over loopback,
// dm-cache on LVM, filesystems. They have the build tag kernel, need root and
// empty disks /dev/ubdb, /dev/ubdc (SSDs) and /dev/ubdd (storage server), and
// are run in a throw-away guest by hack/kernel-ring.sh.
package kernel
