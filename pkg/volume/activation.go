package volume

// Activation is one stage of a volume on a node. Two disks, or images of one, that know
// different stages as the last one differ in it, although the node's name and the
// generation are the same (states.md, Whose disks these are).
type Activation struct {
	// ID is 128 random bits; empty of a stage by an earlier version.
	ID string
	// Generation is the ownership that the stage belongs to.
	Generation int64
	// Count grows with each stage, and while unflushed writes may be made.
	Count int64
}

// Identity is what a record says of an activation that some disks know.
type Identity string

const (
	// IdentityCurrent: it is the record's last one, or the one that is about to be.
	IdentityCurrent Identity = "Current"
	// IdentityAhead: the record knows less than the disks, as one out of a backup.
	IdentityAhead Identity = "Ahead"
	// IdentityPast: the volume was staged or flushed after what the disks know.
	IdentityPast Identity = "Past"
)

// LastStage reports whether what is known is of the record's last stage, and no other one of
// that ownership is about to be.
func (v Volume) LastStage(known Activation) bool {
	anew := v.Pending.ID != "" && v.Pending.Generation == known.Generation && v.Pending.ID != known.ID
	return v.Identify(known) == IdentityCurrent && !anew
}

// Identify is the table "Whose disks these are" of states.md, in its order. known is of
// the ownership that the record shows, or of the one before it.
func (v Volume) Identify(known Activation) Identity {
	now, pending := v.Activation, v.Pending
	if now.Generation != known.Generation {
		now = Activation{} // of another owner
	}
	if pending.Generation != known.Generation {
		pending = Activation{}
	}
	switch {
	case known.ID == now.ID && known.Count >= now.Count:
		return IdentityCurrent // also if neither knows one: an earlier version
	case known.ID != "" && known.ID == pending.ID:
		return IdentityCurrent
	case known.ID != now.ID && known.Count > max(now.Count, pending.Count):
		return IdentityAhead
	}
	return IdentityPast
}
