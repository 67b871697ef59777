package attach

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// tellTimeout bounds a try to report the end of a move: the volume's lock is held meanwhile.
const tellTimeout = 2 * time.Second

// endLater gives up the stream of a stage whose pod waits for no report: the entry notes what
// there is to report (states.md, The stream). The caller removes what of the stream is on the SSD.
func (a *Attacher) endLater(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string) {
	h := e.Hydration
	e.Hydration = nil
	a.removeMap(ctx, e.ID) // that of a stage before this one, which was killed, or prepared it
	if h.Move.Name == "" || a.Moves == nil {
		return
	}
	if a.MoveEnded != nil {
		a.MoveEnded(h.Began(), o)
	}
	e.EndedMove = &state.EndedMove{Move: h.Move, Outcome: o, Message: message}
	klog.FromContext(ctx).Info("Move ended", "volume", e.ID, "move", h.Move.Name, "outcome", o, "message", message)
}

// tellEnded reports the end of a move that the entry has noted. It returns false if there is
// nothing to take out of the journal.
func (a *Attacher) tellEnded(ctx context.Context, e *state.Entry) (told bool) {
	if e.EndedMove == nil || a.Moves == nil {
		return false
	}
	// Also for a request that has run out of time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
	defer cancel()
	if err := a.Moves.Finish(ctx, e.EndedMove.Move, e.EndedMove.Outcome, e.EndedMove.Message); err != nil {
		klog.FromContext(ctx).Error(err, "End of a move could not be reported", "volume", e.ID, "move", e.EndedMove.Move.Name)
		return false
	}
	e.EndedMove = nil
	return true
}

// reportEnded is tellEnded for an entry that nobody is about to write. What else the entry says,
// and of which boot, stays.
func (a *Attacher) reportEnded(ctx context.Context, e *state.Entry) error {
	if !a.tellEnded(ctx, e) {
		return nil
	}
	return a.write(ctx, e)
}
