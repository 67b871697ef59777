package model

// What must never be. The words of a violation are part of its test.
const (
	// Stuck: no way without a disaster leads to a volume that is of use.
	Stuck = "no way leads on"

	destroyed    = "an unflushed write was destroyed without proof"
	overwritten  = "a flush wrote an old block over a newer one"
	falseClean   = "writes that the origin does not have were reported as flushed"
	stale        = "a pod reads what is older than an acknowledged write"
	twoWriters   = "two nodes write"
	shutOutOwner = "the owner's access was ended"
	foreignEnd   = "another cluster ended the access of a node"
	foreignIn    = "another cluster admitted a node"
	foreignGone  = "another cluster deleted the volume"

	lacksBefore  = "a snapshot lacks a write that was acknowledged before it was asked for"
	noPrefix     = "a snapshot has a write without one that was acknowledged before it"
	notFrozen    = "a pod could write between the order and the cut of a snapshot that was asked for frozen"
	swapBelow    = "a volume's device is changed below a frozen filesystem"
	acceptedGone = "an accepted snapshot was deleted by who had not asked for that"
)

// Fix is a set of mechanisms, without each of which one of these is possible.
type Fix uint16

// The mechanisms.
const (
	// Names: the storage server names each admission, and an order ends it by its name.
	Names Fix = 1 << iota
	// Wiped: the journal goes on to know of a volume whose cache was wiped for a stage,
	// until the intent of the stage is written.
	Wiped
	// Stops: a tag on the SSD is the witness of a clean stop, and not the superblock.
	Stops
	// Activations: each stage has a name that the record, the journal and the SSD know.
	Activations
	// OneCluster: the storage server takes orders of the cluster whose epoch it has.
	OneCluster
	// Proofs: that a record is not there, or is another one, proves nothing.
	Proofs
	// Reservations: the LUN of a static volume is reserved for its owner.
	Reservations
	// Leaves: a node that has nothing to flush does not wait for a server that may never
	// let it in again.
	Leaves
	// Judged: a record that was not judged since a takeover proves no release.
	Judged
	// Kept: a volume that is published without a stage is marked again.
	Kept
	// Admits: a pod is not given a volume that its record does not have attached.
	Admits
	// Stays: a reservation that was taken from another owner stays when the volume leaves.
	Stays
	// Consents: that a record calls writes clean which it does not know of is no consent.
	Consents
)

// CutFix is a set of mechanisms of snapshots.
type CutFix uint32

// The mechanisms of "Snapshots and clones".
const (
	// SecondLook: the record is read again behind the cut, before it is accepted.
	SecondLook CutFix = 1 << iota
	// Refusal: a record that says Clean is not marked while it is held.
	Refusal
	// CutNames: an order to accept or to drop a cut names its hold, and what was accepted stays.
	CutNames
	// OwnHold: a process trusts no hold but its own.
	OwnHold
	// Takeovers: nor its own of before a takeover.
	Takeovers
	// Unfinished: a cut that was cut off is none.
	Unfinished
	// CutFirst: the cut is looked for before the record is read.
	CutFirst
	// Flushes: a node that has the volume does the flush that came with the hold.
	Flushes
	// Drained: nor is a volume cut while its record says PossiblyDirty.
	Drained
	// Expires: a hold ends that nobody asks for any more, and what was cut under it goes.
	Expires
	// HeldBehind: a cut below a frozen filesystem is accepted when the node has said, behind the
	// cut, that it was frozen until then.
	HeldBehind
	// Attached: who publishes a volume that is held says that the hold's freeze has failed.
	Attached
	// GuardTells: the guard tells whether its time was over before the freeze was ended.
	GuardTells
	// Guarded: who works on a volume waits for the guard of its filesystem.
	Guarded
	// Once: a plugin freezes a filesystem once for a hold.
	Once
	// Left: a plugin that begins ends the freezes of one before it.
	Left
	// EndsFirst: a hold below which nothing was frozen ends before what was cut under it is dropped.
	EndsFirst
)
