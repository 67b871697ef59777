// Package target is nearflash-target, the storage server: it creates logical
// volumes on a plain Linux machine and exports them with the kernel's iSCSI
// target. Clients use package targetclient.
//
// Layers: Server (gRPC, the only place with status codes) calls Service (rules,
// locks, order of steps), which uses lvol (LVM), exportstate (who may log in) and
// lio (the kernel's target tree).
//
// Rules the Service keeps:
//
//   - What is wanted is durable before it is done: exports in exportstate, a
//     volume's stage and generation in its LV tags. Every call and every start
//     makes the kernel equal to what is wanted, so it does not matter between
//     which two steps the process was killed.
//   - A volume is exported to one initiator at a time, and never with a generation
//     smaller than one used before: an outdated caller (a restored backup of the
//     Kubernetes API, a controller that was cut off) cannot take a volume back.
//   - Each export is an admission of its own, with a name. Whoever ends it names it, so
//     that an order that comes late ends no later admission of the same initiator.
//   - Once a cluster has set an epoch, only calls with it change anything.
//   - An exported volume is never deleted.
//   - A snapshot is done when LVM has said so, and a volume of one is offered when it has
//     its size: what was interrupted before is removed.
//   - No tenant reads another one's data: see lvol.
//
// An operation goes on when its caller has given up (zeroing takes long); the next
// call for the volume waits for it. Stopping the server does not end exports: the
// kernel serves them, and the next start takes them over.
package target
