package attach

import (
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The decisions of docs/design/states.md and the facts that they rest on, for whoever
// drives them without a host (e2e/model).
type (
	// StageFacts and StagePlan are those of "What stage decides".
	StageFacts = stageFacts
	// StagePlan is the decision.
	StagePlan = stagePlan
	// CacheFacts are what the SSD shows.
	CacheFacts = ssd.Facts
	// DownFacts are those of "What unstage and repair decide".
	DownFacts = downFacts
	// DownAction is the decision.
	DownAction = downAction
	// Proof is what else tells whether unflushed writes are wanted.
	Proof = proof
	// Ownership is what is known of unflushed writes.
	Ownership = ownership
	// ChangeFacts are those of "What changes while the volume is attached".
	ChangeFacts = changeFacts
	// ChangeStep is the decision.
	ChangeStep = changeStep
	// FreezeFacts are those of "A freeze".
	FreezeFacts = freezeFacts
	// FreezeStep is the decision.
	FreezeStep = freezeStep
)

// The plans and actions.
const (
	PlanUncached = planUncached
	PlanAdopt    = planAdopt
	PlanReuse    = planReuse
	PlanRecover  = planRecover
	PlanCreate   = planCreate

	DownNothing = downNothing
	DownFlush   = downFlush
	DownRecover = downRecover
	DownRelease = downRelease
	DownDetach  = downDetach
	DownWipe    = downWipe
	DownKeep    = downKeep

	ChangeClean     = changeClean
	ChangeUnmark    = changeUnmark
	ChangeMark      = changeMark
	ChangeRestore   = changeRestore
	ChangeWriteback = changeWriteback
	ChangeUnsafe    = changeUnsafe
	ChangeSafe      = changeSafe
	ChangeTell      = changeTell
	ChangeFlushed   = changeFlushed

	FreezeFailed = freezeFailed
	FreezeNow    = freezeNow

	OwnedHere     = ownedHere
	OwnedUnproven = ownedUnproven
)

// DecideStage is the table "What stage decides".
func DecideStage(f StageFacts) StagePlan { return decideStage(f) }

// DecideDown is the table "What unstage and repair decide".
func DecideDown(f DownFacts) DownAction { return decideDown(f) }

// DecideChange is the table "What changes while the volume is attached".
func DecideChange(f ChangeFacts) ChangeStep { return decideChange(f) }

// DecideFreeze decides about a request for a freeze, and says why one has failed.
func DecideFreeze(f FreezeFacts) (step FreezeStep, why string) { return decideFreeze(f) }

// PastWrites tells unflushed writes of disks of the past ("Whose disks these are").
func PastWrites(e *state.Entry, c CacheFacts, rec volume.Volume) bool { return pastWrites(e, c, rec) }

// Believed is the journal as far as it may be believed beside the SSD.
func Believed(e *state.Entry, c CacheFacts, rec volume.Volume) *state.Entry {
	return believed(e, c, &rec)
}

// GivenUp reports whether a record's word that nothing is unflushed is of after these disks.
func GivenUp(e *state.Entry, c CacheFacts, rec *volume.Volume) bool { return givenUp(e, c, rec) }

// DecideOwnership is the table "What ends unflushed writes".
func DecideOwnership(known volume.Fence, static bool, rec *volume.Volume, p Proof) Ownership {
	return decideOwnership(known, static, rec, p)
}
