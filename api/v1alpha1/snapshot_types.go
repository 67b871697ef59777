package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeParent is what a volume was made from.
//
// +kubebuilder:validation:XValidation:rule="has(self.snapshotHandle) != has(self.volumeName)",message="exactly one of snapshotHandle and volumeName must be set"
type VolumeParent struct {
	// snapshotHandle is a snapshot, as its VolumeSnapshotContent names it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^(iscsi(@[a-z0-9]([a-z0-9-]{0,56}[a-z0-9])?)?|csi)/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	SnapshotHandle string `json:"snapshotHandle,omitempty"`

	// volumeName is the CachedVolume of which this one is a clone.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	VolumeName string `json:"volumeName,omitempty"`
}

// VolumeHold says for what a volume is held: its origin is cut under the hold.
type VolumeHold struct {
	// name is that of the snapshot, or of what a clone is made from.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`

	// token tells this hold from all others of the same name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Token string `json:"token,omitempty"`

	// since is when the snapshot or the clone was last asked for.
	// +required
	Since metav1.Time `json:"since,omitempty,omitzero"`

	// freeze asks the node to freeze the volume's filesystem, or to thaw it.
	// +optional
	Freeze FreezeRequest `json:"freeze,omitempty"`
}

// FreezeRequest is what the node is asked to do with the filesystem of a volume that is held.
//
// +kubebuilder:validation:Enum=Freeze;Thaw
type FreezeRequest string

const (
	// FreezeRequestFreeze asks for a frozen filesystem. It is thawed after five seconds, if it
	// was not asked for before.
	FreezeRequestFreeze FreezeRequest = "Freeze"
	// FreezeRequestThaw says that the volume was cut.
	FreezeRequestThaw FreezeRequest = "Thaw"
)

// FreezeState is how the freeze of a filesystem stands.
//
// +kubebuilder:validation:Enum=Frozen;Held;Failed;NoFilesystem
type FreezeState string

const (
	// FreezeStateFrozen means the filesystem was frozen when this was written.
	FreezeStateFrozen FreezeState = "Frozen"
	// FreezeStateHeld means it was frozen until the node saw that it was to be thawed.
	FreezeStateHeld FreezeState = "Held"
	// FreezeStateFailed means it was not frozen, or not for as long as was asked.
	FreezeStateFailed FreezeState = "Failed"
	// FreezeStateNoFilesystem means pods have the volume as a raw block device.
	FreezeStateNoFilesystem FreezeState = "NoFilesystem"
)

// FreezeStatus is the node's answer to spec.hold.freeze.
type FreezeStatus struct {
	// token is that of the hold.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Token string `json:"token,omitempty"`

	// state is how the freeze stands.
	// +required
	State FreezeState `json:"state,omitempty"`

	// message says why the filesystem was not frozen for long enough.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
