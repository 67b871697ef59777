// Package csi is the backend whose volumes are raw block volumes of other CSI drivers: the
// origin of a volume is a claim in a namespace of our own, which that driver's sidecars serve
// as they serve any other, and a VolumeAttachment of our own admits a node to it.
//
// What an order rests on is kept on the claim, in annotations, and each write of them has a
// precondition on the version that was read: the highest generation ever, and the one
// admission that there is. A volume has one VolumeAttachment at most, since its name is made
// of the volume alone: the API server itself sees to it that no two nodes are attached by us
// (I1 of docs/design/states.md).
//
//	Create   claim, with our finalizer -> bound -> its PersistentVolume on Retain
//	Export   claim: generation and admission -> VolumeAttachment -> attached
//	Unexport VolumeAttachment gone -> claim: no admission
//	Delete   claim: deletion asked for -> PersistentVolume on Delete -> claim deleted -> finalizer
//	Cut      VolumeSnapshot, with our finalizer -> cut by the other driver
//	Accept   VolumeSnapshot: accepted
//
// Killed between any two steps, the same call goes on from what it finds. The order of Export
// and Unexport means that whoever may be attached is on the claim; of Create and Delete, that
// no moment exists in which the end of a claim, or of a namespace, ends data that nobody has
// asked to delete.
//
// The name of the VolumeAttachment is never the canonical one of the kubelet's and
// kube-controller-manager's CSI code, which removes what no pod wants by that name. A
// controller that stalls may create a VolumeAttachment after others have ended its admission:
// it looks at the claim again after that and takes it away, and if it is killed before,
// Access tells of it.
package csi
