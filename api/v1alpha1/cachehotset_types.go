package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxHotSetBytes is the largest list of blocks of a CacheHotSet, before base64.
const MaxHotSetBytes = 64 << 10

// CacheHotSet names the blocks of the volume of the same name that were hottest,
// without their content. It is a hint: a stale or wrong one costs time and nothing
// else.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=chot,categories=nearflash
// +kubebuilder:printcolumn:name="Recorded",type=date,JSONPath=`.recordedTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheHotSet struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's metadata; its name is the CachedVolume's.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// volumeUID is the UID of the CachedVolume. Under another one it is the hot set
	// of an earlier volume of the name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	VolumeUID string `json:"volumeUID,omitempty"`

	// blocks is the encoded list, hottest first, in base64.
	// +optional
	// +kubebuilder:validation:MaxLength=87384
	//
	Blocks []byte `json:"blocks,omitempty"`

	// recordedTime is when the list was taken.
	// +optional
	RecordedTime metav1.Time `json:"recordedTime,omitempty,omitzero"`
}

// CacheHotSetList is a list of CacheHotSets.
//
// +kubebuilder:object:root=true
type CacheHotSetList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the hot sets.
	// +required
	Items []CacheHotSet `json:"items"`
}
