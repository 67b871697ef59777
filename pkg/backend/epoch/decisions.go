package epoch

// Step is the decision of Decide.
type Step = step

// The steps.
const (
	StepDraw    = stepDraw
	StepSwap    = stepSwap
	StepConfirm = stepConfirm
	StepRefused = stepRefused
	StepDone    = stepDone
)

// Decide is the table "Two clusters and one storage server" of docs/design/states.md, for
// whoever drives it without a server (e2e/model).
func Decide(server string, r Record, drawn bool) Step { return decide(server, r, drawn) }
