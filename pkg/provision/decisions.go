package provision

import "github.com/nearflash/nearflash/pkg/volume"

// The decisions of docs/design/states.md and the facts that they rest on, for whoever drives
// them without a cluster (e2e/model).
type (
	// Claim is the decision of DecideClaim.
	Claim = claim
	// CutFacts are those of "Snapshots and clones".
	CutFacts = cutFacts
	// CutStep is the decision.
	CutStep = cutStep
)

// The steps of a cut.
const (
	CutAnswer = cutAnswer
	CutHold   = cutHold
	CutDrop   = cutDrop
	CutAccept = cutAccept
	CutCut    = cutCut
	CutFlush  = cutFlush
	CutSettle = cutSettle

	CutFreeze      = cutFreeze
	CutAwaitFreeze = cutAwaitFreeze
	CutThaw        = cutThaw
	CutUnfrozen    = cutUnfrozen
)

// DecideClaim is the table "The record (controller)".
func DecideClaim(v volume.Volume, node string, stored int64) (Claim, error) {
	return decideClaim(v, node, stored)
}

// DecideCut is the table "Snapshots and clones".
func DecideCut(f CutFacts) (CutStep, error) { return decideCut(f) }
