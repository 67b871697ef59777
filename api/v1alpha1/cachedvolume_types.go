package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CacheMode selects how writes pass through the node-local cache.
// See Documentation/admin-guide/device-mapper/cache.rst of the kernel.
//
// +kubebuilder:validation:Enum=none;writethrough;writeback
type CacheMode string

const (
	// CacheModeNone attaches the origin without a cache.
	CacheModeNone CacheMode = "none"
	// CacheModeWritethrough acknowledges a write when the origin has it.
	CacheModeWritethrough CacheMode = "writethrough"
	// CacheModeWriteback acknowledges a write when the SSD has it.
	CacheModeWriteback CacheMode = "writeback"
)

// DirtyLoss names the disaster after which acknowledged writes may be lost.
//
// +kubebuilder:validation:Enum=none;node-loss
type DirtyLoss string

const (
	// DirtyLossNone accepts no loss of acknowledged writes.
	DirtyLossNone DirtyLoss = "none"
	// DirtyLossNodeLoss accepts the loss of unflushed writes with the node.
	DirtyLossNodeLoss DirtyLoss = "node-loss"
)

// DirtyState says whether a node's SSD may hold data that the origin lacks.
//
// +kubebuilder:validation:Enum=Clean;PossiblyDirty
type DirtyState string

const (
	// DirtyStateClean means the origin holds every acknowledged write.
	DirtyStateClean DirtyState = "Clean"
	// DirtyStatePossiblyDirty means the owner's SSD may hold newer blocks.
	DirtyStatePossiblyDirty DirtyState = "PossiblyDirty"
)

// PublicationState says whether the owner may attach the volume now.
//
// +kubebuilder:validation:Enum=Published;Released
type PublicationState string

const (
	// PublicationPublished means the owner may have the volume attached.
	PublicationPublished PublicationState = "Published"
	// PublicationReleased means no node is entitled to attach the volume.
	PublicationReleased PublicationState = "Released"
)

// Condition types and reasons of a CachedVolume.
const (
	// ConditionCached is True while reads are served through the SSD cache.
	ConditionCached = "Cached"

	ReasonCacheActive         = "CacheActive"
	ReasonModeNone            = "ModeNone"
	ReasonDetached            = "Detached"
	ReasonPoolMissing         = "PoolMissing"
	ReasonPoolFull            = "PoolFull"
	ReasonKernelTargetMissing = "KernelTargetMissing"
	ReasonCacheDeviceError    = "CacheDeviceError"
)

// VolumeFinalizer keeps a CachedVolume while its PersistentVolume may be used,
// so that deleting the object by hand cannot forget an owner or dirty data.
const VolumeFinalizer = "nearflash.io/volume"

// ISCSISource is an iSCSI logical unit.
type ISCSISource struct {
	// portals lists the target's portals as "address:port".
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=261
	Portals []string `json:"portals,omitempty"`

	// iqn is the target's iSCSI qualified name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=223
	IQN string `json:"iqn,omitempty"`

	// lun is the logical unit number.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16383
	LUN *int32 `json:"lun,omitempty"`
}

// CachedVolumeSpec is what the StorageClass or the PersistentVolume asked for.
type CachedVolumeSpec struct {
	// backend names the driver of the origin.
	// +required
	// +kubebuilder:validation:Enum=iscsi
	Backend string `json:"backend,omitempty"`

	// static is the logical unit of a volume that was not provisioned by
	// nearflash. It is absent for volumes made by nearflash-target.
	// +optional
	Static *ISCSISource `json:"static,omitempty"`

	// capacityBytes is the size of the origin in bytes; 0 for a static volume
	// whose size only its target knows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CapacityBytes *int64 `json:"capacityBytes,omitempty"`

	// provisioning selects how nearflash-target allocates the volume.
	// +optional
	// +kubebuilder:validation:Enum=thin;thick
	Provisioning string `json:"provisioning,omitempty"`

	// cacheMode selects how writes pass through the cache.
	// +required
	CacheMode CacheMode `json:"cacheMode,omitempty"`

	// cacheSize is the size of the cache: a quantity of bytes ("10Gi") or a
	// percentage of the volume ("10%").
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	CacheSize string `json:"cacheSize,omitempty"`

	// chunkSizeBytes is the size of a cache block in bytes, a multiple of
	// 32768; 0 lets the node choose by the size of the cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1073741824
	ChunkSizeBytes *int64 `json:"chunkSizeBytes,omitempty"`

	// acceptDirtyLoss is the consent that writeback needs.
	// +optional
	AcceptDirtyLoss DirtyLoss `json:"acceptDirtyLoss,omitempty"`

	// claimRef names the claim that the volume was made for.
	// +optional
	ClaimRef *ClaimReference `json:"claimRef,omitempty"`
}

// ClaimReference names a PersistentVolumeClaim.
type ClaimReference struct {
	// namespace of the claim.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// name of the claim.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// Residency is a clean cache that a node keeps after the volume left it.
type Residency struct {
	// nodeName is the node that keeps the cache.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`

	// generation is the ownership generation that filled the cache. The cache
	// may be used again only while this equals status.generation.
	// +required
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation,omitempty"`

	// sizeBytes is the SSD space that the cache occupies, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SizeBytes *int64 `json:"sizeBytes,omitempty"`

	// lastUsedTime is when the volume left the node.
	// +optional
	LastUsedTime metav1.Time `json:"lastUsedTime,omitempty,omitzero"`
}

// CachedVolumeStatus is the durable fence of a volume; docs/design/states.md
// states the invariants that rest on it.
type CachedVolumeStatus struct {
	// generation counts changes of ownership. It grows by one whenever the
	// volume is published to a node other than the last owner.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Generation *int64 `json:"generation,omitempty"`

	// ownerNode is the last node that was entitled to write.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OwnerNode string `json:"ownerNode,omitempty"`

	// publication says whether the owner may have the volume attached.
	// +optional
	Publication PublicationState `json:"publication,omitempty"`

	// dirtyState is PossiblyDirty from before a writeback cache is activated
	// until its flush is proven.
	// +optional
	DirtyState DirtyState `json:"dirtyState,omitempty"`

	// residency lists the nodes that keep a clean cache of the volume.
	// +optional
	// +listType=map
	// +listMapKey=nodeName
	// +kubebuilder:validation:MaxItems=64
	Residency []Residency `json:"residency,omitempty"`

	// conditions report what the volume's cache is doing.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CachedVolume is the durable record of one volume: what was asked for, which
// node owns it, and where warm caches of it are kept.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cvol,categories=nearflash
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.cacheMode`
// +kubebuilder:printcolumn:name="Cache",type=string,JSONPath=`.spec.cacheSize`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.status.ownerNode`
// +kubebuilder:printcolumn:name="Gen",type=integer,JSONPath=`.status.generation`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.publication`
// +kubebuilder:printcolumn:name="Dirty",type=string,JSONPath=`.status.dirtyState`
// +kubebuilder:printcolumn:name="Cached",type=string,JSONPath=`.status.conditions[?(@.type=="Cached")].reason`
// +kubebuilder:printcolumn:name="Namespace",type=string,priority=1,JSONPath=`.spec.claimRef.namespace`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.spec.claimRef.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CachedVolume struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is what was asked for.
	// +required
	Spec CachedVolumeSpec `json:"spec,omitzero"`

	// status is the observed state and the fence.
	// +optional
	Status CachedVolumeStatus `json:"status,omitempty,omitzero"`
}

// CachedVolumeList is a list of CachedVolumes.
//
// +kubebuilder:object:root=true
type CachedVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the volumes.
	// +required
	Items []CachedVolume `json:"items"`
}
