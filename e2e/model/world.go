package model

import (
	"strconv"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Version is the content of the one block: the number of the write that made it.
type Version uint8

// Node is one of the two nodes, or none.
type Node uint8

// The nodes.
const (
	NoNode Node = iota
	A
	B
)

var nodes = []Node{A, B}

func (n Node) String() string { return []string{"", "a", "b"}[n] }

// World is a state. It has no pointers, so that equal states are equal.
type World struct {
	Record Record
	// Backup is the record as it was when the API server was backed up.
	Backup Record
	Server Server
	Nodes  [3]Machine
	// Image is what a backup of A's disks holds.
	Image Disks
	// Control is what the controller is doing.
	Control Control
	// Mode is what the record asks for. Static is true of a unit whose server admits
	// everybody.
	Mode   Mode
	Static bool

	// Origin is what the storage server has; Acked the last acknowledged write.
	Origin, Acked Version
	// Floor is the oldest version that may be read: Acked, until somebody consents to
	// the loss of what a node has not flushed; what was acknowledged until then may be
	// lost (Given).
	Floor, Given Version
	Left         Budget
}

// Budget bounds how often each event may happen.
type Budget struct {
	Writes, Crashes, Kills, Restores, Images, Removals, Forces, Abandons, Errors, Moves uint8
}

// Record is the CachedVolume.
type Record struct {
	// UID is 0 while there is no record.
	UID, Generation  uint8
	Owner            Node
	Published, Dirty bool
}

// Server is the storage server's memory of the volume.
type Server struct {
	Generation uint8
	// Admitted is the generation under which each node is admitted, 0 if it is not.
	Admitted [3]uint8
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
	Boot             uint8
}

// Fence is a volume.Fence whose node is the one that has it.
type Fence struct{ UID, Generation uint8 }

// SSD is the volume's cache.
type SSD struct {
	Exists bool
	Fence  Fence
	Mode   Mode
	// Cached is the block's content, 0 if it is not cached, and Dirty whether it has
	// not been written to the origin.
	Cached Version
	Dirty  bool
	// Blank is true until the cache is first activated, Stopped while its superblock
	// has the flag of a clean shutdown.
	Blank, Stopped bool
}

// Machine is a node.
type Machine struct {
	Disks
	Boot uint8
	// Session is the generation under which the node was admitted when it logged in.
	Session uint8
	Top     Top
	// Pod is true while a pod uses the volume. A kubelet that is cut off leaves it.
	Pod bool
	// Attached is the fence of the publication that the kubelet was told of, the zero
	// value if the volume is not to be attached here.
	Attached Fence
	Work     Work
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
)

// State and Mode are attach's, by number.
type (
	State uint8
	Mode  uint8
)

var (
	stateNames = []string{"", "Staging", "Staged", "Flushing", "Flushed", "Releasing", "Resident", "Wiping"}
	modes      = []volume.CacheMode{volume.ModeNone, volume.ModeWritethrough, volume.ModeWriteback}
)

// The states of the journal and the modes.
const (
	NoEntry State = iota
	Staging
	Staged
	Flushing
	Flushed
	Releasing
	Resident
	Wiping
)

const (
	None Mode = iota
	Writethrough
	Writeback
)

// fence is the production value.
func (f Fence) fence(n Node) volume.Fence {
	if f == (Fence{}) {
		return volume.Fence{}
	}
	return volume.Fence{UID: "u" + strconv.Itoa(int(f.UID)), Generation: int64(f.Generation), Node: n.String()}
}

// volume is the production value; the caller sees to it that there is a record.
func (r Record) volume(mode Mode) volume.Volume {
	return volume.Volume{
		ID: "v", Spec: volume.Spec{Mode: modes[mode], AcceptNodeLoss: mode == Writeback},
		Fence:     volume.Fence{UID: "u" + strconv.Itoa(int(r.UID)), Generation: int64(r.Generation), Node: r.Owner.String()},
		Published: r.Published, PossiblyDirty: r.Dirty,
	}
}

// read is what the pod of a node reads; ok is false if that fails.
func (w *World) read(n Node) (v Version, ok bool) {
	m := &w.Nodes[n]
	if m.Top == TopNone {
		return 0, false
	}
	if m.Top != TopLinear && m.SSD.Cached != 0 {
		return m.SSD.Cached, true
	}
	return w.Origin, w.connected(n)
}

// connected tells whether I/O of a node reaches the origin.
func (w *World) connected(n Node) bool {
	m := &w.Nodes[n]
	return m.Session != 0 && (w.Static || w.Server.Admitted[n] == m.Session)
}

// atRest tells a state in which the volume is of use, and nothing is under way.
func (w *World) atRest() bool {
	for _, n := range nodes {
		if w.Nodes[n].Pod && w.Record.Owner == n && w.Record.Published && w.Nodes[n].Attached.UID == w.Record.UID {
			return true
		}
	}
	return false
}
