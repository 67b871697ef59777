package volume

import (
	"fmt"
	"slices"
	"strings"
)

// Readers is the owner of a volume that many nodes read and nobody writes. No node can have this
// name, so that a version of before, which knows no readers, takes it for a node that has the volume
// (states.md, Readers).
const Readers = "*"

// MaxReaders is how many nodes may read a volume at a time.
const MaxReaders = 1000

// For is the volume as a node has to see it. A reader has an ownership of its own name, under
// the generation that all readers share; nothing of its cache can be dirty, and nothing else that
// is asked of an owner is asked of it.
func (v Volume) For(node string) Volume {
	if v.Fence.Node != Readers {
		return v
	}
	v.ReadOnly = true
	v.Published = v.Published && slices.Contains(v.Readers, node)
	v.Fence.Node = node
	v.WarmSource, v.Prewarm, v.Hold, v.Preload, v.FlushRequest, v.FlushDone, v.ScrubRequest, v.ScrubDone = nil, nil, nil, nil, "", "", "", ""
	v.Activation, v.Pending = Activation{}, Activation{}
	if v.Spec.Mode == ModeWriteback {
		v.Spec.Mode, v.Spec.Unsafe = ModeWritethrough, false
	}
	return v
}

// PublishedTo are the nodes that may have the volume attached.
func (v Volume) PublishedTo() []string {
	switch {
	case !v.Published:
		return nil
	case v.Fence.Node == Readers:
		return slices.Clone(v.Readers)
	}
	return []string{v.Fence.Node}
}

// NamesOfReaders says in words who reads a volume.
func NamesOfReaders(nodes []string) string {
	const most = 3
	if len(nodes) <= most {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(nodes[:most], ", "), len(nodes)-most)
}
