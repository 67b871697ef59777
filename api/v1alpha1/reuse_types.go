package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReuseWindowName names a time over which a volume is looked at. Reads of one length of it ago count
// about a third of those of now.
//
// +kubebuilder:validation:Enum=hour;day;week
type ReuseWindowName string

// The windows.
const (
	ReuseHour ReuseWindowName = "hour"
	ReuseDay  ReuseWindowName = "day"
	ReuseWeek ReuseWindowName = "week"
)

// Reuse is how a volume reads again what it has read, and what a cache of another size would answer, as
// far as the node that has it attached knows. It is written at most every ten minutes.
type Reuse struct {
	// sinceTime is when the node began to look.
	// +optional
	SinceTime metav1.Time `json:"sinceTime,omitempty,omitzero"`

	// observedTime is when the node looked last.
	// +optional
	ObservedTime metav1.Time `json:"observedTime,omitempty,omitzero"`

	// chunkBytes is the size of a chunk, of the cache or of the one that the volume would have.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	ChunkBytes *int64 `json:"chunkBytes,omitempty"`

	// areaBytes is the length of the areas in which reads are counted. Where it is more than a chunk,
	// the predictions are the least that is to be expected.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	AreaBytes *int64 `json:"areaBytes,omitempty"`

	// windows are those of which enough is known: half of the time was looked at, and a thousand
	// operations were seen.
	// +optional
	// +listType=map
	// +listMapKey=window
	// +kubebuilder:validation:MaxItems=3
	Windows []ReuseWindow `json:"windows,omitempty"`
}

// ReuseWindow is what a window says.
type ReuseWindow struct {
	// window is its name.
	// +required
	Window ReuseWindowName `json:"window,omitempty"`

	// operations are the reads and writes that it knows of.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Operations *int64 `json:"operations,omitempty"`

	// writePercent is how many of them are writes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	WritePercent *int32 `json:"writePercent,omitempty"`

	// readBytes is the mean size of a read. A read of several chunks counts once for each of them; of a volume
	// without a cache, one of several areas does.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	ReadBytes *int64 `json:"readBytes,omitempty"`

	// writeBytes is the mean size of a write. A write of several chunks or areas counts once for each too.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	WriteBytes *int64 `json:"writeBytes,omitempty"`

	// readSizePercents says which percentage of the reads is at most 4, 8, 16, 32, 64, 128, 256, 512 KiB and
	// 1 MiB long. It comes from samples of half a minute, and is of reads as they were before the kernel
	// divided them into those of chunks. Absent if the node's kernel has no histograms of its tracepoints, or
	// if the samples have fewer than a hundred reads.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=9
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=100
	ReadSizePercents []int32 `json:"readSizePercents,omitempty"`

	// flushesPerHour is how often an application waited for the storage server to have everything on
	// its disks (fsync). It does in every mode. Absent if nobody counts them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	FlushesPerHour *int64 `json:"flushesPerHour,omitempty"`

	// hitPercents are the predicted hit rates of reads, in percent, of caches of 1, 5, 10, 25, 50 and
	// 100 percent of the volume. They are absent if nothing was read.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=6
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:Minimum=0
	// +kubebuilder:validation:items:Maximum=100
	HitPercents []int32 `json:"hitPercents,omitempty"`

	// againPercent is how many reads were of areas that were read before: no cache answers more.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	AgainPercent *int32 `json:"againPercent,omitempty"`

	// kneeBytes is the size of a cache up to which more of it helps most; absent if each more helps as
	// much as any other.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	KneeBytes *int64 `json:"kneeBytes,omitempty"`

	// kneeHitPercent is the predicted hit rate of reads of such a cache.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	KneeHitPercent *int32 `json:"kneeHitPercent,omitempty"`
}

// ReuseFractions are the sizes that hitPercents are of, in percent of the volume.
func ReuseFractions() []int { return []int{1, 5, 10, 25, 50, 100} }

// ReuseReadSizes are the sizes that readSizePercents are of, in bytes.
func ReuseReadSizes() []int64 {
	return []int64{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}
}
