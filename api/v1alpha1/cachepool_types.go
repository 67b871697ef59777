package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Redundancy selects how a pool of several SSDs stores cache data.
//
// +kubebuilder:validation:Enum=none;mirror
type Redundancy string

const (
	// RedundancyNone stripes cache data over the pool's devices.
	RedundancyNone Redundancy = "none"
	// RedundancyMirror keeps two copies on different devices (RAID 1).
	RedundancyMirror Redundancy = "mirror"
)

// Condition types and reasons of a CachePool.
const (
	// ConditionReady is True while the pool can hold caches.
	ConditionReady = "Ready"
	// ConditionPreflight is True while kernel and tools have what is needed.
	ConditionPreflight = "PreflightPassed"
	// ConditionHostTools is True while the host's own tools leave alone what pods write.
	ConditionHostTools = "HostToolsKeptOut"
	// ConditionWritesKept is True while unflushed writes wait for an administrator.
	ConditionWritesKept = "WritesKept"
	// ConditionNodeGone is True while the cluster has no Node of the pool's name; its reason
	// says why the pool is still there. It is absent otherwise.
	ConditionNodeGone = "NodeGone"

	ReasonPoolReady         = "PoolReady"
	ReasonNoDevices         = "NoDevices"
	ReasonDeviceNotBlank    = "DeviceNotBlank"
	ReasonDeviceMissing     = "DeviceMissing"
	ReasonTooFewDevices     = "TooFewDevices"
	ReasonPoolError         = "PoolError"
	ReasonEvacuated         = "Evacuated"
	ReasonPreflightPassed   = "Passed"
	ReasonPreflightFailures = "Failures"
	ReasonHostToolsKeptOut  = "KeptOut"
	ReasonHostToolsLook     = "HostToolsLook"
	ReasonUndecided         = "Undecided"
	ReasonNothingKept       = "NothingKept"

	// Why the pool of a node that left the cluster is kept.
	ReasonMadeByAdministrator = "MadeByAdministrator"
	ReasonWritesKept          = "WritesKept"
	ReasonUnflushedWrites     = "UnflushedWrites"
	ReasonOwnsVolumes         = "OwnsVolumes"
	ReasonStorageAdmits       = "StorageAdmits"
	ReasonStorageUnknown      = "StorageUnknown"
	ReasonNodeMayReturn       = "NodeMayReturn"
)

// MessageForeignDevice begins what a pool says of a device that is of another node's pool.
const MessageForeignDevice = "is of the pool of a node of another name"

// Labels of a CachePool.
const (
	// LabelPoolSource is on a CachePool that the node plugin made from its flags. An object
	// without it belongs to an administrator, and overrides the flags.
	LabelPoolSource = "nearflash.io/pool-source"
	// PoolSourceFlags is its value.
	PoolSourceFlags = "node-flags"
)

// CachePoolSpec selects the devices of a pool, and says who may have how much of it.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.integrity) && self.integrity && has(self.redundancy) && self.redundancy == 'mirror')",message="integrity does not go with redundancy mirror"
type CachePoolSpec struct {
	// devices lists paths or globs of block devices, such as
	// "/dev/disk/by-id/nvme-MODEL_*". A device that carries any signature is
	// refused, never wiped; so is a partition that only a glob matches.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^/dev/.+`
	Devices []string `json:"devices,omitempty"`

	// evacuate lists paths or globs of block devices that are to be out of the pool, also
	// if devices has them. Caches leave them while their volumes run, and then they leave
	// the volume group and are blank. While a device is named here it is not taken.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^/dev/.+`
	Evacuate []string `json:"evacuate,omitempty"`

	// redundancy selects striping or mirroring over the devices. In a pool of two devices or more
	// the caches of volumes that ask for it are mirrored also with none.
	// +optional
	// +default="none"
	Redundancy Redundancy `json:"redundancy,omitempty"`

	// integrity asks for checksums of what caches hold (dm-integrity): what an SSD returns that is
	// not what was written to it is an error then, by which the cache is left, and never data. It
	// costs room and speed, and counts for caches that are made from then on; those without it
	// make way. A node whose kernel cannot do it has no caches. Absent is none.
	// +optional
	//lint:ignore nobools it is asked for or not; which checksums the kernel makes is nobody's choice
	Integrity bool `json:"integrity,omitempty"`

	// namespaceSharePercent is how much of the pool's capacity the caches of one namespace
	// may take, by the namespaces of their claims; a volume whose cache would take more
	// works without one. Absent is no limit. Volumes without a claim on record have none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	NamespaceSharePercent int32 `json:"namespaceSharePercent,omitempty"`
}

// DeviceHealth is the verdict of a device on itself.
//
// +kubebuilder:validation:Enum=Passed;Failing
type DeviceHealth string

const (
	// DevicePassed means that the device expects no failure.
	DevicePassed DeviceHealth = "Passed"
	// DeviceFailing means that the device expects to fail, or is worn out.
	DeviceFailing DeviceHealth = "Failing"
)

// EvacuationState is how far a device is on its way out of the pool.
//
// +kubebuilder:validation:Enum=Evacuating;Waiting;Evacuated
type EvacuationState string

const (
	// EvacuationEvacuating means that caches are leaving the device.
	EvacuationEvacuating EvacuationState = "Evacuating"
	// EvacuationWaiting means that all that is left on it waits for something else.
	EvacuationWaiting EvacuationState = "Waiting"
	// EvacuationEvacuated means that the device is no part of the pool.
	EvacuationEvacuated EvacuationState = "Evacuated"
)

// DeviceEvacuation says how far a device is that is to be out of the pool.
type DeviceEvacuation struct {
	// state is how far it is.
	// +required
	State EvacuationState `json:"state,omitempty"`

	// bytesLeft is how much of the device caches still take, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	BytesLeft *int64 `json:"bytesLeft,omitempty"`

	// message names the volumes whose caches are left, and what they wait for.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// CachePoolDevice is one device of a pool as the node sees it.
type CachePoolDevice struct {
	// path is the device as it was matched.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path,omitempty"`

	// sizeBytes is the device's size in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	SizeBytes *int64 `json:"sizeBytes,omitempty"`

	// health is what the device says of itself (SMART); absent if it says nothing.
	// +optional
	Health DeviceHealth `json:"health,omitempty"`

	// wearPercent is how much of its rated endurance the device has used; it may
	// exceed 100.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	WearPercent *int32 `json:"wearPercent,omitempty"`

	// message says why the device is not used; empty when it is.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// evacuation is how far the device is if spec.evacuate names it.
	// +optional
	Evacuation *DeviceEvacuation `json:"evacuation,omitempty"`
}

// DeletedVolume says that nobody wants the data of a volume any more: the volume was
// deleted, or an administrator gave up what the node has of it (states.md, What ends
// unflushed writes).
type DeletedVolume struct {
	// volumeName is the name of the CachedVolume that there was.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	VolumeName string `json:"volumeName,omitempty"`

	// volumeUID is its UID.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	VolumeUID string `json:"volumeUID,omitempty"`

	// generation is its last ownership. Nothing of a later one is meant.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation *int64 `json:"generation,omitempty"`
}

// KeptCache is a cache that may hold writes that the storage server does not have, and
// of which nobody knows whether they are still wanted.
type KeptCache struct {
	// volumeName is the name of the volume.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	VolumeName string `json:"volumeName,omitempty"`

	// volumeUID is the UID of the CachedVolume under which it was written.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	VolumeUID string `json:"volumeUID,omitempty"`

	// generation is the ownership under which it was written.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation *int64 `json:"generation,omitempty"`

	// sizeBytes is the size of the cache: no more than that can be lost.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	SizeBytes *int64 `json:"sizeBytes,omitempty"`

	// message says why it is kept.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// The bounds of lists in a CachePoolStatus.
const (
	MaxDeletedVolumes = 512
	MaxKeptCaches     = 64
)

// CachePoolStatus is what the node reports of its pool.
type CachePoolStatus struct {
	// initiatorIQN is the node's iSCSI initiator name, by which storage
	// servers admit it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=223
	InitiatorIQN string `json:"initiatorIQN,omitempty"`

	// streamPublicKey is what the node's plugin proves itself by when it sends caches to
	// other nodes, and when it asks them for theirs: the SHA-256 of its public key
	// (SubjectPublicKeyInfo), in base64. It stays the same for as long as the node has its
	// state directory, and is absent if it listens nowhere for other nodes.
	// +optional
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	StreamPublicKey string `json:"streamPublicKey,omitempty"`

	// loginPublicKey is the public half of the X25519 key of which the accounts are derived that
	// the node logs in to the storage server with: 32 bytes, in base64. It stays the same for as
	// long as the node has its state directory.
	// +optional
	// +kubebuilder:validation:MinLength=44
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{43}=$`
	LoginPublicKey string `json:"loginPublicKey,omitempty"`

	// volumeGroup is the LVM volume group on the pool's devices.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	VolumeGroup string `json:"volumeGroup,omitempty"`

	// capacity is the pool's usable size.
	// +optional
	Capacity resource.Quantity `json:"capacity,omitempty,omitzero"`

	// free is the usable space that no cache occupies.
	// +optional
	Free resource.Quantity `json:"free,omitempty,omitzero"`

	// retained is the space occupied by caches of volumes that have left the
	// node; it is given up when a volume on the node needs it.
	// +optional
	Retained resource.Quantity `json:"retained,omitempty,omitzero"`

	// residency is what retained was in versions before, which do not start where it is
	// unknown. Nothing else reads or writes it.
	// +optional
	Residency resource.Quantity `json:"residency,omitempty,omitzero"`

	// devices are the devices that the spec matched.
	// +optional
	// +listType=map
	// +listMapKey=path
	// +kubebuilder:validation:MaxItems=64
	Devices []CachePoolDevice `json:"devices,omitempty"`

	// deleted lists volumes whose data are not wanted any more, until the node has nothing
	// of them. It is written by whoever deletes a volume or gives its writes up; the node
	// removes what it has done. Of more than 512 the oldest goes, and what the node has
	// of that is kept.
	// +optional
	// +listType=map
	// +listMapKey=volumeName
	// +listMapKey=volumeUID
	// +kubebuilder:validation:MaxItems=512
	Deleted []DeletedVolume `json:"deleted,omitempty"`

	// kept lists caches with writes that may be on this node alone, and of which neither a
	// record nor the storage server tells whether they are still wanted. They wait for an
	// administrator.
	// +optional
	// +listType=map
	// +listMapKey=volumeName
	// +kubebuilder:validation:MaxItems=64
	Kept []KeptCache `json:"kept,omitempty"`

	// conditions report whether the pool and the node are usable.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CachePool is the SSD pool of the node of the same name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cpool,categories=nearflash
// +kubebuilder:printcolumn:name="Capacity",type=string,JSONPath=`.status.capacity`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Retained",type=string,JSONPath=`.status.retained`
// +kubebuilder:printcolumn:name="Redundancy",type=string,JSONPath=`.spec.redundancy`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CachePool struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's metadata; its name is the node's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec selects the pool's devices, and says who may have how much of it.
	// +optional
	Spec CachePoolSpec `json:"spec,omitzero"`

	// status is what the node reports.
	// +optional
	Status CachePoolStatus `json:"status,omitempty,omitzero"`
}

// CachePoolList is a list of CachePools.
//
// +kubebuilder:object:root=true
type CachePoolList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the pools.
	// +required
	Items []CachePool `json:"items"`
}

// FromFlags reports whether the node plugin made the object from its flags ([LabelPoolSource]).
func (p *CachePool) FromFlags() bool { return p.Labels[LabelPoolSource] == PoolSourceFlags }
