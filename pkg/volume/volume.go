// Package volume is the domain of nearflash: what a volume is, what may be
// asked of it, and the errors that can come back. It imports neither
// Kubernetes, CSI nor anything that runs commands.
//
// The states and invariants that the implementations keep are stated in
// docs/design/states.md.
package volume

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// ID names a volume. It is the CSI volume_id, the name of the CachedVolume
// object, and part of device-mapper and LVM names, hence the narrow grammar.
type ID string

// MaxIDLength is the longest ID in bytes. "<vg>-<id>.data" with doubled
// hyphens must fit the 127 bytes of a device-mapper name.
const MaxIDLength = 63

var idPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ParseID checks that s may be used as a volume ID.
func ParseID(s string) (ID, error) {
	if !idPattern.MatchString(s) {
		return "", fmt.Errorf("%w: volume ID %q: accepted are 1 to %d lower-case letters, digits and inner hyphens", ErrInvalid, s, MaxIDLength)
	}
	return ID(s), nil
}

// TargetNames is what IsTarget accepts, in the words of errors.
const TargetNames = "1 to 58 lower-case letters, digits and inner hyphens"

// targetPattern leaves room for the longest ID in the handle of a snapshot, which CSI bounds to 128
// bytes.
var targetPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,56}[a-z0-9])?$`)

// IsTarget reports whether s may name a storage server: a DNS label of 58 characters at most.
func IsTarget(s string) bool { return targetPattern.MatchString(s) }

// ISCSI is the address of an iSCSI LUN.
type ISCSI struct {
	// Portals are "address:port"; more than one gives multipath.
	Portals []string `json:"portals"`
	// IQN is the target's name.
	IQN string `json:"iqn"`
	// LUN is the logical unit number.
	LUN int `json:"lun"`
}

// String is for logs and errors.
func (i ISCSI) String() string { return fmt.Sprintf("%s lun %d at %v", i.IQN, i.LUN, i.Portals) }

// Source is where a volume's origin is: an iSCSI LUN, or a volume of another CSI driver.
type Source struct {
	ISCSI
	// CSI is nil for an iSCSI LUN; ISCSI is the zero value otherwise.
	CSI *CSISource `json:"csi,omitempty"`
}

// String is for logs and errors.
func (s Source) String() string {
	if s.CSI != nil {
		return s.CSI.String()
	}
	return s.ISCSI.String()
}

// Fenced reports whether the end of an admission keeps a node out.
func (s Source) Fenced() bool { return s.CSI == nil || !s.CSI.NoFence }

// Server names who has the volume, for errors.
func (s Source) Server() string {
	if s.CSI != nil {
		return "driver " + s.CSI.Driver
	}
	return "the storage server"
}

// IsZero reports whether it names no origin.
func (s Source) IsZero() bool { return s.IQN == "" && s.CSI == nil }

// Same reports whether both lead to the same admission of the same origin: one target of a
// storage server, or one attachment of another driver's volume.
func (s Source) Same(other Source) bool {
	if s.CSI == nil || other.CSI == nil {
		return s.CSI == nil && other.CSI == nil && s.IQN == other.IQN
	}
	return s.CSI.Driver == other.CSI.Driver && s.CSI.Handle == other.CSI.Handle && s.CSI.PV == other.CSI.PV &&
		s.CSI.Admission == other.CSI.Admission
}

// rbd is ceph-csi's driver of RBD, which Rook calls NAMESPACE.rbd.csi.ceph.com.
const rbd = "rbd.csi.ceph.com"

// EmptyDetach reports whether a driver is known to answer to attach and detach without doing
// anything, although its CSIDriver has attachRequired: what Kubernetes takes for detached may be
// written to still.
func EmptyDetach(driver string) bool {
	return driver == rbd || strings.HasSuffix(driver, "."+rbd)
}

// CSISource is a volume of another CSI driver that is attached to a node, as that driver's node
// plugin is to be asked for it. Nothing of it is secret.
type CSISource struct {
	// Driver is the driver's name, as CSIDriver and CSINode have it.
	Driver string `json:"driver"`
	// Handle is its name of the volume.
	Handle string `json:"handle"`
	// PV is the PersistentVolume of it, by which its paths on a node are named.
	PV string `json:"pv"`
	// Admission is the UID of the VolumeAttachment; of a driver that attaches nothing, it names the
	// generation.
	Admission string `json:"admission"`
	// NoFence says that the end of an admission keeps nobody out, and that nobody has consented to
	// that.
	NoFence bool `json:"noFence,omitempty"`
	// Attributes are the volume_context, Attachment is the publish_context.
	Attributes map[string]string `json:"attributes,omitempty"`
	Attachment map[string]string `json:"attachment,omitempty"`
	// AccessMode is that of the PersistentVolume, as Kubernetes names it, by which the
	// kubelet asks a driver; "" is ReadWriteOnce.
	AccessMode string `json:"accessMode,omitempty"`
	// Secrets are those that the PersistentVolume names for calls on the node; nil if it names none.
	Secrets *SecretNames `json:"secrets,omitempty"`
	// CapacityBytes is its size, for a driver that has a part of an expansion on the node.
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
}

// SecretNames are the names, "namespace/name", of the secrets that the calls of a driver's node
// plugin take; "" is none.
type SecretNames struct {
	Stage   string `json:"stage,omitempty"`
	Publish string `json:"publish,omitempty"`
	Expand  string `json:"expand,omitempty"`
}

// String is for logs and errors.
func (c *CSISource) String() string { return fmt.Sprintf("volume %s of %s", c.Handle, c.Driver) }

// Claim names the PersistentVolumeClaim that a volume was made for.
type Claim struct {
	Namespace, Name string
}

// Origin is a volume of another CSI driver: one that is made, or one that is there.
type Origin struct {
	// StorageClass is the class that it is made of, "" for one that is there.
	StorageClass string
	// PV is the PersistentVolume of one that is there.
	PV string
	// AcceptTwoWriters is the consent to unflushed writes over a driver that fences nobody.
	AcceptTwoWriters bool
}

// Spec is what the creator of a volume asked for, after validation.
type Spec struct {
	// CapacityBytes is the origin's size; 0 when only the target knows.
	CapacityBytes int64
	// LimitBytes is the most that a request accepts, 0 for any size. It is not kept.
	LimitBytes int64
	// Static is set for a LUN that nearflash did not make.
	Static *ISCSI
	// Origin is set for a volume of another CSI driver.
	Origin *Origin
	// Target is the name of the storage server that the volume lies on, "" the default one.
	Target string
	// Provisioning is "thin", "thick" or "" for the server's default.
	Provisioning string
	Mode         CacheMode
	// Cache is the size of the cache; the zero Size means no cache.
	Cache Size
	// MaxCacheBytes is the most that a cache has, whatever Cache says; 0 is no maximum.
	MaxCacheBytes int64
	// ChunkBytes is the cache block size; 0 lets the node choose.
	ChunkBytes int64
	// AcceptNodeLoss is the consent that writeback needs.
	AcceptNodeLoss bool
	// Unsafe says of writeback that flushes end at the cache (states.md, Dropped flushes). It is
	// the mode writeback-unsafe, and has the consent to it.
	Unsafe bool
	// Mirror asks for a cache with two copies, or none.
	Mirror bool
	// DirtyLimit bounds what a writeback cache holds unflushed (I7). It has no effect
	// in other modes.
	DirtyLimit DirtyLimit
	WarmStart  WarmStart
	Claim      *Claim
	// FormatBlank says of a static volume that it may be formatted if it is blank when it
	// is published for the first time. It is not kept: Volume.Filesystem is.
	FormatBlank bool
	// Node is the node that the scheduler has chosen for the volume's first pod, "" if it has
	// not. It is not kept.
	Node string
	// Parent is what the volume begins as, nil for nothing.
	Parent *Parent
}

// IsStatic reports whether the volume was there before its record, which goes with the
// PersistentVolume and leaves the data alone.
func (s Spec) IsStatic() bool {
	return s.Static != nil || s.Origin != nil && s.Origin.PV != ""
}

// Fence identifies one ownership of a volume. The UID tells volumes of the
// same name apart, the generation the owners of one volume (I3).
type Fence struct {
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	Node       string `json:"node"`
}

// Volume is a volume as its durable record shows it.
type Volume struct {
	ID    ID
	Spec  Spec
	Fence Fence
	// Published says whether the fence's node may have it attached.
	Published bool
	// Readers are the nodes that may have it attached to read it, if the fence's node is Readers.
	Readers []string
	// ReadOnly is true of what For shows of a volume that many read.
	ReadOnly bool
	// PossiblyDirty says whether the fence's node may hold unflushed writes.
	PossiblyDirty bool
	// Deleting says that the record waits for its last user.
	Deleting bool
	// WarmSource is what the fence's node may start from, nil if there is nothing
	// or the node has started.
	WarmSource *WarmSource
	// Topologies are the places that the volume can be reached from, each by labels of nodes;
	// nil is everywhere. Only Provisioner.Create says it.
	Topologies []map[string]string
	// PV is the name of the PersistentVolume; "" while that is not known.
	PV string
	// SpecGeneration counts the changes of Spec and FlushRequest.
	SpecGeneration int64
	// FlushRequest is the last flush that was asked for, FlushDone the last that
	// was reported done; either may be "".
	FlushRequest, FlushDone string
	// Preload asks the fence's node to fill the cache; nil if nobody asks. Preloaded is how far the
	// last one is.
	Preload   *Preload
	Preloaded PreloadReport
	// ScrubRequest is the last scrub that was asked for, ScrubDone the last that was reported
	// done; either may be "". ScrubbedAt is when one was, asked for or not.
	ScrubRequest, ScrubDone string
	ScrubbedAt              time.Time
	// Prewarm asks a node to prewarm the cache; nil if none is asked.
	Prewarm *Prewarm
	// Abandoned says that unflushed writes were abandoned, and that no pod has been
	// told of it yet.
	Abandoned bool
	// GivenUp says that an administrator has abandoned unflushed writes of Fence, told or not.
	GivenUp bool
	// Filesystem says whether the volume may be formatted.
	Filesystem Formatted
	// Hold is under what the volume is cut, nil if it is not.
	Hold *Hold
	// Freeze is the last answer to a request of a hold; the zero value if there is none.
	Freeze FreezeReport
	// Activation is the last stage that made the volume's devices, Pending one that is
	// about to; each the zero value if there is none.
	Activation, Pending Activation
}

// Asked is the mode that the volume is to be in now: one that is held takes no writes that its
// origin does not have.
func (v Volume) Asked() CacheMode {
	if v.Hold != nil && v.Spec.Mode == ModeWriteback {
		return ModeWritethrough
	}
	return v.Spec.Mode
}

// FlushPending reports whether a flush was asked for that has not been reported.
func (v Volume) FlushPending() bool { return v.FlushRequest != "" && v.FlushRequest != v.FlushDone }

// Provisioner is the controller's side of a volume.
//
// All methods are idempotent in the sense of the CSI specification.
type Provisioner interface {
	// Create makes the volume, or returns the existing one when it was made
	// with the same spec. Errors: ErrExists, ErrInvalid, ErrNoSpace, ErrBackend.
	Create(ctx context.Context, id ID, spec Spec) (Volume, error)
	// Delete removes volume, data and record. A missing volume is success.
	// Errors: ErrInUse, ErrBackend.
	Delete(ctx context.Context, id ID) error
	// Get returns the volume. Errors: ErrNotFound.
	Get(ctx context.Context, id ID) (Volume, error)
	// List returns every volume in the order of their IDs.
	List(ctx context.Context) ([]Volume, error)
	// Publish makes node the owner (I1): on return the record names it and the
	// backend admits its initiator and no other. spec is that of a volume that has no
	// record yet: a static one, or, with Static nil, one of the storage server whose
	// record was lost. It is nil for other volumes.
	// Errors: ErrNotFound, ErrNodeNotFound, ErrFenced, ErrInUse, ErrBackend.
	Publish(ctx context.Context, id ID, node string, spec *Spec, cred *Credentials) (Publication, error)
	// PublishReader makes node one of those that read the volume, which nobody writes then: on
	// return the record names it, and the backend admits its initiator to read. spec is as in
	// Publish. Errors: those of Publish; ErrInvalid for a volume that cannot be read by many.
	PublishReader(ctx context.Context, id ID, node string, spec *Spec, cred *Credentials) (Publication, error)
	// Unpublish ends node's entitlement. While the node may hold unflushed
	// writes it keeps its access, so that it can flush when it returns (I2).
	// Errors: ErrBackend.
	Unpublish(ctx context.Context, id ID, node string) error
	// Expand grows the volume to at least size bytes and returns the new size.
	// Errors: ErrNotFound, ErrNoSpace, ErrInvalid, ErrBackend.
	Expand(ctx context.Context, id ID, size int64) (int64, error)
	// Modify makes of the volume what decide makes of its spec, of which only Mode,
	// Cache, AcceptNodeLoss, Mirror, DirtyLimit and WarmStart may change. decide is called again if somebody else
	// has changed the volume meanwhile. On return the change is in effect: on the
	// record, and on the node where the volume is attached. Errors: ErrNotFound,
	// ErrBusy while the node is at it, ErrInvalid if decide or the node refuses.
	Modify(ctx context.Context, id ID, decide func(Spec) (Spec, error)) error
}

// StageRequest asks a node to attach a volume and, for a filesystem volume, to
// mount it at StagingPath.
type StageRequest struct {
	ID          ID
	Publication Publication
	StagingPath string
	// Block asks for a raw block volume: nothing is formatted or mounted.
	Block bool
	// FSType is "ext4" or "xfs"; empty means ext4.
	FSType       string
	MountOptions []string
	Credentials  *Credentials
	ReadOnly     bool
	// AcceptTwoWriters is the consent of a static volume to a LUN that cannot be fenced.
	AcceptTwoWriters bool
}

// AcceptTwoWriters is the word of that consent.
const AcceptTwoWriters = "AcceptTwoWriters"

// Attacher is the node's side of a volume.
//
// All methods are idempotent, and each may be called again after the process
// was killed between any two of its steps (I8).
type Attacher interface {
	// Announce tells that Stage is going to be called with req, once whoever works on
	// the volume has let go of it. It returns at once.
	Announce(req StageRequest)
	// Stage attaches the volume through its cache. Only the fence (I1, I2) or
	// an unreachable origin fails it; a cache that cannot be had is reported on
	// the record and the volume attached without (I6).
	// Errors: ErrFenced, ErrUnavailable, ErrAuth, ErrInvalid, ErrInUse.
	Stage(ctx context.Context, req StageRequest) error
	// Unstage flushes and detaches. It returns ErrBusy while a flush goes on;
	// calling it again continues the flush.
	Unstage(ctx context.Context, id ID, stagingPath string) error
	// Publish mounts the staged volume at the target path.
	Publish(ctx context.Context, req PublishRequest) error
	// Unpublish removes the target path.
	Unpublish(ctx context.Context, id ID, targetPath string) error
	// Expand makes the node see the origin's new size: origin, then cache
	// table, then filesystem.
	Expand(ctx context.Context, req ExpandRequest) (int64, error)
	// Stats reports the use of the volume at path. Errors: ErrNotFound.
	Stats(ctx context.Context, id ID, path string) (Stats, error)
}

// RetainedCache is a clean cache kept on a node after the volume left it.
type RetainedCache struct {
	Generation int64
	SizeBytes  int64
	// Partial is true if only this node can use it: a hydration was not over.
	Partial bool
}

// CacheReport says what a volume's cache is doing on a node.
type CacheReport struct {
	// Cached is true while the volume runs through the cache.
	Cached bool
	// Reason is a CamelCase word of api/v1alpha1, Message the detail.
	Reason, Message string
	// Warning asks for a Warning event besides the condition.
	Warning bool
	// EventOnly leaves the condition alone: it is another owner's by now.
	EventOnly bool
	// Owner, if set, is the node that the report is of: the record of another owner is left
	// alone.
	Owner string
}

// AppliedReport says how far the node is with what the record asks for.
type AppliedReport struct {
	// State is one of AppliedDone, AppliedPending and AppliedDetached.
	State AppliedState
	// Reason is a CamelCase word of api/v1alpha1, Message the detail.
	Reason, Message string
	// SpecGeneration is the version of the spec that was judged.
	SpecGeneration int64
}

// AppliedState is the answer to: is the attached cache as the record asks?
type AppliedState string

// The answers.
const (
	AppliedDone     AppliedState = "Done"
	AppliedPending  AppliedState = "Pending"
	AppliedDetached AppliedState = "Detached"
)

// Records is the durable record of volumes as a node may use it. It is backed
// by the API server; reads are never served from a cache, because the fence
// rests on them.
type Records interface {
	// Get returns the record. Errors: ErrNotFound, ErrUnavailable.
	Get(ctx context.Context, id ID) (Volume, error)
	// MarkPossiblyDirty records that f's node may hold unflushed writes. It
	// fails with ErrFenced unless the record still shows f as published owner, and with
	// ErrBusy if the record is clean and held.
	MarkPossiblyDirty(ctx context.Context, id ID, f Fence) error
	// MarkClean records a proven flush by f's node; ErrFenced if the record
	// shows another owner or generation; a missing record is success.
	MarkClean(ctx context.Context, id ID, f Fence) error
	// PendActivation records a stage that is about to make the volume's devices. It fails
	// with ErrFenced unless the record still shows f as published owner. held is false if
	// the record cannot hold it, because its definition is of an earlier version.
	PendActivation(ctx context.Context, id ID, f Fence, a Activation) (held bool, err error)
	// SetActivation records that the stage has made the devices, or that its count has
	// grown; ErrFenced if the record shows another owner or generation, or that the stage
	// is of the past. A zero ID is only compared. A missing record is success.
	SetActivation(ctx context.Context, id ID, f Fence, a Activation) error
	// SetFormatted records how far the making of the filesystem is, FormatBegun or
	// FormatDone. It fails with ErrFenced unless the record still shows f as published
	// owner: nobody else may write to the volume.
	SetFormatted(ctx context.Context, id ID, f Fence, state Formatted) error
	// TakeWarmSource withdraws the record's WarmSource: f's node is about to
	// activate the volume. It fails with ErrFenced unless the record still shows f.
	TakeWarmSource(ctx context.Context, id ID, f Fence) error
	// SetRetainedCache records, or with nil removes, the clean cache on node.
	SetRetainedCache(ctx context.Context, id ID, node string, r *RetainedCache) error
	// Report records what the cache is doing, as condition and event.
	Report(ctx context.Context, id ID, r CacheReport) error
	// ReportApplied records how far node is with what is asked for. It does
	// nothing if another node owns the volume by now.
	ReportApplied(ctx context.Context, id ID, node string, r AppliedReport) error
	// ReportAbandoned tells of unflushed writes that were abandoned (I2) and of which no
	// pod was told: by events on the volume and its claim, and once there is a pod also
	// on the pod, after which the record says that it was told. Repeating it does no
	// harm. pod is nil before the volume is shown to one. Errors: ErrFenced if the
	// record shows another owner or generation than f; ErrNotFound, ErrUnavailable.
	ReportAbandoned(ctx context.Context, id ID, f Fence, pod *Pod) error
	// ReportTorn says by condition and events that writes may be missing in any order, because
	// the node stopped uncleanly while flushes were dropped. Repeating it does no harm. Errors:
	// ErrFenced if the record shows another owner or generation; ErrNotFound, ErrUnavailable.
	ReportTorn(ctx context.Context, id ID, f Fence, message string) error
	// ReportFlushed records that f's node has carried out a flush request;
	// ErrFenced if the record shows another owner or generation.
	ReportFlushed(ctx context.Context, id ID, f Fence, request string) error
	// ReportScrub tells of what a scrub by f's node has found so far, by condition and event, and
	// records its end. Repeating it does no harm. ErrFenced if the record shows another owner or
	// generation.
	ReportScrub(ctx context.Context, id ID, f Fence, r ScrubReport) error
	// ReportFreeze answers a request to freeze the filesystem; ErrFenced if the record shows
	// another owner or generation.
	ReportFreeze(ctx context.Context, id ID, f Fence, r FreezeReport) error
	// ReportPreload records how far a preload is; ErrFenced if the record shows another owner or
	// generation.
	ReportPreload(ctx context.Context, id ID, f Fence, r PreloadReport) error
}
