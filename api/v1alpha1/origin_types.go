package v1alpha1

// WithoutFence is a consent to two nodes that write to one volume.
// +kubebuilder:validation:Enum=AcceptTwoWriters
type WithoutFence string

// WithoutFenceAcceptTwoWriters is that consent.
const WithoutFenceAcceptTwoWriters WithoutFence = "AcceptTwoWriters"

// OriginSource is a volume of another CSI driver that the cache lies over.
//
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) != has(self.persistentVolumeName)",message="exactly one of storageClassName and persistentVolumeName must be set"
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) == has(oldSelf.storageClassName)",message="origin cannot be changed but for withoutFence"
type OriginSource struct {
	// storageClassName is the class of the claim that was made for the volume.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="origin cannot be changed but for withoutFence"
	StorageClassName string `json:"storageClassName,omitempty"`

	// persistentVolumeName is a volume that was there before.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="origin cannot be changed but for withoutFence"
	PersistentVolumeName string `json:"persistentVolumeName,omitempty"`

	// withoutFence consents to cacheMode writeback over a driver whose detach keeps no lost node from
	// writing. It may be changed.
	// +optional
	WithoutFence WithoutFence `json:"withoutFence,omitempty"`
}
