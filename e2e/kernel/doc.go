// Package kernel holds the tests of the whole data path on one real kernel:
// nearflash-target's LVM and LIO, the open-iscsi initiator over loopback,
// dm-cache on LVM, filesystems. They have the build tag kernel, need root and
// three empty disks (two SSDs and the storage server's; package guest has their names),
// and are run in a throw-away guest by hack/kernel-ring.sh.
package kernel
