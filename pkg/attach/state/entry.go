// Package state is the journal's entry of a volume on this node: its states, what they
// may say, and the changes of fields that belong together (docs/design/states.md, The
// journal). It is data alone: who writes it, and when, is attach's.
package state

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/integrity"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// State is the journal's state of a volume on this node (states.md, The
// journal).
type State string

// The states of states.md.
const (
	Staging   State = "Staging"
	Staged    State = "Staged"
	Flushing  State = "Flushing"
	Flushed   State = "Flushed"
	Releasing State = "Releasing"
	Retained  State = "Retained"
	Wiping    State = "Wiping"
	Prewarmed State = "Prewarm"
)

// Entry is the journal of one volume. It is written before and after each act,
// so that a killed process finds what it was doing (I8).
type Entry struct {
	ID    volume.ID    `json:"id"`
	Fence volume.Fence `json:"fence"`
	State State        `json:"state"`
	// ActivationID names the stage that the entry is about; empty of an entry that an
	// earlier version wrote.
	ActivationID string `json:"activationID,omitempty"`
	// ActivationCount grows with each stage, and while the cache may take writes that are
	// nowhere else; CountedAt is when it last did.
	ActivationCount int64     `json:"activationCount,omitempty"`
	CountedAt       time.Time `json:"countedAt,omitzero"`
	// Boot is the kernel's boot id when the entry was written; of Staging and Staged, when they
	// began.
	Boot string `json:"boot"`
	// Mode is the cache mode that the cache is or was active in; "none" for a
	// volume that is attached without a cache.
	Mode volume.CacheMode `json:"mode"`
	// Activated is true from before the cache's table is loaded.
	Activated bool `json:"activated,omitempty"`
	// Clean is true while the cache's map holds no dirty block and the origin
	// has every write: the first of I4's three witnesses.
	Clean bool `json:"clean,omitempty"`
	// Marked is true from before the record is marked PossiblyDirty under this
	// fence until the mark has been taken back.
	Marked bool          `json:"marked,omitempty"`
	Source volume.Source `json:"source"`
	// Static is true of a LUN whose server keeps no generation.
	Static bool `json:"static,omitempty"`
	// Reserved is true from before the LUN of a static volume is reserved for this node.
	// Unfenced says that it had no reservations under this fence, and that the volume accepts
	// it. With Reserved, a stage was about to ask it again.
	Reserved bool `json:"reserved,omitempty"`
	Unfenced bool `json:"unfenced,omitempty"`
	// Inherited says that the reservation stays when the volume leaves: an earlier owner
	// had the LUN, who may go on writing. It is true from before the LUN is reserved.
	Inherited bool `json:"inherited,omitempty"`
	// Lost is set once another node or host was seen to have the reservation.
	Lost *Lost `json:"lost,omitempty"`
	// ChunkSectors, DataBytes and MetaBytes are the geometry of the cache.
	ChunkSectors uint64 `json:"chunkSectors,omitempty"`
	DataBytes    int64  `json:"dataBytes,omitempty"`
	MetaBytes    int64  `json:"metaBytes,omitempty"`
	// Mirrored is true if both logical volumes of the cache had two copies when it was made, or found; of
	// what is prewarmed, if it is to have two.
	Mirrored bool `json:"mirrored,omitempty"`
	// Checked is true if the data of the cache have checksums, or are to have them.
	Checked bool `json:"checked,omitempty"`
	// WrittenThrough is true of a cache that has been in writethrough mode since it was made, as has the one
	// that it was copied from: nothing of it is on the SSD alone, whatever the origin has lost since (states.md,
	// Scrub). Versions before did not know.
	WrittenThrough bool `json:"writtenThrough,omitempty"`
	// Recovered is true of a cache whose map the kernel has open since an unclean stop: each
	// table that is loaded over it calls every block dirty. It is written if it is false, too: versions
	// before did not know.
	Recovered bool `json:"recovered"`
	// Unsafe is true from before the top device drops flushes until a flush is proven that was begun
	// after it had passed them on again. Torn is true after an unclean stop in between, until the
	// record says so.
	Unsafe bool `json:"unsafe,omitempty"`
	Torn   bool `json:"torn,omitempty"`
	// Full is true if every chunk of the cache held a block of the volume when it was
	// last flushed: then nothing of another volume is on its data.
	Full bool `json:"full,omitempty"`
	// Raw is true if pods have the volume as a block device, and no filesystem between.
	Raw bool `json:"raw,omitempty"`
	// ReadOnly is true of a volume that this node reads as one of many: none of its devices over the
	// origin can be written to.
	ReadOnly bool `json:"readOnly,omitempty"`
	// WWID is the identity of the attached LUN, as it says itself; "" if it has none, or
	// of a version before.
	WWID string `json:"wwid,omitempty"`
	// OriginMarks are the origin's paths when the cache became active, with what rescans
	// have failed since; nil of one that a version before activated, empty if they could
	// not be told. Doubt says why the cache, flushed, may hold blocks that the origin has
	// refused.
	OriginMarks transport.Marks `json:"originMarks,omitzero"`
	Doubt       string          `json:"doubt,omitempty"`
	// OriginBytes is the size of the attached volume.
	OriginBytes int64 `json:"originBytes,omitempty"`
	// Hydration is what the cache is being filled from; nil for a cache that is whole.
	Hydration *Hydration `json:"hydration,omitempty"`
	// EndedMove is a move that has ended, until that has been reported.
	EndedMove *EndedMove `json:"endedMove,omitempty"`
	// Exported is the move that the cache is exported to: a Retained one, or a Staged one
	// to a node that is prewarmed.
	Exported *volume.MoveID `json:"exported,omitempty"`
	// StreamedTo is the node that may read it as a stream; empty of an export over iSCSI.
	StreamedTo string `json:"streamedTo,omitempty"`
	// Track is the record of writes that goes on for such a node, and Tracked what it
	// had come to when the volume left.
	Track   *Track          `json:"track,omitempty"`
	Tracked *volume.Tracked `json:"tracked,omitempty"`
	// Prewarm is what was copied before this node was the owner; it is of use until
	// the cache is Activated.
	Prewarm *Prewarm `json:"prewarm,omitempty"`
	// RetainedCacheDue is true from unstage until the record lists the retained cache: a node that it
	// does not list is not told that the volume was deleted.
	RetainedCacheDue bool `json:"retainedCacheDue,omitempty"`
	// HotSetDue is true from unstage until the volume's hot set has been stored.
	HotSetDue bool `json:"hotSetDue,omitempty"`
	// HotSetAt is when the hot set of an attached volume was last stored, or the
	// volume attached.
	HotSetAt time.Time `json:"hotSetAt,omitzero"`
	// Abandoned is true if a loss of writes was on record when the volume was staged,
	// and no pod had been told of it.
	Abandoned bool `json:"abandoned,omitempty"`
	// FlushDone is the last flush request that was carried out.
	FlushDone string `json:"flushDone,omitempty"`
	// NoCacheBefore is until when no cache is made below the running pod, because
	// the SSD has just failed it one.
	NoCacheBefore time.Time `json:"noCacheBefore,omitzero"`
	// FailoverCause is why the cache was denied below the running pod, until that has been
	// reported.
	FailoverCause string `json:"failoverCause,omitempty"`
	// Names are what people know the volume by, as last seen in its record: metrics
	// must not change their labels because a plugin has just started.
	Names Names `json:"names,omitzero"`
	// Counting is a new value for each table of the cache, and Base what its
	// counters showed when it became live: the metrics count from there.
	Counting string             `json:"activation,omitempty"`
	Base     devmapper.Counters `json:"base,omitzero"`
	// UpdatedAt is when the entry was written.
	UpdatedAt time.Time `json:"updatedAt"`
	// RetainedAt is when its volume left it behind; the first one is the first to be
	// evicted.
	RetainedAt time.Time `json:"retainedAt,omitzero"`
}

// UnmarshalJSON implements json.Unmarshaler. Versions before had other words.
func (e *Entry) UnmarshalJSON(b []byte) error {
	type plain Entry
	both := struct {
		*plain
		*earlierEntry
		Recovered *bool `json:"recovered"`
	}{(*plain)(e), &earlierEntry{}, nil}
	if err := json.Unmarshal(b, &both); err != nil {
		return err
	}
	both.translate(e)
	if e.Recovered = mayBeRecovered(e); both.Recovered != nil {
		e.Recovered = *both.Recovered
	}
	return nil
}

// LastUsed is when a retained cache was left behind, or when prewarmed data were
// last written. What is done to a retained cache later, as recording its hot set, is no use
// of it.
func (e *Entry) LastUsed() time.Time {
	if e.State == Retained && !e.RetainedAt.IsZero() {
		return e.RetainedAt
	}
	return e.UpdatedAt // also of an entry that an older version wrote
}

// Check implements journal.Checker. A state or mode that is not known here is one of a
// newer version, and may mean that the SSD has the only copy of something.
func (e Entry) Check() error {
	switch e.State {
	case Staging, Staged, Flushing, Flushed, Releasing, Retained, Wiping, Prewarmed:
	default:
		return fmt.Errorf("unknown state %q", e.State)
	}
	switch e.Mode {
	case "", volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback:
	default:
		return fmt.Errorf("unknown cache mode %q", e.Mode)
	}
	return nil
}

// Validate returns what cannot be true of an entry together. Whoever would write such a one
// has a defect, and what it decided next would rest on it: nothing is written.
func (e *Entry) Validate() error {
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{!e.Cached() && (e.Activated || e.Clean), "a volume without a cache has one that is active or clean"},
		{e.Unsafe && (e.Mode != volume.ModeWriteback || e.Clean), "a cache that takes no writes, or is clean, drops flushes"},
		{e.WrittenThrough && e.Activated && e.Mode == volume.ModeWriteback, "a cache that takes writes has never taken any"},
		{e.Clean && e.State == Staged, "a cache in use is clean"},
		{e.ReadOnly && e.Mode == volume.ModeWriteback, "a volume that is only read has a cache that takes writes"},
		{e.State == Prewarmed && e.Prewarm == nil, "nothing says what was copied before the volume came"},
		{e.Prewarm != nil && e.Activated, "a cache in use is still a copy"},
		{e.Prewarm != nil && e.State != Prewarmed && e.State != Staging && e.State != Wiping, "a copy outlived the stage that it was for"},
		{e.State == Retained && (!e.Cached() || !e.Clean || e.Doubt != ""), "a cache that is kept is not proven to be clean"},
		{e.Exported != nil && e.State != Retained && e.State != Staged, "a cache that is neither kept nor in use is exported"},
		{e.StreamedTo != "" && e.Exported == nil, "a cache is streamed without a move"},
		{e.Track != nil && (e.State == Staging || e.State == Retained || e.State == Prewarmed), "writes to a cache that is not in use are recorded"},
		{!e.Static && (e.Reserved || e.Inherited || e.Unfenced || e.Lost != nil), "a LUN whose server keeps generations is reserved"},
		{e.Streams() && e.Mode == volume.ModeWriteback, "a cache that is filled by a stream takes writes that the origin has not"},
		{e.Streams() && (e.State == Flushed || e.State == Retained), "a cache that was flushed still has the levels of a stream"},
		{e.Inherited && !e.Reserved, "a reservation is inherited that there is not"},
	} {
		if rule.broken {
			return fmt.Errorf("impossible entry: %s (state %s, mode %s)", rule.says, e.State, e.Mode)
		}
	}
	return nil
}

// Activate is said before the kernel may write to the cache. What was prewarmed is
// the cache's own from then on.
func (e *Entry) Activate(mode volume.CacheMode) {
	e.Mode, e.Activated, e.Clean, e.Prewarm = mode, true, false, nil
	e.Unsafe, e.WrittenThrough = e.Unsafe && mode == volume.ModeWriteback, e.WrittenThrough && mode == volume.ModeWritethrough
}

// Deny is said before the pod may write past the cache (I3). The cache is still live, so that
// Recovered stays.
func (e *Entry) Deny() {
	e.Mode, e.Activated, e.Clean, e.Prewarm, e.Unsafe, e.WrittenThrough = volume.ModeNone, false, false, nil, false, false
	e.Hydration.ForgetRetainedCache()
}

// Anew is said before a cache that was not used is removed, in whose place the same stage
// makes another one.
func (e *Entry) Anew() {
	e.Activated, e.Clean, e.Prewarm, e.Recovered, e.Mirrored = false, false, nil, false, false
	e.ChunkSectors, e.DataBytes, e.MetaBytes = 0, 0, 0
	e.WrittenThrough = e.Mode == volume.ModeWritethrough
}

// Passed is said when a flush is proven that the top device did not drop.
func (e *Entry) Passed() { e.Unsafe = false }

// Tear is said of a cache that is recovered: what was flushed before the stop may be missing, if its
// flushes were dropped.
func (e *Entry) Tear() { e.Unsafe, e.Torn = false, e.Torn || e.Unsafe }

// Lost is a reservation that somebody else has (states.md, The fence of a static volume).
type Lost struct {
	// To is the key that holds it; 0 if none does, and the record names another owner.
	To reservation.Key `json:"to,omitempty"`
	// Told is true once condition or event said it.
	Told bool `json:"told,omitempty"`
}

// Foreign reports whether a host outside of nearflash has it.
func (l *Lost) Foreign() bool { return l.To != 0 && !l.To.Ours() }

// Format implements journal.Formatted: an earlier version takes an entry without a LUN for one that
// was never attached, and loads tables over a recovered cache that make it dirty.
func (e Entry) Format() int {
	switch {
	case e.Checked:
		return formatChecked
	case e.Unsafe, e.Torn:
		return formatUnsafe
	case e.Recovered:
		return formatRecovered
	case e.Source.CSI != nil:
		return formatOrigins
	}
	return 0
}

// formatOrigins is the journal's format of origins that another driver has, formatRecovered that of
// caches over which no other table may be loaded.
const (
	formatOrigins   = 7
	formatRecovered = 8
	// formatUnsafe is that of volumes whose flushes end at the cache: a plugin of before would say
	// nothing of what an unclean stop may have taken.
	formatUnsafe = 9
	// formatChecked is that of caches with checksums: a plugin of before would take what the logical
	// volume has for the data.
	formatChecked = 10
)

// Hydration is a cache whose map is whole and whose data are still being copied
// (states.md, The warm move).
type Hydration struct {
	Move volume.MoveID `json:"move,omitzero"`
	// From is the retained cache that the hydration may begin from; nil if it begins from the hot
	// set, or if the origin may be newer.
	From *volume.WarmSource `json:"from,omitempty"`
	// Peer is the export of that retained cache while a session with it may exist, and
	// PeerOffset where its data begin, in sectors.
	Peer       *volume.ISCSI `json:"peer,omitempty"`
	PeerOffset uint64        `json:"peerOffset,omitempty"`
	// PeerSectors is the length of the exported data.
	PeerSectors uint64 `json:"peerSectors,omitempty"`
	// RegionSectors is the unit of the copy.
	RegionSectors uint64 `json:"regionSectors,omitempty"`
	// Stream is set of a hydration by stream, which has no Peer and no regions.
	Stream *Stream `json:"stream,omitempty"`
	// Whole is true once everything is copied and the SSD itself is below the cache: what
	// else there is of the hydration is about to be removed, and nothing may be made of it.
	Whole bool `json:"whole,omitempty"`
	// Preload is true of a hydration with more than the hot set. It is for what is shown.
	Preload bool `json:"preload,omitempty"`
	// Bandwidth bounds the copy, in bytes per second. Deadline is when the peer need
	// not serve any more.
	Bandwidth int64     `json:"bandwidth,omitempty"`
	Deadline  time.Time `json:"deadline,omitzero"`
}

// EndedMove is the end of a move that nobody has been told of yet.
type EndedMove struct {
	Move    volume.MoveID      `json:"move"`
	Outcome volume.MoveOutcome `json:"outcome"`
	Message string             `json:"message,omitempty"`
}

// Stream is a hydration whose chunks are copied beside the volume, and serve level by level
// (states.md, The stream). Which level serves is told by the live tables.
type Stream struct {
	// Source sends the chunks; nil if they are read from the origin.
	Source *volume.StreamSource `json:"source,omitempty"`
	// Hot is how many chunks the first level has, Chunks how many both have.
	Hot    uint64 `json:"hot,omitempty"`
	Chunks uint64 `json:"chunks,omitempty"`
	// Prewarmed tells that the first level is what was there from the beginning, at places all over
	// the data: nothing of it is copied.
	Prewarmed bool `json:"prewarmed,omitempty"`
}

// Streams reports whether the cache is, or is to be, filled by a stream.
func (e *Entry) Streams() bool { return e != nil && e.Hydration != nil && e.Hydration.Stream != nil }

// Began tells where the hydration was to begin. The lease tells it when the retained cache is forgotten.
func (f *Hydration) Began() volume.ServedFrom {
	if f.From != nil || f.PeerSectors > 0 || f.Stream != nil && f.Stream.Source != nil {
		return volume.FromPeer
	}
	return volume.FromOrigin
}

// ForgetRetainedCache is called before the pod may write past the cache: from then on the
// retained cache that the hydration began with is older than the origin.
func (f *Hydration) ForgetRetainedCache() {
	if f != nil {
		f.From = nil
	}
}

// Again is a hydration that is activated again: from the origin, and never from the
// retained cache that it once began with.
func (f *Hydration) Again() *Hydration {
	if f == nil {
		return nil
	}
	return &Hydration{RegionSectors: f.RegionSectors, Bandwidth: f.Bandwidth, Whole: f.Whole, Preload: f.Preload}
}

// Regions is a number of bytes in regions, at least one.
func (f *Hydration) Regions(bytes int64) uint64 {
	return max(uint64(bytes)/devmapper.SectorSize/f.RegionSectors, 1)
}

// Track is a record of the writes to a cache's data that the kernel keeps.
type Track struct {
	// ID is the tag of the record in the kernel.
	ID string `json:"id"`
	// AreaSectors is the length of the parts that are told apart.
	AreaSectors uint64 `json:"areaSectors"`
}

// Prewarm is what a node has copied, or copies, of the cache of a volume that it does
// not own (states.md, A prewarmed node).
type Prewarm struct {
	// Request is the one that is carried out, Move the object that shows it.
	Request string        `json:"request"`
	Move    volume.MoveID `json:"move,omitzero"`
	// Tracking names the owner's record of writes, which is older than everything that
	// was copied.
	Tracking string `json:"tracking,omitempty"`
	// ChunkSectors and ExportedBytes are the geometry of the owner's cache.
	ChunkSectors  uint64 `json:"chunkSectors,omitempty"`
	ExportedBytes int64  `json:"exportedBytes,omitempty"`
	// Source is where the owner's plugin sends the chunks from.
	Source *volume.StreamSource `json:"source,omitempty"`
	// Bandwidth bounds the copy, in bytes per second; Deadline is when the owner need
	// not serve any more.
	Bandwidth int64     `json:"bandwidth,omitempty"`
	Deadline  time.Time `json:"deadline,omitzero"`
	// Copying is true until the copy has ended.
	Copying bool `json:"copying,omitempty"`
}

// Names are a volume's names in Kubernetes; each may be empty.
type Names struct {
	PV        string `json:"pv,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Claim     string `json:"claim,omitempty"`
}

// NamesOf returns the names that a record knows, and otherwise what was known.
func NamesOf(rec volume.Volume, before Names) Names {
	n := before
	if rec.PV != "" {
		n.PV = rec.PV
	}
	if rec.Spec.Claim != nil {
		n.Namespace, n.Claim = rec.Spec.Claim.Namespace, rec.Spec.Claim.Name
	}
	return n
}

// CacheBytes is the SSD space that the cache occupies, one copy of it.
func (e *Entry) CacheBytes() int64 { return e.DataBytes + e.MetaBytes }

// PoolBytes is the space of the pool that the cache takes with its checksums, or both copies of it, if the
// entry says that it has any.
func (e *Entry) PoolBytes() int64 {
	switch {
	case e.Checked:
		return integrity.RawBytes(e.DataBytes) + e.MetaBytes
	case e.Mirrored:
		return 2 * e.CacheBytes()
	}
	return e.CacheBytes()
}

// Cached reports whether the entry speaks of a cache on the SSD.
func (e *Entry) Cached() bool { return e != nil && e.Mode != volume.ModeNone }

// MayBeDirty reports whether the cache may hold the only copy of a write (I2).
// In Wiping it has been decided that nothing of the cache is worth keeping.
func (e *Entry) MayBeDirty() bool {
	return e != nil && e.State != Wiping && e.Mode == volume.ModeWriteback && e.Activated && !e.Clean
}

// Activation is what the journal knows.
func (e *Entry) Activation() volume.Activation {
	return volume.Activation{ID: e.ActivationID, Generation: e.Fence.Generation, Count: e.ActivationCount}
}

// Evictable reports whether the space of an entry may be given to another volume: that
// of a retained cache which nobody reads, or of prewarmed data.
func (e *Entry) Evictable() bool {
	return e.State == Retained && e.Exported == nil || e.State == Prewarmed
}

// MayHave reports whether a device of that part may be this node's, which has the entry or
// none. Nodes that share a kernel (kind) see each other's: one may export the cache to the
// other.
func (e *Entry) MayHave(p layout.Part) bool {
	switch {
	case p == layout.Exported:
		return e != nil && e.Exported != nil
	case e == nil:
		return true
	}
	return e.State != Retained && e.State != Prewarmed
}
