package reservation

import "slices"

// Facts are what a LUN shows, and what is known of its volume.
type Facts struct {
	// Own is the key of the ownership that asks.
	Own Key
	// Keys are those of all registrations.
	Keys []Key
	// Held is the reservation, if Found.
	Held  Held
	Found bool
	// Paths is how many paths of this node answered.
	Paths int
}

// registered counts the registrations with the own key.
func (f Facts) registered() int {
	n := 0
	for _, k := range f.Keys {
		if k == f.Own {
			n++
		}
	}
	return n
}

// others are the keys that are registered beside the own one, each once.
func (f Facts) others() []Key {
	var out []Key
	for _, k := range f.Keys {
		if k != f.Own && !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}

// holder reports whether the own key holds the reservation that is wanted.
func (f Facts) holder() bool {
	return f.Found && f.Held == Held{Key: f.Own, Type: WriteExclusiveRegistrantsOnly}
}

// Step is what to do about a reservation.
type Step string

// The steps of states.md, The fence of a static volume.
const (
	// StepNothing: all is as it should be, or nothing can be told.
	StepNothing Step = "Nothing"
	// StepReserve: register and reserve.
	StepReserve Step = "Reserve"
	// StepPreempt: register and take the reservation from whoever holds it.
	StepPreempt Step = "Preempt"
	// StepRegister: register the paths; the reservation is ours.
	StepRegister Step = "Register"
	// StepPurge: end the registrations of earlier owners.
	StepPurge Step = "Purge"
	// StepForeign: refuse, somebody else's host uses the LUN.
	StepForeign Step = "Foreign"
	// StepLater: refuse, the LUN belongs to a later owner.
	StepLater Step = "Later"
	// StepLost: somebody else holds the reservation that was ours.
	StepLost Step = "Lost"
)

// DecideTake is the table "What stage decides about the reservation" of states.md. The
// record names the asking node as published owner. who is the key that the step is about.
func DecideTake(f Facts) (step Step, who Key) {
	suspects := f.others()
	if f.Found && f.Held.Key != f.Own {
		suspects = append([]Key{f.Held.Key}, suspects...)
	}
	for _, k := range suspects {
		if !k.Ours() {
			return StepForeign, k
		}
	}
	for _, k := range suspects {
		if k.Later(f.Own) {
			return StepLater, k
		}
	}
	switch {
	case !f.Found:
		return StepReserve, 0
	case f.Held.Type != WriteExclusiveRegistrantsOnly:
		return StepForeign, f.Held.Key
	}
	return StepPreempt, f.Held.Key
}

// Entitled says whether the record names the asking ownership as published.
type Entitled string

// The answers.
const (
	// EntitledUnknown: the record cannot be read, or is gone.
	EntitledUnknown Entitled = "Unknown"
	EntitledYes     Entitled = "Yes"
	// EntitledNo: the record names somebody else.
	EntitledNo Entitled = "No"
)

// Before is who has the LUN, or had it and has not left.
func (f Facts) Before() Before {
	return Before{Others: f.Found && f.Held.Key != f.Own || len(f.others()) > 0, Own: f.holder()}
}

// Registered reports whether the own key holds the reservation, and every path that answers
// has it.
func (f Facts) Registered() bool { return f.holder() && f.registered() >= f.Paths }

// Unregistered reports whether the own key holds the reservation, but not every path has
// it. Another machine under this node's name leaves the same behind: it has the same key.
func (f Facts) Unregistered() bool { return f.holder() && f.registered() < f.Paths }

// DecideWatch is the table "What the owner decides about its reservation" of states.md,
// for an ownership that has held the reservation. who is the key that the step is about.
func DecideWatch(f Facts, e Entitled) (step Step, who Key) {
	switch {
	case f.holder():
		for _, k := range f.others() {
			if k.SameVolume(f.Own) && !k.Later(f.Own) {
				return StepPurge, k
			}
		}
		if f.Unregistered() && e == EntitledYes {
			return StepRegister, f.Own
		}
		return StepNothing, 0
	case f.Found:
		return StepLost, f.Held.Key
	case e == EntitledYes:
		return StepReserve, 0
	case e == EntitledNo && f.registered() == 0:
		return StepLost, 0
	}
	return StepNothing, 0
}

// DecideReturn is the table "What repair decides before it flushes" of states.md. had says
// that this ownership has held the reservation.
func DecideReturn(f Facts, e Entitled, had bool) (step Step, who Key) {
	switch {
	case f.holder():
		return StepPreempt, f.Own
	case f.Found && had:
		return StepLost, f.Held.Key
	case f.Found:
		return StepLater, f.Held.Key
	case !had || e == EntitledYes || f.registered() > 0:
		return StepReserve, 0
	case e == EntitledNo:
		return StepLost, 0
	}
	return StepNothing, 0
}
