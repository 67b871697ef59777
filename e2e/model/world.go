package model

import "github.com/nearflash/nearflash/pkg/volume"

// Version is the content of the one block: the number of the write that made it.
type Version uint8

// Node is a machine: two nodes of the cluster, and one of a second cluster.
type Node uint8

// The nodes.
const (
	NoNode Node = iota
	A
	B
	// C is of the cluster that was made from a copy of etcd. Of its side there is only
	// what it writes.
	C
)

var nodes = []Node{A, B}

func (n Node) String() string { return []string{"", "a", "b", "c"}[n] }

// other is the other node of the cluster.
func (n Node) other() Node { return A + B - n }

// World is a state. It is small numbers only, without pointers and without gaps, so
// that equal states are equal and are hashed at once.
type World struct {
	// Clusters are that of the nodes and, once etcd was copied, that of the copy.
	Clusters [2]Cluster
	// Backup is the record as it was when the API server was backed up.
	Backup Record
	// Known are the stages that the record knows, BackupKnown those of the backup.
	Known, BackupKnown Acts
	BackupEpochs       Epochs
	// Old is a controller that has lost its leadership and does not know it.
	Old    Control
	Server Server
	Nodes  [2]Machine
	// Image are disks that are in no machine: a backup of A's, or those of a spare.
	Image Disks
	// Mode is what the record asks for. Static is true of a LUN whose server keeps no
	// generation and admits everybody.
	Mode   Mode
	Static bool
	// Without are the mechanisms that are taken out of the programs.
	Without Fix
	// Consent is true if administrators abandon writes that only one node has.
	Consent bool
	Truth   Truth
	Left    Budget
}

// Truth is what nobody in the world knows as a whole, and the checks go by.
type Truth struct {
	// Origin is what the storage server has; Acked the last acknowledged write.
	Origin, Acked Version
	// Floor is the oldest version that may be read: Acked, until somebody consents to
	// the loss of what a node has not flushed; what was acknowledged until then may be
	// lost (Given).
	Floor, Given Version
	// Owner is the node of the pod whose writes are owed to it: the one that began last,
	// until its writes are abandoned.
	Owner Node
	// Unwanted is true once somebody has asked to delete the volume.
	Unwanted bool
}

// Budget bounds how often each chance may happen.
type Budget struct {
	Writes, Moves, Forces, Swaps                           uint8
	Crashes, Kills, Lost, Leaders                          uint8
	Restores, Removals, Renewals, Images, Spares, Journals uint8
	Copies, Deletes, Counts, Swings                        uint8
}

// Cluster is an API server and the controller that it has.
type Cluster struct {
	Exists  bool
	Record  Record
	Control Control
	Epochs  Epochs
	// Drawn is true once its process has recorded an epoch of its own, Ready once that
	// was on the server.
	Drawn, Ready bool
}

// Record is the CachedVolume.
type Record struct {
	// UID is 0 while there is no record.
	UID, Generation            uint8
	Owner                      Node
	Published, Dirty, Deleting bool
	// GivenUp is the generation whose writes were abandoned last.
	GivenUp uint8
	// Old is true of a record that was not judged since the last takeover.
	Old bool
}

// Server is the storage server's memory of the volume.
type Server struct {
	Generation uint8
	// Admitted is the generation under which A, B and C are admitted, 0 if they are not.
	Admitted [3]uint8
	Deleted  bool
	// Holder is the ownership that the LUN of a static volume is reserved for, and Keys
	// what A and B are registered with.
	Holder Fence
	Keys   [2]Fence
	// Epoch tells whose orders are taken.
	Epoch uint8
}

// Disks are what survives a crash of a node.
type Disks struct {
	Journal Journal
	SSD     SSD
}

// Journal is the entry of the volume.
type Journal struct {
	State            State
	Fence            Fence
	Mode             Mode
	Activated, Clean bool
	Marked           bool
	Act              Act
	// SameBoot is true until the kernel that ran when it was written has ended.
	SameBoot bool
	// Reserved is true once the LUN was reserved, Lost once somebody else had it.
	Reserved, Lost bool
	// Inherited is true if another owner had the LUN before: the reservation stays then.
	Inherited bool
}

// Fence is a volume.Fence whose node is the one that has it.
type Fence struct{ UID, Generation uint8 }

// SSD is the volume's cache.
type SSD struct {
	Exists bool
	Fence  Fence
	Mode   Mode
	Act    Act
	// Cached is the block's content, 0 if it is not cached, and Dirty whether it has
	// not been written to the origin.
	Cached Version
	Dirty  bool
	// Blank is true until the cache is first activated. Shut is the superblock's flag of a
	// clean shutdown, Marks what its map says is dirty then, and Stopped the tag of a
	// clean stop.
	Blank, Shut, Marks, Stopped bool
}

// Machine is a node.
type Machine struct {
	Disks
	// Session is the generation under which the node was admitted when it logged in.
	Session uint8
	Top     Top
	// Pod is true while a pod uses the volume. A kubelet that is cut off leaves it.
	Pod bool
	// Attached is the fence of the publication that the kubelet was told of, the zero
	// value if the volume is not to be attached here.
	Attached Fence
	// Told is the ownership, with those before it, whose data the node was told that
	// nobody wants.
	Told Fence
	Work Work
}

// Top is the loaded table.
type Top uint8

// Tables of the top device.
const (
	TopNone Top = iota
	TopLinear
	TopWritethrough
	TopWriteback
	TopCleaner
	// TopError fails every request.
	TopError
)

// State and Mode are attach's, by number.
type (
	State uint8
	Mode  uint8
)

var (
	stateNames = []string{"", "Staging", "Staged", "Flushing", "Flushed", "Releasing", "Retained", "Wiping"}
	modes      = []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback}
	uids       = []string{"", "u1", "u2", "u3"}
)

// The states of the journal and the modes.
const (
	NoEntry State = iota
	Staging
	Staged
	Flushing
	Flushed
	Releasing
	Retained
	Wiping
)

const (
	None Mode = iota
	Writethrough
	Writeback
)

// at is a node's machine.
func (w *World) at(n Node) *Machine { return &w.Nodes[n-1] }

// record is the one that the nodes see.
func (w *World) record() *Record { return &w.Clusters[0].Record }

// fence is the production value.
func (f Fence) fence(n Node) volume.Fence {
	if f == (Fence{}) {
		return volume.Fence{}
	}
	return volume.Fence{UID: uids[f.UID], Generation: int64(f.Generation), Node: n.String()}
}

// fence is the ownership that a record shows.
func (r Record) fence() Fence { return Fence{UID: r.UID, Generation: r.Generation} }

// names reports whether the record shows node n as owner under f.
func (r Record) names(n Node, f Fence) bool { return r.UID != 0 && r.Owner == n && r.fence() == f }

// volume is the production value; the caller sees to it that there is a record.
func (r Record) volume(mode Mode) volume.Volume {
	return volume.Volume{
		ID: "v", Spec: volume.Spec{Mode: modes[mode], AcceptNodeLoss: mode == Writeback},
		Fence:     volume.Fence{UID: uids[r.UID], Generation: int64(r.Generation), Node: r.Owner.String()},
		Published: r.Published, PossiblyDirty: r.Dirty, GivenUp: r.GivenUp != 0 && r.GivenUp == r.Generation,
	}
}

// shown is the record as production has it, with the stages that it knows.
func (w *World) shown() volume.Volume {
	v := w.record().volume(w.Mode)
	v.Activation, v.Pending = w.Known.Current.activation(), w.Known.Pending.activation()
	return v
}

// sees is what the pod of a node reads; ok is false if that fails.
func (w *World) sees(n Node) (v Version, ok bool) {
	m := w.at(n)
	if m.Top == TopNone || m.Top == TopError {
		return 0, false
	}
	if m.Top != TopLinear && m.SSD.Cached != 0 {
		return m.SSD.Cached, true
	}
	return w.Truth.Origin, w.connected(n)
}

// connected reports whether I/O of a node reaches the origin.
func (w *World) connected(n Node) bool {
	m := w.at(n)
	if w.reserves() && w.Server.Holder != (Fence{}) && w.Server.Keys[n-1] == (Fence{}) {
		return false // it may read, but nothing here depends on that
	}
	return m.Session != 0 && !w.Server.Deleted && (w.Static || w.Server.Admitted[n-1] == m.Session)
}

// ofUse tells a state in which the volume is of use, or nobody wants it and nothing of it
// is left.
func (w *World) ofUse() bool {
	if w.Truth.Unwanted {
		return w.record().UID == 0 && w.at(A).idle() && w.at(B).idle()
	}
	for _, n := range nodes {
		m := w.at(n)
		if m.Pod && w.record().names(n, m.Journal.Fence) && w.record().Published {
			_, ok := w.sees(n)
			return ok
		}
	}
	return false
}

// idle tells that a node has nothing of the volume but a cache without unflushed writes.
func (m *Machine) idle() bool { return m.Top == TopNone && m.Session == 0 && !m.SSD.Dirty }

// busy is a node whose next act is seen by nobody else, if there is one.
func (w *World) busy() Node {
	for _, n := range nodes {
		if k := w.at(n).Work; k.Op != Idle && acts[k.Op][k.Step].local {
			return n
		}
	}
	return NoNode
}
