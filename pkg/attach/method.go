package attach

import (
	"github.com/nearflash/nearflash/pkg/volume"
)

// methodFacts are what decideMethod rests on.
type methodFacts struct {
	// Asked is what the volume asks for, or else the node; empty leaves it open.
	Asked volume.MoveMethod
	// CloneProblem and StreamProblem say why this node cannot fill a cache so, or are empty.
	CloneProblem, StreamProblem string
}

// decideMethod is the table "By which method" of states.md: how a cache that begins from
// elsewhere is filled, and why so; none if it cannot be.
func decideMethod(f methodFacts) (m volume.MoveMethod, reason string) {
	switch {
	case f.Asked == volume.MethodClone && f.CloneProblem != "":
		return "", "clone is asked for: " + f.CloneProblem
	case f.Asked == volume.MethodStream && f.StreamProblem != "":
		return "", "stream is asked for: " + f.StreamProblem
	case f.Asked != "":
		return f.Asked, "it is asked for"
	case f.CloneProblem == "":
		return volume.MethodClone, "this node has dm-clone and an iSCSI target"
	case f.StreamProblem == "":
		return volume.MethodStream, "clone cannot be used: " + f.CloneProblem
	}
	return "", f.CloneProblem + "; " + f.StreamProblem
}
