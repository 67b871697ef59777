package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PreloadRequest asks for the cache of an attached volume to be filled before anything is read twice.
type PreloadRequest struct {
	// request names the request; the node repeats it in status.preload.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Request string `json:"request,omitempty"`

	// path is a directory or a file in the volume's filesystem, from its root. Absent is all of
	// it, and of a raw block volume the only one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path must be one from the root of the volume, without a leading / and without .."
	Path string `json:"path,omitempty"`

	// bandwidthBytesPerSecond bounds what comes into the cache, in bytes per second, at least
	// 1048576; 0 or absent is that of warmStart, or else the node's default.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1099511627776
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 1048576",message="bandwidthBytesPerSecond must be 0 or at least 1048576 (1Mi)"
	BandwidthBytesPerSecond *int64 `json:"bandwidthBytesPerSecond,omitempty"`
}

// PreloadState says how a preload stands.
//
// +kubebuilder:validation:Enum=Pending;Running;Completed;Ended;Cancelled;Failed
type PreloadState string

const (
	// PreloadPending waits for what the message names.
	PreloadPending PreloadState = "Pending"
	// PreloadRunning goes on.
	PreloadRunning PreloadState = "Running"
	// PreloadCompleted means that all that was asked for is in the cache.
	PreloadCompleted PreloadState = "Completed"
	// PreloadEnded means that the cache takes no more in; the message says why.
	PreloadEnded PreloadState = "Ended"
	// PreloadCancelled means that the request was taken away.
	PreloadCancelled PreloadState = "Cancelled"
	// PreloadFailed means that it cannot be done; the message says why.
	PreloadFailed PreloadState = "Failed"
)

// PreloadStatus is how far a preload is.
type PreloadStatus struct {
	// request is that of spec.preload.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Request string `json:"request,omitempty"`

	// state is how it stands.
	// +required
	State PreloadState `json:"state,omitempty"`

	// message says what it waits for, or why it has ended so.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// totalBytes is what is asked for, in whole chunks.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	TotalBytes *int64 `json:"totalBytes,omitempty"`

	// cachedBytes is what of totalBytes the cache had when the node last looked.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	CachedBytes *int64 `json:"cachedBytes,omitempty"`

	// startTime is when the node began.
	// +optional
	StartTime metav1.Time `json:"startTime,omitempty,omitzero"`

	// observedTime is when the node last looked.
	// +optional
	ObservedTime metav1.Time `json:"observedTime,omitempty,omitzero"`
}

// Over reports whether a preload goes on no more.
func (s PreloadState) Over() bool { return s != "" && s != PreloadPending && s != PreloadRunning }
