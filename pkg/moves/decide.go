package moves

import (
	"time"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// facts are what the source knows of one move.
type facts struct {
	// asked: the object exists.
	asked bool
	// ended: it has an outcome, is being deleted, or its deadline has passed.
	ended bool
	// state is what the source has answered.
	state v1alpha1.ExportState
	// served: the source node serves this move.
	served bool
	// missing is for how long there has been no object.
	missing time.Duration
}

// decision is what the source does next about one move.
type decision string

const (
	// nothing: nothing is to be done.
	nothing decision = "nothing"
	// wait: look again when the grace is over.
	wait decision = "wait"
	// exportCache: export, and answer with the lease or the reason against it.
	exportCache decision = "export"
	// release: end the lease, then answer that it is released.
	release decision = "release"
)

// decide is the table of "What the source node does" in docs/design/states.md, as far as
// objects tell. The first line that matches decides.
//
//	no object, not served                       nothing
//	no object, for less than the grace          wait: a repeated Begin is about to make a new one
//	no object                                   release
//	ended, and served or answered with Exported release
//	ended                                       nothing
//	not answered, or with Preparing             export, again if the answer was lost
//	answered with Exported, not served          export: refused, for the node has restarted
//	answered with Refused or Released, served   release
//	otherwise                                   nothing
func decide(f facts, grace time.Duration) decision {
	exported := f.state == v1alpha1.ExportStateExported
	switch {
	case !f.asked && !f.served:
		return nothing
	case !f.asked && f.missing < grace:
		return wait
	case !f.asked:
		return release
	case f.ended && (f.served || exported):
		return release
	case f.ended:
		return nothing
	case f.state == "", f.state == v1alpha1.ExportStatePreparing, exported && !f.served:
		return exportCache
	case !exported && f.served:
		return release
	}
	return nothing
}
