package v1alpha1

// HitRate is how many accesses the cache answered, in percent. A figure is absent
// when there was nothing to count.
type HitRate struct {
	// readPercent is of the reads of the last five minutes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	ReadPercent *int32 `json:"readPercent,omitempty"`

	// writePercent is of the writes of the last five minutes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	WritePercent *int32 `json:"writePercent,omitempty"`

	// readTotalPercent is of all reads since the node first attached the volume.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	ReadTotalPercent *int32 `json:"readTotalPercent,omitempty"`

	// writeTotalPercent is of all writes since the node first attached the volume.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	WriteTotalPercent *int32 `json:"writeTotalPercent,omitempty"`
}

// Latency are percentiles in microseconds, each the upper bound of its bucket.
type Latency struct {
	// p50Micros is the median.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	P50Micros *int64 `json:"p50Micros,omitempty"`

	// p99Micros is exceeded by one access in a hundred.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	P99Micros *int64 `json:"p99Micros,omitempty"`
}

// Performance is what a volume's devices did in the last minute.
type Performance struct {
	// readIOPS is the rate of reads per second.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	ReadIOPS *int64 `json:"readIOPS,omitempty"`

	// writeIOPS is the rate of writes per second.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	WriteIOPS *int64 `json:"writeIOPS,omitempty"`

	// volume is the latency that the pod sees.
	// +optional
	Volume Latency `json:"volume,omitempty,omitzero"`

	// hit is the latency of the SSD, which hits cost.
	// +optional
	Hit Latency `json:"hit,omitempty,omitzero"`

	// miss is the latency of the origin, which misses cost.
	// +optional
	Miss Latency `json:"miss,omitempty,omitzero"`
}
