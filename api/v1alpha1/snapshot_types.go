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
	// +kubebuilder:validation:Pattern=`^(iscsi|csi)/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
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
}
