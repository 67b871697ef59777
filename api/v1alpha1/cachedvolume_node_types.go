package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Activation is one stage of a volume on its owner: it tells the owner's disks from
// images of them and from those of another machine of the same name.
type Activation struct {
	// id is the random name of the stage.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id,omitempty"`

	// generation is the ownership that the stage belongs to.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation int64 `json:"generation,omitempty"`

	// count grows with each stage, and while a writeback cache is attached.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Count *int64 `json:"count,omitempty"`
}

// RetainedCacheContent says how much of a retained cache is there.
//
// +kubebuilder:validation:Enum=Whole;Partial
type RetainedCacheContent string

const (
	// RetainedCacheWhole is a cache that other nodes may begin with too.
	RetainedCacheWhole RetainedCacheContent = "Whole"
	// RetainedCachePartial is one that the volume left before it was copied whole. Pods
	// prefer the node, which goes on from there; no other node begins with it.
	RetainedCachePartial RetainedCacheContent = "Partial"
)

// RetainedCache is a clean cache that a node keeps after the volume left it.
type RetainedCache struct {
	// nodeName is the node that keeps the cache.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`

	// generation is the ownership generation that filled the cache. The cache
	// may be used again only while this equals status.generation.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	Generation int64 `json:"generation,omitempty"`

	// sizeBytes is the SSD space that the cache occupies, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	SizeBytes *int64 `json:"sizeBytes,omitempty"`

	// lastUsedTime is when the volume left the node.
	// +optional
	LastUsedTime metav1.Time `json:"lastUsedTime,omitempty,omitzero"`

	// content says how much of the cache is there. Empty is Whole.
	// +optional
	Content RetainedCacheContent `json:"content,omitempty"`
}

// FlushStatus is the last flush that was asked for and is done.
type FlushStatus struct {
	// request is the value of spec.flushRequest that was carried out.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Request string `json:"request,omitempty"`

	// completionTime is when every block that was dirty at the request was on
	// the origin, and the origin's own cache flushed.
	// +optional
	CompletionTime metav1.Time `json:"completionTime,omitempty,omitzero"`
}

// ScrubStatus is the last comparison of a cache with the origin.
type ScrubStatus struct {
	// request is the value of spec.scrubRequest that was carried out last; absent if
	// none was.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Request string `json:"request,omitempty"`

	// completionTime is when it ended.
	// +optional
	CompletionTime metav1.Time `json:"completionTime,omitempty,omitzero"`

	// nodeName is the node whose cache it was.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`

	// checkedBytes is how much of the cache was compared, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	CheckedBytes *int64 `json:"checkedBytes,omitempty"`

	// corruptedChunks is of how many chunks the SSD returned something else than
	// was written to it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	CorruptedChunks *int64 `json:"corruptedChunks,omitempty"`

	// unjudgedPieces is how many pieces of chunks, of 64 KiB or less, differed and
	// could not be judged, because the volume was written to all the time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	UnjudgedPieces *int64 `json:"unjudgedPieces,omitempty"`
}
