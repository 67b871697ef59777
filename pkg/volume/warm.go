package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// WarmFrom selects what a volume's cache on a new node is filled from.
type WarmFrom string

// The sources, in the order in which WarmPeer tries them.
const (
	// WarmPeer reads the old node's cache; without one it is WarmOrigin.
	WarmPeer WarmFrom = "peer"
	// WarmOrigin reads the blocks of the volume's last hot set from the origin.
	WarmOrigin WarmFrom = "origin"
	// WarmOff starts with an empty cache.
	WarmOff WarmFrom = "off"
)

// WarmStart is what the creator of a volume asked for about moves.
type WarmStart struct {
	From WarmFrom
	// Method is how the cache is filled from the old node's; empty leaves it to the node.
	Method MoveMethod
	// Bandwidth bounds the background copy in bytes per second; 0 is the node's
	// default.
	Bandwidth int64
	// Deadline is how long the old node is asked to serve; 0 is the node's default.
	Deadline time.Duration
	// Preload asks that a new cache that begins from no other node's be filled with all that it has
	// room for (states.md, Preload).
	Preload bool
}

// WarmSource is the retained cache that an ownership may start from: that of the
// ownership before. It is valid until the new owner has activated anything, for
// from then on the origin may be newer (states.md, I5).
type WarmSource struct {
	Node       string
	Generation int64
}

// MoveID identifies one CacheMigration object.
type MoveID struct {
	Name, UID string
}

// MovePurpose says why a cache is copied.
type MovePurpose string

// The purposes.
const (
	// PurposeMove, also the zero value, follows a volume to its new owner.
	PurposeMove MovePurpose = "Move"
	// PurposePrewarm copies the cache of an attached volume before it moves.
	PurposePrewarm MovePurpose = "Prewarm"
	// PurposeRead fills the cache of one of the nodes that read a volume (states.md, Readers).
	PurposeRead MovePurpose = "Read"
)

// MoveMethod is how a new owner's cache is filled (states.md, The warm move).
type MoveMethod string

// The methods.
const (
	// MethodClone reads through the old node's cache from the first I/O on: dm-clone over an
	// iSCSI export of the old node.
	MethodClone MoveMethod = "Clone"
	// MethodStream has the old node's plugin send the chunks, hottest first, while the volume
	// runs on its origin. It needs dm-cache alone.
	MethodStream MoveMethod = "Stream"
	// MethodHotSet reads the blocks of the volume's hot set from the origin.
	MethodHotSet MoveMethod = "HotSet"
	// MethodPreload reads all blocks from the origin that the cache has room for, those of the hot
	// set first.
	MethodPreload MoveMethod = "Preload"
)

// Tracked tells which parts of a cache's data were written to since its node began to
// note that (states.md, A prewarmed node).
type Tracked struct {
	// ID names the record: another one began at another time.
	ID string `json:"id"`
	// AreaBytes is the length of a part.
	AreaBytes int64 `json:"areaBytes"`
	// Changed has one bit for each part, the first in the lowest bit of the first byte;
	// nil while the record goes on.
	Changed []byte `json:"changed,omitempty"`
}

// MoveRequest asks the node that holds a retained cache to export it.
type MoveRequest struct {
	Volume ID
	// Purpose is PurposeMove, unless the cache is asked for while it is in use. For a prewarming
	// Request is the one of the record.
	Purpose MovePurpose
	Request string
	// Fence is the new owner's. For a prewarming it has the generation of the present
	// owner and the node that asks.
	Fence Fence
	// Source is the retained cache; nil for a hydration from the origin, which asks nobody.
	Source *WarmSource
	// Method is how the cache is filled, and Reason why by this method, for people.
	Method MoveMethod
	Reason string
	// Patience is how long the source may be silent; 0 is as long as the request.
	Patience time.Duration
	// Bandwidth in bytes per second, and the moment after which the source need not
	// serve any more.
	Bandwidth int64
	Deadline  time.Time
}

// StreamSource is where a node's plugin sends the chunks of a cache from.
type StreamSource struct {
	// Addresses are the node's own, as "address:port".
	Addresses []string
	// PublicKey is what the node proves itself by: as its CachePool says it.
	PublicKey string
}

// Lease is a retained cache that its node serves: over iSCSI the cache's metadata,
// followed by its data, as one read-only LUN; or as a stream of chunks.
type Lease struct {
	Move        MoveID
	Source      ISCSI
	Credentials Credentials
	// Stream is set instead of Source and Credentials; there is no metadata then.
	Stream *StreamSource
	// ChunkSectors, MetaBytes and DataBytes are the geometry of the exported cache.
	ChunkSectors         uint64
	MetaBytes, DataBytes int64
	// WWID is the identity of the LUN that the cache is of; "" is not known.
	WWID string
	// WrittenThrough is true of a cache that never was in writeback mode.
	WrittenThrough bool
	// Tracked names the record of writes that goes with a prewarming, and in a move
	// says what it has become; nil if there is none.
	Tracked *Tracked
}

// NodeDigits stand for a node in names that two nodes of one kernel must not share: the first
// ten hexadecimal digits of the hash of its name.
func NodeDigits(node string) string {
	sum := sha256.Sum256([]byte(node))
	return hex.EncodeToString(sum[:5])
}

// ExportName is what the exports of a node's caches are called by, before the volume's ID.
// None of it can be a name of nearflash-target, which may run on the same machine: that names
// "<server>:<volume>", and no server's name ends with a dot.
func ExportName(node string) string { return "lend." + NodeDigits(node) + "." }

// ExportIQN is the iSCSI name of a volume's cache that a node exports. A node that reads it
// takes no other (states.md, The warm move).
func ExportIQN(node string, id ID) string { return exportIQNPrefix + ExportName(node) + string(id) }

const exportIQNPrefix = "iqn.2026-11.io.nearflash:"

// Bounds of what another node's cache may have. A cache of nearflash has at most a million
// chunks, and a little more where its size is rounded up.
const (
	MaxExportedChunks    = 1 << 20
	MaxExportedMetaBytes = 1 << 30
)

// ServedFrom says where a hydration reads at the moment.
type ServedFrom string

// The places.
const (
	FromPeer   ServedFrom = "Peer"
	FromOrigin ServedFrom = "Origin"
)

// MoveProgress is how far a hydration is.
type MoveProgress struct {
	TotalBytes, HydratedBytes int64
	// Rate is in bytes per second.
	Rate int64
	// Remaining is the estimated time to the end; 0 if that is not known.
	Remaining time.Duration
	From      ServedFrom
}

// Estimate sets Remaining by what is left and the rate.
func (p *MoveProgress) Estimate() {
	if p.Rate > 0 {
		p.Remaining = time.Duration(float64(p.TotalBytes-p.HydratedBytes) / float64(p.Rate) * float64(time.Second))
	}
}

// MoveOutcome is how a move ended.
type MoveOutcome string

// The outcomes.
const (
	// MoveCompleted: everything has been copied.
	MoveCompleted MoveOutcome = "Completed"
	// MoveEnded: the volume left the node, or its cache was taken away, before that.
	MoveEnded MoveOutcome = "Ended"
	// MoveFailed: the cache was started cold, or from the hot set.
	MoveFailed MoveOutcome = "Failed"
)

// Moves are the CacheMigration objects as the node that fills a cache uses them.
type Moves interface {
	// Begin creates the object of a move and, if there is a source, waits until its
	// node exports the retained cache or refuses, or ctx ends. A killed Begin is repeated
	// with a new object and a new secret. The lease is nil without a source.
	// Errors: ErrUnavailable (no answer in time, or refused; the text says why).
	Begin(ctx context.Context, r MoveRequest) (MoveID, *Lease, error)
	// Refuse creates the object of a move that this node cannot carry out, and ends it as failed.
	Refuse(ctx context.Context, r MoveRequest, why string) error
	// Progress reports how far the hydration is; a missing object is success.
	Progress(ctx context.Context, id MoveID, p MoveProgress) error
	// Finish reports the end, which lets the source go; repeating it or a missing
	// object is success.
	Finish(ctx context.Context, id MoveID, o MoveOutcome, message string) error
	// Exported reports whether the source still serves the move: false when its node has
	// said that it does not, or the object is gone. It is cheap, and is asked again and
	// again; what is not known counts as exported. Errors: ErrUnavailable.
	Exported(ctx context.Context, id MoveID) (bool, error)
	// Ended reports whether a prewarming of that request was begun and has ended.
	Ended(ctx context.Context, r MoveRequest) (bool, error)
}

// LeaseRequest is a move as the node that holds the retained cache sees it.
type LeaseRequest struct {
	Move   MoveID
	Volume ID
	UID    string
	// Generation is that of the retained cache.
	Generation int64
	// Purpose and Request are those of the MoveRequest.
	Purpose MovePurpose
	Request string
	// Method is that of the MoveRequest; of one that does not say it, MethodClone.
	Method MoveMethod
	// To is the node that asks, Initiator its name; a stream has no initiator.
	To, Initiator string
	Credentials   Credentials
}

// Lessor serves retained caches to other nodes.
type Lessor interface {
	// Export exports a retained cache to one initiator, read-only. It is idempotent for
	// the same request. Errors: ErrNotFound (no clean retained cache of that generation),
	// ErrFenced (the record does not name the other node), ErrUnavailable.
	Export(ctx context.Context, r LeaseRequest) (Lease, error)
	// Release ends the lease of a move and destroys the retained cache, whose generation
	// is not the volume's any more. Absent is success.
	Release(ctx context.Context, id ID, m MoveID) error
	// Leases returns the moves that this node serves, by volume.
	Leases(ctx context.Context) (map[ID]MoveID, error)
	// Lease returns the move that this node serves with one volume, whatever the number
	// of others.
	Lease(ctx context.Context, id ID) (m MoveID, served bool, err error)
	// InUse reports whether the other node has a session with the lease of a volume now. A
	// stream has none: no pod waits for it.
	InUse(ctx context.Context, id ID) (bool, error)
	// EndLease ends the lease of a move, and leaves the retained cache to a later repair.
	// Absent is success. Errors: ErrBusy.
	EndLease(ctx context.Context, id ID, m MoveID) error
}

// HotSet names the blocks of a volume that were hottest, without their content.
type HotSet struct {
	// Blocks is the encoded list (package cachemap).
	Blocks []byte
	// Recorded is when the list was taken.
	Recorded time.Time
}

// HotSets keep one hot set per volume beyond the life of its caches.
type HotSets interface {
	// Load returns the last hot set of a volume. Errors: ErrNotFound.
	Load(ctx context.Context, id ID, uid string) (HotSet, error)
	// Store replaces it.
	Store(ctx context.Context, id ID, uid string, h HotSet) error
}

// Prewarm is a request to copy the cache of an attached volume to another node.
type Prewarm struct {
	// Node is the node that shall have the copy, Request the name of the request.
	Node, Request string
}
