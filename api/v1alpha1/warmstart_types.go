package v1alpha1

// WarmStartFrom selects what a volume's cache on a new node is filled from.
//
// +kubebuilder:validation:Enum=peer;origin;off
type WarmStartFrom string

const (
	// WarmStartPeer reads the cache of the node that had the volume before, and is
	// WarmStartOrigin if there is none.
	WarmStartPeer WarmStartFrom = "peer"
	// WarmStartOrigin reads from the origin the blocks that were hottest before.
	WarmStartOrigin WarmStartFrom = "origin"
	// WarmStartOff starts with an empty cache.
	WarmStartOff WarmStartFrom = "off"
)

// WarmStartMethod selects how the cache of another node is read.
//
// +kubebuilder:validation:Enum=auto;clone;stream
type WarmStartMethod string

const (
	// WarmStartAuto leaves the choice to the node.
	WarmStartAuto WarmStartMethod = "auto"
	// WarmStartClone reads through that cache from the first I/O on, by dm-clone.
	WarmStartClone WarmStartMethod = "clone"
	// WarmStartStream has the other node send its cache, while the volume runs on its origin.
	WarmStartStream WarmStartMethod = "stream"
)

// WarmStartPreload selects what else a new cache is filled with.
//
// +kubebuilder:validation:Enum=none;all
type WarmStartPreload string

const (
	// WarmStartPreloadNone fills it with what from names.
	WarmStartPreloadNone WarmStartPreload = "none"
	// WarmStartPreloadAll fills a cache that begins with no other node's cache with all that it
	// has room for.
	WarmStartPreloadAll WarmStartPreload = "all"
)

// WarmStart says how a cache is filled when the volume comes to a node that has
// none of its own.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.preload) && self.preload == 'all' && has(self.from) && self.from == 'off')",message="preload all needs from peer or origin: off fills nothing"
type WarmStart struct {
	// from selects where the cache is filled from; absent is peer.
	// +optional
	From WarmStartFrom `json:"from,omitempty"`

	// method selects how the cache of another node is read, if from is peer; absent is
	// auto, which leaves that to the node.
	// +optional
	Method WarmStartMethod `json:"method,omitempty"`

	// preload all fills a new cache from the origin, as far as it has room, in the
	// background: with the blocks that were hottest before, then with all others in their
	// order. A cache that begins with another node's is left with what that has. Absent is
	// none.
	// +optional
	Preload WarmStartPreload `json:"preload,omitempty"`

	// bandwidthBytesPerSecond bounds the copy in the background, in bytes per
	// second, at least 1048576; 0 or absent is the node's default.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1099511627776
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 1048576",message="bandwidthBytesPerSecond must be 0 or at least 1048576 (1Mi)"
	BandwidthBytesPerSecond *int64 `json:"bandwidthBytesPerSecond,omitempty"`

	// deadlineSeconds is how long the node that had the volume before is asked to
	// serve its cache, at least 60 seconds; 0 or absent is the node's default.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:validation:XValidation:rule="self == 0 || self >= 60",message="deadlineSeconds must be 0 or at least 60"
	DeadlineSeconds *int32 `json:"deadlineSeconds,omitempty"`
}

// WarmSource is the retained cache that a new owner may start from.
type WarmSource struct {
	// nodeName is the node that keeps the cache.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`

	// generation is that of the retained cache: the one before status.generation.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation int64 `json:"generation,omitempty"`
}
