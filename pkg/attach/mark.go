package attach

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// takeBackMark reports that nothing of this fence is dirty any more. A record
// that names another owner has moved on (an abandoned volume); that is not an
// error of this node.
func (a *Attacher) takeBackMark(ctx context.Context, e *state.Entry) error {
	if !e.Marked {
		return nil
	}
	if a.ssd.Degraded() {
		return a.markClean(ctx, e)
	}
	if err := a.countUp(ctx, e); err != nil {
		return err
	}
	a.tagCounted(ctx, e)
	return a.markClean(ctx, e)
}

// tagCounted brings the count of what is clean to the SSD. That is not needed for it; it is not used again
// without.
func (a *Attacher) tagCounted(ctx context.Context, e *state.Entry) {
	if err := a.ssd.TagCounted(ctx, e); err != nil {
		klog.FromContext(ctx).Error(err, "Count of the volume is not on its SSD", "volume", e.ID)
	}
}

// markClean is the end of takeBackMark: what this node's disks were before is of the past
// for the record before it says Clean.
func (a *Attacher) markClean(ctx context.Context, e *state.Entry) error {
	if !e.Marked {
		return nil
	}
	if err := a.tellClean(ctx, e); err != nil {
		return err
	}
	e.Marked = false
	return a.save(ctx, e, e.State)
}

// tellClean has the record say Clean, with the count of the journal.
func (a *Attacher) tellClean(ctx context.Context, e *state.Entry) error {
	if err := a.tellTorn(ctx, e); err != nil {
		return err // before the record says that all is well
	}
	err := a.recordCount(ctx, e)
	if err == nil {
		err = a.Records.MarkClean(ctx, e.ID, e.Fence)
	}
	if errors.Is(err, volume.ErrFenced) || errors.Is(err, volume.ErrNotFound) {
		klog.FromContext(ctx).Info("Record has another owner, or is gone", "volume", e.ID, "generation", e.Fence.Generation)
		err = a.takeBackRemade(ctx, e)
	}
	if err != nil {
		return fmt.Errorf("report volume %s clean: %w", e.ID, err)
	}
	return nil
}

// takeBackRemade takes the mark of a record that was made anew meanwhile: what it says
// of this node's ownership is what the journal knows better.
func (a *Attacher) takeBackRemade(ctx context.Context, e *state.Entry) error {
	rec, err := a.findRecord(ctx, e.ID)
	if err != nil || rec == nil || !remade(*rec, e.Fence) {
		return err
	}
	return a.Records.MarkClean(ctx, e.ID, rec.Fence)
}
