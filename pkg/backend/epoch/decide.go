package epoch

// step is what leads to an epoch that this process has drawn.
type step string

const (
	// stepDraw records a new random epoch as the one that is to come.
	stepDraw step = "draw"
	// stepSwap puts the recorded one on the server.
	stepSwap step = "swap"
	// stepConfirm records that it is there.
	stepConfirm step = "confirm"
	// stepRefused: the server belongs to somebody else.
	stepRefused step = "refused"
	// stepDone: the server had the epoch that this process has drawn.
	stepDone step = "done"
)

// decide is the table of states.md, "Two clusters and one storage server". server is the
// epoch that the server has, "" for none; drawn reports whether this process has recorded
// one of its own.
//
// A recorded one that is not on the server yet is put there before another is drawn: a
// process that is still at it must not put there what nobody knows any more.
func decide(server string, r Record, drawn bool) step {
	ours := server == "" || server == r.Current || r.Takeover != nil && server == r.Takeover.Epoch
	switch {
	case server != "" && server == r.Pending:
		return stepConfirm
	case !ours:
		return stepRefused
	case r.Pending != "":
		return stepSwap
	case drawn:
		return stepDone
	}
	return stepDraw
}
