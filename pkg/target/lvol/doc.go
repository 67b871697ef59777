// Package lvol keeps the storage server's volumes: thin or thick logical volumes
// of one LVM volume group.
//
// What a volume is stands in its LV tags, so that LVM's own metadata is the only
// record and survives the loss of everything else on the server:
//
//	nearflash.volume=NAME   it is a volume of ours
//	nearflash.gen=N         the highest generation it was exported with
//	nearflash.unzeroed      it may still show old data, or have less than its size;
//	                        it was never reported as created
//	nearflash.deleting      its deletion has begun
//	nearflash.grow=NAME     not a volume: room being zeroed for the growth of NAME
//	nearflash.from=NAME     the volume began as this snapshot
//
// So it is of a snapshot, which is a thin logical volume that is never active:
//
//	nearflash.snapshot=NAME     it is a snapshot of ours
//	nearflash.of=VOLUME         what it was made of
//	nearflash.hold=TEXT         the caller's, as nearflash.filesystem=TEXT
//	nearflash.created=TIME      when, by this machine's clock
//	nearflash.cutting           its content may not be fixed yet; it was never reported as made
//	nearflash.accepted          the caller has accepted it
//
// No tenant ever reads what another one wrote. A thin pool must zero newly
// provisioned blocks ([Manager.Open] refuses others). A thick volume is zeroed
// before it is reported as created, and the extents it grows by are zeroed before
// they become part of it, because a volume that is exported shows them at once.
package lvol
