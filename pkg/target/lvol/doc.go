// Package lvol keeps the storage server's volumes: thin or thick logical volumes
// of one LVM volume group.
//
// What a volume is stands in its LV tags, so that LVM's own metadata is the only
// record and survives the loss of everything else on the server:
//
//	nearflash.volume=NAME   it is a volume of ours
//	nearflash.gen=N         the highest generation it was exported with
//	nearflash.unzeroed      it may still show old data; it was never reported as created
//	nearflash.deleting      its deletion has begun
//	nearflash.grow=NAME     not a volume: room being zeroed for the growth of NAME
//
// No tenant ever reads what another one wrote. A thin pool must zero newly
// provisioned blocks ([Manager.Open] refuses others). A thick volume is zeroed
// before it is reported as created, and the extents it grows by are zeroed before
// they become part of it, because a volume that is exported shows them at once.
package lvol
