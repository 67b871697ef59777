package attach

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// proof is what ends the doubt whether unflushed writes are still wanted, besides the
// record (states.md, What ends unflushed writes).
type proof struct {
	// Deleted is true if somebody said that the data of this ownership are not wanted.
	Deleted bool
	// LUN is the generation for which the storage server shows this node the LUN; 0 if
	// it does not show it, keeps no generation, or the LUN is another volume of the name.
	LUN int64
	// GivenUp is true if the record calls this very ownership clean, and that is known to be
	// of after the writes were made: they were flushed, or abandoned.
	GivenUp bool
	// SameLUN is true if the LUN is proven to be the one that the cache was made for.
	SameLUN bool
}

// ownership is what is known of unflushed writes.
type ownership string

const (
	// ownedHere: nobody has written since. They are flushed.
	ownedHere ownership = "Here"
	// ownedAbandoned: the same, and the record says that they need not be.
	ownedAbandoned ownership = "GivenUp"
	// ownedLater: somebody else has written since, or the data are not wanted. They are
	// wiped.
	ownedLater ownership = "Later"
	// ownedUnproven: nobody knows. They are kept.
	ownedUnproven ownership = "Unproven"
)

// decideOwnership is the table "What ends unflushed writes" of states.md, in its order.
// rec is nil if there is no record of the name; static is true of a LUN whose server
// keeps no generation.
func decideOwnership(known volume.Fence, static bool, rec *volume.Volume, p proof) ownership {
	own := rec != nil && rec.Fence == known
	switch {
	case own && rec.PossiblyDirty:
		return ownedHere
	case own && p.GivenUp:
		return ownedAbandoned
	case rec != nil && laterOwner(rec.Fence, known), p.Deleted:
		return ownedLater
	case own && static:
		return ownedHere
	case static:
		return ownedUnproven
	case p.LUN > known.Generation:
		return ownedLater
	case p.LUN == known.Generation && p.SameLUN:
		return ownedHere
	case own, rec != nil && outdated(rec.Fence, known):
		return ownedHere // the LUN, if it tells, is compared when it is connected
	}
	return ownedUnproven
}

// asksLUN reports whether the decision depends on what the storage server says.
func asksLUN(known volume.Fence, static bool, rec *volume.Volume, p proof) bool {
	return !byRecord(known, rec, p.GivenUp) && !static && !p.Deleted
}

// byRecord reports whether the record alone decides.
func byRecord(known volume.Fence, rec *volume.Volume, givenUp bool) bool {
	return rec != nil && (rec.Fence == known && (rec.PossiblyDirty || givenUp) || laterOwner(rec.Fence, known))
}

// givenUp reports whether a record that calls the ownership of these disks clean is of after
// what they have: it knows a later stage, or an administrator's consent. One that was restored
// may have been clean before the writes were made, and says nothing of them.
func givenUp(e *state.Entry, c ssd.Facts, rec *volume.Volume) bool {
	if rec == nil || rec.PossiblyDirty {
		return false
	}
	later := rec.GivenUp
	for _, is := range []volume.Identity{journalIdentity(e, *rec), cacheIdentity(c, *rec)} {
		switch is {
		case volume.IdentityAhead:
			return false
		case volume.IdentityPast:
			later = true
		case volume.IdentityCurrent:
		}
	}
	return later
}

// laterOwner tells a record of a later ownership of the same volume.
func laterOwner(record, known volume.Fence) bool {
	return record.UID == known.UID && record.Generation > known.Generation
}

// outdated tells a record that shows an earlier ownership of the same volume than
// this node has had: only a restored one does (states.md, A record that is older than
// the truth).
func outdated(record, known volume.Fence) bool {
	return record.UID == known.UID && record.Generation < known.Generation
}

// remade tells a record that shows this very ownership, possibly dirty, under another
// UID: it was made anew, and the storage server knew whom it admits.
func remade(rec volume.Volume, known volume.Fence) bool {
	f := rec.Fence
	return f.UID != known.UID && f.Generation == known.Generation && f.Node == known.Node && rec.PossiblyDirty
}

// unflushed reports writes that only this node may have, and the ownership under which
// they were made. What the SSD's tags call writeback, and the journal does not know of,
// counts as dirty unless it is tagged as stopped, which comes after a flush.
func unflushed(e *state.Entry, c ssd.Facts) (known volume.Fence, dirty bool) {
	switch {
	case e.MayBeDirty():
		return e.Fence, !(c.Whole && c.SuperblockBlank && c.Fence == e.Fence)
	case e != nil && (e.State == state.Wiping || e.Fence.UID == c.Fence.UID):
		return volume.Fence{}, false
	}
	return c.Fence, c.Whole && c.Mode == volume.ModeWriteback && !c.SuperblockBlank && !c.Stopped
}

// errKept: unflushed writes stay where they are.
var errKept = errors.New("they are kept until somebody decides")

// foreignWrites refuses to go past unflushed writes of another ownership, unless that is
// proven to be over.
func foreignWrites(f stageFacts) error {
	known, dirty := unflushed(f.Entry, f.Cache)
	if !dirty || known == f.Fence {
		return nil
	}
	static := f.Record.Spec.Static != nil || f.Entry != nil && f.Entry.Static
	switch decideOwnership(known, static, &f.Record, f.Proof) {
	case ownedLater:
		return nil
	case ownedHere, ownedAbandoned:
		return fmt.Errorf(
			"%w: node %s may hold unflushed writes of generation %d, and the record shows %d (was it restored from a backup, or made anew?): they are flushed first",
			volume.ErrFenced, f.Node, known.Generation, f.Fence.Generation)
	case ownedUnproven:
	}
	return fmt.Errorf("%w: node %s has unflushed writes of this volume: %s: %w; `kubectl nearflash discard %s %s` gives them up",
		volume.ErrFenced, f.Node, whyKept(known, static, &f.Record), errKept, f.Node, cmp.Or(f.Record.ID, "VOLUME"))
}

// whyKept says in words why unflushed writes are kept.
func whyKept(known volume.Fence, static bool, rec *volume.Volume) string {
	record := "the volume has no record"
	if rec != nil {
		record = fmt.Sprintf("the record of the volume is another one (UID %s, generation %d, owner %q)", rec.Fence.UID, rec.Fence.Generation, rec.Fence.Node)
	}
	if static {
		return record + ", and nobody can tell whether another node has written since"
	}
	return fmt.Sprintf("%s, and the storage server does not show this node the volume under generation %d", record, known.Generation)
}
