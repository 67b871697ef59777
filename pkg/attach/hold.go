package attach

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// heldFacts are what mayAnswer rests on.
type heldFacts struct {
	Record volume.Volume
	// Entry is nil if the journal has none.
	Entry *state.Entry
	// Active is true while the top device has a table.
	Active bool
	// Looked is true if the node's SSDs were looked at for the volume, under its lock, Kept if
	// there may be unflushed writes of it.
	Looked, Kept bool
}

// asksLast tells the record of a volume that is held, and published nowhere: this node had it
// last, and is asked whether it has anything of it that is not written.
func asksLast(rec volume.Volume) bool {
	h := rec.Hold
	return h != nil && !rec.Published && !rec.PossiblyDirty && rec.FlushRequest == h.Token && rec.FlushDone != h.Token
}

// mayAnswer reports whether this node can say that it has nothing of such a volume. Its record may
// be of before a restore of etcd: what this node has at work, whatever the record says of it, is
// no answer, and is brought down first (states.md, Snapshots and clones).
func mayAnswer(f heldFacts) bool {
	idle := f.Entry == nil || f.Entry.State == state.Retained || f.Entry.State == state.Prewarmed
	return asksLast(f.Record) && idle && !f.Active && f.Looked && !f.Kept
}

// answerHolds answers the controller, which cuts volumes that this node had last. What cannot be
// looked at now is not answered, and asked about again.
func (a *Attacher) answerHolds(ctx context.Context, records []volume.Volume) {
	for _, rec := range records {
		if !asksLast(rec) {
			continue
		}
		if err := a.answerHold(ctx, rec.ID); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Controller was not told whether anything is left of a volume that is cut", "volume", rec.ID)
		}
	}
}

func (a *Attacher) answerHold(ctx context.Context, id volume.ID) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil
	}
	defer unlock()
	f := heldFacts{}
	var err error
	if f.Entry, err = a.loadSettled(ctx, id); err != nil {
		return err
	}
	if _, f.Active, err = a.stack.Top(ctx, id); err != nil {
		return err
	}
	if f.Record, err = a.Records.Get(ctx, id); err != nil {
		return err
	}
	if f.Looked, f.Kept, err = a.mayHold(ctx, id, f.Entry, f.Record); err != nil {
		return err
	}
	if !mayAnswer(f) {
		return nil
	}
	return a.Records.ReportFlushed(ctx, id, f.Record.Fence, f.Record.Hold.Token)
}

// mayHold looks whether the SSDs may have unflushed writes of a volume that is not at work. The
// pass of repair is no such look: it goes past what is locked, and past what fails. What the tags
// call dirty is for repair to decide about; until then it is there.
func (a *Attacher) mayHold(ctx context.Context, id volume.ID, e *state.Entry, rec volume.Volume) (looked, kept bool, err error) {
	view := a.Pool.View()
	if !view.Readable() {
		return false, false, nil // an SSD that is not there may have them
	}
	c, err := a.ssd.Inspect(ctx, view.VG, id)
	if err != nil {
		return false, false, err
	}
	_, dirty := unflushed(believed(e, c.Facts, &rec), c.Facts)
	return true, dirty || a.keeps.has(id), nil
}
