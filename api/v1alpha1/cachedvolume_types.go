package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// FilesystemState says whether the volume's filesystem was ever made.
//
// +kubebuilder:validation:Enum=NeverFormatted;Formatting;Formatted
type FilesystemState string

const (
	// FilesystemNeverFormatted means that nothing was ever written to the volume.
	FilesystemNeverFormatted FilesystemState = "NeverFormatted"
	// FilesystemFormatting means that the owner may have begun to make a filesystem,
	// which nobody has mounted yet.
	FilesystemFormatting FilesystemState = "Formatting"
	// FilesystemFormatted means that the volume has, or may have, content.
	FilesystemFormatted FilesystemState = "Formatted"
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

// CacheHealth is what the kernel says of an active cache.
//
// +kubebuilder:validation:Enum=Healthy;ReadOnly;NeedsCheck;Failed
type CacheHealth string

// The three ways in which a cache can be ill are separate states of the kernel
// (Documentation/admin-guide/device-mapper/cache.rst, Status).
const (
	CacheHealthy    CacheHealth = "Healthy"
	CacheReadOnly   CacheHealth = "ReadOnly"
	CacheNeedsCheck CacheHealth = "NeedsCheck"
	CacheFailed     CacheHealth = "Failed"
)

// VolumeFinalizer keeps a CachedVolume while its PersistentVolume may be used,
// so that deleting the object by hand cannot forget an owner or dirty data.
const VolumeFinalizer = "nearflash.io/volume"

// ISCSISource is an iSCSI LUN.
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
// cacheMode, cacheSize, maxCacheSize, acceptDirtyLoss, redundancy, maxDirtyBytes, maxDirtyAgeSeconds, warmStart,
// flushRequest, scrubRequest, preload and the request to prewarm may be changed while the volume is attached.
//
// +kubebuilder:validation:XValidation:rule="self.cacheMode != 'writeback' || (has(self.acceptDirtyLoss) && self.acceptDirtyLoss == 'node-loss')",message="cacheMode writeback loses acknowledged writes when a node is lost before they are flushed: acceptDirtyLoss must be node-loss"
// +kubebuilder:validation:XValidation:rule="self.cacheMode != 'writeback-unsafe' || (has(self.acceptDirtyLoss) && self.acceptDirtyLoss == 'power-loss')",message="cacheMode writeback-unsafe loses writes that the application has flushed, in any order, with the power of a node: acceptDirtyLoss must be power-loss"
// +kubebuilder:validation:XValidation:rule="self.cacheMode == 'none' || has(self.cacheSize)",message="cacheMode other than none needs a cacheSize"
// +kubebuilder:validation:XValidation:rule="self.backend == oldSelf.backend",message="backend cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.target) == has(oldSelf.target) && (!has(self.target) || self.target == oldSelf.target)",message="target cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(self.target) || (self.backend == 'iscsi' && !has(self.static))",message="target goes with volumes of nearflash-target alone"
// +kubebuilder:validation:XValidation:rule="(self.backend == 'csi') == has(self.origin)",message="origin goes with backend csi"
// +kubebuilder:validation:XValidation:rule="self.backend != 'csi' || !(has(self.static) || has(self.provisioning))",message="static and provisioning do not go with backend csi"
// +kubebuilder:validation:XValidation:rule="has(self.origin) == has(oldSelf.origin)",message="origin cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.parent) == has(oldSelf.parent) && (!has(self.parent) || self.parent == oldSelf.parent)",message="parent cannot be changed"
// +kubebuilder:validation:XValidation:rule="!(has(self.parent) && has(self.static))",message="parent does not go with static"
// +kubebuilder:validation:XValidation:rule="has(self.static) == has(oldSelf.static) && (!has(self.static) || self.static == oldSelf.static)",message="static cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.provisioning) == has(oldSelf.provisioning) && (!has(self.provisioning) || self.provisioning == oldSelf.provisioning)",message="provisioning cannot be changed"
// +kubebuilder:validation:XValidation:rule="(has(self.chunkSizeBytes) ? self.chunkSizeBytes : 0) == (has(oldSelf.chunkSizeBytes) ? oldSelf.chunkSizeBytes : 0)",message="chunkSizeBytes cannot be changed"
// +kubebuilder:validation:XValidation:rule="has(self.prewarmNode) == has(self.prewarmRequest)",message="prewarmNode and prewarmRequest go together"
type CachedVolumeSpec struct {
	// backend says where the origin is: iscsi is a LUN, csi a volume of another driver.
	// +required
	// +kubebuilder:validation:Enum=iscsi;csi
	Backend string `json:"backend,omitempty"`

	// target is the name of the storage server that the volume lies on; absent for the default one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=58
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	Target string `json:"target,omitempty"`

	// origin is the volume of another driver, with backend csi.
	// +optional
	Origin *OriginSource `json:"origin,omitempty"`

	// parent is what the volume was made from; absent for one that began empty.
	// +optional
	Parent *VolumeParent `json:"parent,omitempty"`

	// static is the LUN of a volume that was not provisioned by
	// nearflash. It is absent for volumes made by nearflash-target.
	// +optional
	Static *ISCSISource `json:"static,omitempty"`

	// capacityBytes is the size of the origin in bytes; 0 for a static volume
	// whose size only its target knows.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	CapacityBytes *int64 `json:"capacityBytes,omitempty"`

	// provisioning selects how nearflash-target allocates the volume.
	// +optional
	// +kubebuilder:validation:Enum=thin;thick
	Provisioning string `json:"provisioning,omitempty"`

	// cacheMode selects how writes pass through the cache.
	// +required
	// +kubebuilder:validation:Enum=none;writethrough;writeback;writeback-unsafe
	CacheMode CacheMode `json:"cacheMode,omitempty"`

	// cacheSize is the size of the cache: a quantity of bytes ("10Gi") or a
	// percentage of the volume ("10%"). It is kept, without effect, while cacheMode
	// is none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([1-9][0-9]?|100)%$') || (self.matches('^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$') && quantity(self).isGreaterThan(quantity('0')) && quantity(self).isLessThan(quantity('4Ei')) && double(int(quantity(self).asApproximateFloat())) == quantity(self).asApproximateFloat())",message="cacheSize must be a whole number of bytes, such as 10Gi or 1.5Gi, or 1% to 100%"
	CacheSize string `json:"cacheSize,omitempty"`

	// maxCacheSize is the most that the cache has, a quantity of bytes ("50Gi"); a larger
	// cacheSize is cut down to it. Absent is no maximum.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$') && quantity(self).isGreaterThan(quantity('0')) && quantity(self).isLessThan(quantity('4Ei')) && double(int(quantity(self).asApproximateFloat())) == quantity(self).asApproximateFloat()",message="maxCacheSize must be a whole number of bytes, such as 50Gi or 1.5Gi"
	MaxCacheSize string `json:"maxCacheSize,omitempty"`

	// chunkSizeBytes is the size of a cache block in bytes, a multiple of
	// 32768; 0 lets the node choose by the size of the cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1073741824
	// +kubebuilder:validation:MultipleOf=32768
	ChunkSizeBytes *int64 `json:"chunkSizeBytes,omitempty"`

	// acceptDirtyLoss is the consent that a mode needs: node-loss that of writeback,
	// power-loss that of writeback-unsafe.
	// +optional
	AcceptDirtyLoss DirtyLoss `json:"acceptDirtyLoss,omitempty"`

	// redundancy mirror asks for a cache with two copies on different SSDs: on a node whose pool
	// has one SSD the volume has no cache. It is kept, without effect, while cacheMode is none;
	// none, or absent, leaves it to the pool.
	// +optional
	Redundancy Redundancy `json:"redundancy,omitempty"`

	// maxDirtyBytes bounds what a writeback cache holds that the origin does not: a
	// quantity of bytes ("2Gi") or a percentage of the cache ("10%"). Near it, the node
	// lets writes through to the origin until enough was flushed. It is kept, without
	// effect, while cacheMode is another; absent is no limit but the cache's size.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([1-9][0-9]?|100)%$') || (self.matches('^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$') && quantity(self).isLessThan(quantity('4Ei')) && double(int(quantity(self).asApproximateFloat())) == quantity(self).asApproximateFloat() && quantity(self).compareTo(quantity('16Mi')) >= 0)",message="maxDirtyBytes must be a whole number of bytes of at least 16Mi, such as 2Gi or 1.5Gi, or 1% to 100%"
	MaxDirtyBytes string `json:"maxDirtyBytes,omitempty"`

	// maxDirtyAgeSeconds is after how many seconds without a moment in which nothing
	// was dirty a writeback cache is flushed, at least 10. It is kept, without effect,
	// while cacheMode is another; 0 or absent is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 10",message="maxDirtyAgeSeconds must be 0 or at least 10"
	MaxDirtyAgeSeconds *int32 `json:"maxDirtyAgeSeconds,omitempty"`

	// warmStart says how a cache is filled when the volume comes to a node that has
	// none of its own. It is kept, without effect, while cacheMode is none.
	// +optional
	WarmStart WarmStart `json:"warmStart,omitempty,omitzero"`

	// flushRequest asks the node to write every dirty block to the origin while
	// the volume stays attached. Each new value is one request; the node repeats
	// it in status.flush when that is done.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	FlushRequest string `json:"flushRequest,omitempty"`

	// preload asks the node to fill the cache with what the volume has, while it stays
	// attached. Each new request is one preload; taking it away ends one that goes on.
	// +optional
	Preload *PreloadRequest `json:"preload,omitempty"`

	// scrubRequest asks for a comparison of the cache with the origin, as flushRequest for a flush.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ScrubRequest string `json:"scrubRequest,omitempty"`

	// prewarmNode is a node to which the cache is copied, while the volume
	// stays attached where it is: a move to that node then begins with it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PrewarmNode string `json:"prewarmNode,omitempty"`

	// prewarmRequest names the request for prewarmNode. Each new value is one copy; the
	// CacheMigration of the copy repeats it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	PrewarmRequest string `json:"prewarmRequest,omitempty"`

	// hold is there while a snapshot or a clone of the volume is made: the volume runs in
	// writethrough mode until it is gone. The controller writes it, and ends it ten minutes
	// after the last call for it; it may be removed by hand.
	// +optional
	Hold *VolumeHold `json:"hold,omitempty"`

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

// CacheStatus is what the owner last reported of the attached volume's cache. It
// is written when something of it changed materially, and at most every 30
// seconds.
type CacheStatus struct {
	// mode is the mode that is loaded in the kernel: passthrough while a stream brings the
	// cache and nothing of it serves yet.
	// +required
	// +kubebuilder:validation:Enum=none;writethrough;writeback;writeback-unsafe;passthrough
	Mode CacheMode `json:"mode,omitempty"`

	// health is what the kernel says of the cache.
	// +optional
	Health CacheHealth `json:"health,omitempty"`

	// sizeBytes is the size of the cache in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	SizeBytes *int64 `json:"sizeBytes,omitempty"`

	// usedBytes of the cache hold data.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	UsedBytes *int64 `json:"usedBytes,omitempty"`

	// dirtyBytes are those that the origin does not have yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	DirtyBytes *int64 `json:"dirtyBytes,omitempty"`

	// dirty is dirtyBytes, rounded, for people: "128Mi".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	Dirty string `json:"dirty,omitempty"`

	// dirtySinceTime is when the cache was last seen without a dirty block: no
	// unflushed write is older. It is absent while nothing is dirty.
	// +optional
	DirtySinceTime metav1.Time `json:"dirtySinceTime,omitempty,omitzero"`

	// hitRate is how much the cache answered.
	// +optional
	HitRate HitRate `json:"hitRate,omitempty,omitzero"`

	// performance is what the volume's devices did in the last minute.
	// +optional
	Performance Performance `json:"performance,omitempty,omitzero"`

	// reuse is what caches of other sizes would answer.
	// +optional
	Reuse Reuse `json:"reuse,omitempty,omitzero"`

	// observedTime is when the node read this from the kernel.
	// +optional
	ObservedTime metav1.Time `json:"observedTime,omitempty,omitzero"`
}

// CachedVolumeStatus is the durable fence of a volume; docs/design/states.md
// states the invariants that rest on it.
type CachedVolumeStatus struct {
	// generation counts changes of ownership. It grows by one whenever the
	// volume is published to a node other than the last owner.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation *int64 `json:"generation,omitempty"`

	// ownerNode is the last node that was entitled to write; "*" of a volume that the nodes in
	// readers read, and nobody writes.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OwnerNode string `json:"ownerNode,omitempty"`

	// readers are the nodes that may have the volume attached to read it, while ownerNode is "*".
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Readers []string `json:"readers,omitempty"`

	// publication says whether the owner may have the volume attached.
	// +optional
	Publication PublicationState `json:"publication,omitempty"`

	// takeover is the last takeover of the storage server since which the controller has
	// compared the record with whom the server admits: the epoch that it replaced. A record
	// out of an older backup has another one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Takeover string `json:"takeover,omitempty"`

	// dirtyState is PossiblyDirty from before a writeback cache is activated
	// until its flush is proven.
	// +optional
	DirtyState DirtyState `json:"dirtyState,omitempty"`

	// filesystem says whether the volume may be formatted: only while it is
	// NeverFormatted or Formatting. Absent means Formatted.
	// +optional
	Filesystem FilesystemState `json:"filesystem,omitempty"`

	// activation is the last stage that made the devices of the volume. A cache of another
	// one is not used again, and its unflushed writes are not flushed.
	// +optional
	Activation Activation `json:"activation,omitempty,omitzero"`

	// pendingActivation is a stage that is about to do so.
	// +optional
	PendingActivation Activation `json:"pendingActivation,omitempty,omitzero"`

	// abandoned lists the writes that were abandoned, the newest last. What may be lost
	// stays lost: nothing of the driver removes an entry but a ninth one.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Abandoned []AbandonedWrites `json:"abandoned,omitempty"`

	// retainedCaches lists the nodes that keep a clean cache of the volume.
	// +optional
	// +listType=map
	// +listMapKey=nodeName
	// +kubebuilder:validation:MaxItems=64
	RetainedCaches []RetainedCache `json:"retainedCaches,omitempty"`

	// residency is what retainedCaches was in versions before, which do not start where
	// it is unknown. Nothing else reads or writes it.
	// +optional
	// +listType=map
	// +listMapKey=nodeName
	// +kubebuilder:validation:MaxItems=64
	Residency []RetainedCache `json:"residency,omitempty"`

	// warmSource is the cache that the owner may start from. It is set with a new
	// owner and withdrawn by it before it activates the volume, because from then
	// on the origin may be newer.
	// +optional
	WarmSource WarmSource `json:"warmSource,omitempty,omitzero"`

	// cache is what the owner last reported of the cache; absent while the volume
	// is not attached, unless the owner may hold unflushed writes.
	// +optional
	Cache CacheStatus `json:"cache,omitempty,omitzero"`

	// flush is the last flush that was asked for and is done.
	// +optional
	Flush FlushStatus `json:"flush,omitempty,omitzero"`

	// preload is how far the last preload is that was asked for.
	// +optional
	Preload PreloadStatus `json:"preload,omitempty,omitzero"`

	// scrub is the last comparison of a cache with the origin that is done.
	// +optional
	Scrub ScrubStatus `json:"scrub,omitempty,omitzero"`

	// freeze is the last answer to a request to freeze the filesystem.
	// +optional
	Freeze FreezeStatus `json:"freeze,omitempty,omitzero"`

	// persistentVolumeName is the PersistentVolume that refers to the volume.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PersistentVolumeName string `json:"persistentVolumeName,omitempty"`

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
// +kubebuilder:selectablefield:JSONPath=`.status.ownerNode`
// +kubebuilder:selectablefield:JSONPath=`.spec.prewarmNode`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.claimRef.namespace`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.spec.claimRef.name`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.cacheMode`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.spec.cacheSize`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.status.ownerNode`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.publication`
// +kubebuilder:printcolumn:name="Dirty",type=string,JSONPath=`.status.dirtyState`
// +kubebuilder:printcolumn:name="Cached",type=string,JSONPath=`.status.conditions[?(@.type=="Cached")].reason`
// +kubebuilder:printcolumn:name="Hit%",type=integer,JSONPath=`.status.cache.hitRate.readPercent`
// +kubebuilder:printcolumn:name="Gen",type=integer,priority=1,JSONPath=`.status.generation`
// +kubebuilder:printcolumn:name="Total Hit%",type=integer,priority=1,JSONPath=`.status.cache.hitRate.readTotalPercent`
// +kubebuilder:printcolumn:name="Unflushed",type=string,priority=1,JSONPath=`.status.cache.dirty`
// +kubebuilder:printcolumn:name="Applied",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Applied")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.hold) || !has(oldSelf.spec.hold) || !has(self.status) || !has(self.status.dirtyState) || self.status.dirtyState != 'PossiblyDirty' || (has(oldSelf.status) && has(oldSelf.status.dirtyState) && oldSelf.status.dirtyState == 'PossiblyDirty')",message="dirtyState cannot become PossiblyDirty while the volume is held (spec.hold) for a snapshot or a clone"
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
