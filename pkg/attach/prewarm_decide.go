package attach

import (
	"fmt"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/volume"
)

// prewarmStep is what a node does about a request to be prewarmed.
type prewarmStep string

const (
	// prewarmNothing: it is done, under way, not for this node now, or the volume is in
	// use here.
	prewarmNothing prewarmStep = "Nothing"
	// prewarmBegin asks the owner, after what this node has of the volume is wiped.
	prewarmBegin prewarmStep = "Begin"
	// prewarmResume goes on with a copy that another process began.
	prewarmResume prewarmStep = "Resume"
)

// prewarmFacts are what decidePrewarm rests on.
type prewarmFacts struct {
	Entry  *state.Entry
	Record volume.Volume
	Node   string
	// Running is true while this process copies.
	Running bool
}

// decidePrewarm is the table of states.md, A prewarmed node, in its
// order.
func decidePrewarm(f prewarmFacts) prewarmStep {
	e, r := f.Entry, f.Record
	switch {
	case !prewarmAsked(r, f.Node):
		return prewarmNothing
	case e == nil:
		return prewarmBegin
	case e.State == state.Retained && e.Exported == nil && (e.Fence.UID != r.Fence.UID || e.Fence.Generation < r.Fence.Generation) &&
		(r.WarmSource == nil || r.WarmSource.Node != f.Node):
		return prewarmBegin // a stale retained cache
	case e.State != state.Prewarmed || f.Running:
		return prewarmNothing
	case e.Fence.UID != r.Fence.UID || e.Fence.Generation != r.Fence.Generation || e.Prewarm == nil || e.Prewarm.Request != r.Prewarm.Request:
		return prewarmBegin
	case e.Prewarm.Copying && (e.Prewarm.Tracking == "" || e.Prewarm.Source == nil || e.Prewarm.ChunkSectors == 0):
		return prewarmBegin // the answer was lost with the process
	case e.Prewarm.Copying:
		return prewarmResume
	}
	return prewarmNothing
}

// prewarmAsked reports whether a record asks this node to copy the cache of another one.
func prewarmAsked(r volume.Volume, node string) bool {
	w := r.Spec.WarmStart.From
	return r.Prewarm != nil && r.Prewarm.Node == node && r.Published && r.Fence.Node != node && r.Fence.Generation > 0 &&
		!r.Deleting && r.Spec.Mode != volume.ModeNone && (w == volume.WarmPeer || w == "")
}

// prewarmCancelled reports whether nobody asks for a copy any more. A volume that is on
// its way to this node, or attached nowhere for the moment, is no reason: stage decides
// about the copy.
func prewarmCancelled(e *state.Entry, rec volume.Volume, node string) bool {
	asked := rec.Prewarm != nil && rec.Prewarm.Node == node && rec.Prewarm.Request == e.Prewarm.Request
	return rec.Fence.UID != e.Fence.UID || !asked && rec.Fence.Generation == e.Fence.Generation
}

// prewarmWanted reports whether copied data can still be of use: the volume is where it
// was, or comes to this node just now.
func prewarmWanted(e *state.Entry, rec volume.Volume, node string, now time.Time, ttl time.Duration) bool {
	f := rec.Fence
	switch {
	case e.Prewarm == nil || f.UID != e.Fence.UID || rec.Spec.Mode == volume.ModeNone:
		return false
	case !e.Prewarm.Copying && ttl > 0 && now.Sub(e.UpdatedAt) > ttl:
		return false
	}
	return f.Generation == e.Fence.Generation || f == volume.Fence{UID: e.Fence.UID, Generation: e.Fence.Generation + 1, Node: node}
}

// prewarmKept reports whether stage may keep prewarmed data, until the
// lease shows what they are worth. Once anything was activated they are the cache's.
func prewarmKept(e *state.Entry, f volume.Fence) bool {
	if e == nil || e.Prewarm == nil || e.Activated || e.Fence.UID != f.UID {
		return false
	}
	return e.State == state.Prewarmed && e.Fence.Generation == f.Generation-1 || e.State == state.Staging && e.Fence == f
}

// unfit says why prewarmed data are of no use for a lease, or "".
// What it lets pass is right as far as chunks were copied and not changed since.
func unfit(p *state.Prewarm, l volume.Lease) string {
	chunk := int64(l.ChunkSectors) * sectorSize
	t := l.Tracked
	switch {
	case t == nil || t.Changed == nil:
		return "the old node has no record of the writes since"
	case p.Tracking == "" || t.ID != p.Tracking:
		return "the old node's record of writes began at another time"
	case p.ChunkSectors != l.ChunkSectors || p.ExportedBytes != l.DataBytes:
		return fmt.Sprintf("the cache has %d bytes in chunks of %d sectors now, it had %d in chunks of %d", l.DataBytes, l.ChunkSectors, p.ExportedBytes, p.ChunkSectors)
	case chunk <= 0 || t.AreaBytes <= 0 || t.AreaBytes%chunk != 0:
		return fmt.Sprintf("writes are told apart in parts of %d bytes, which are no whole chunks", t.AreaBytes)
	case int64(len(t.Changed))*8 < (l.DataBytes+t.AreaBytes-1)/t.AreaBytes:
		return fmt.Sprintf("the record of writes has %d bytes, which is too short", len(t.Changed))
	}
	return ""
}

// unchanged returns the places of the chunks that were copied and in whose area nothing was written
// since, for a record that is not unfit.
func unchanged(copied volume.Bits, l volume.Lease) volume.Bits {
	chunk := int64(l.ChunkSectors) * sectorSize
	n := max(l.DataBytes/chunk, 0)
	out := volume.NewBits(uint64(n))
	for c := range n {
		if copied.Has(uint64(c)) && !volume.Bits(l.Tracked.Changed).Has(uint64(c*chunk/l.Tracked.AreaBytes)) {
			out.Set(uint64(c))
		}
	}
	return out
}

// runsOf are chunks as runs of sectors.
func runsOf(b volume.Bits, chunkSectors uint64) []cachemap.Range {
	var out []cachemap.Range
	for c := range uint64(len(b)) * 8 {
		start := c * chunkSectors
		switch n := len(out); {
		case !b.Has(c):
		case n > 0 && out[n-1].Start+out[n-1].Length == start:
			out[n-1].Length += chunkSectors
		default:
			out = append(out, cachemap.Range{Start: start, Length: chunkSectors})
		}
	}
	return out
}

// missing says which chunks of an owner's list are to be sent: all that were not copied. Errors:
// ErrUnavailable for a list that is none of a cache with those chunks and so much room.
func missing(l volume.ChunkList, chunkSectors, places uint64, copied volume.Bits) (volume.Wanted, error) {
	if l.ChunkSectors != chunkSectors {
		return volume.Wanted{}, fmt.Errorf("%w: the owner sends chunks of %d sectors, it has said %d", volume.ErrUnavailable, l.ChunkSectors, chunkSectors)
	}
	w := volume.Wanted{Skip: volume.NewBits(uint64(len(l.Places))), Places: l.Places}
	for i, at := range l.Places {
		if uint64(at) >= places {
			return volume.Wanted{}, fmt.Errorf("%w: the owner's list has place %d of a cache of %d chunks", volume.ErrUnavailable, at, places)
		}
		if copied.Has(uint64(at)) {
			w.Skip.Set(uint64(i))
		}
	}
	return w, nil
}
