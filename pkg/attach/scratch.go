package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/scratch"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// scratchTimeout bounds the removal of a scratch volume, and scratchTries and scratchPause how often it is
	// tried: the kernel closes what a process had open a moment after its connection.
	scratchTimeout             = 30 * time.Second
	scratchTries, scratchPause = 5, 200 * time.Millisecond
)

var _ scratch.Lender = (*Attacher)(nil)

// LendScratch implements scratch.Lender (states.md, The SSD alone). Errors: ErrBusy while another one is lent,
// ssd.ErrNoScratch.
func (a *Attacher) LendScratch(ctx context.Context, bytes int64) (scratch.Device, func(context.Context) error, error) {
	if !a.scratch.TryLock() {
		return scratch.Device{}, nil, fmt.Errorf("%w: the SSD is being measured for somebody else", volume.ErrBusy)
	}
	cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
	defer cancel()
	s, err := a.ssd.MakeScratch(cctx, min(bytes, scratch.MaxBytes), scratch.MinBytes)
	if err != nil {
		a.scratch.Unlock() // what was made is swept
		return scratch.Device{}, nil, err
	}
	faultScratchMade.Hit()
	klog.FromContext(ctx).Info("Scratch volume lent", "bytes", s.LV.SizeBytes, "place", s.Words())
	d := scratch.Device{Path: s.LV.DevPath(), UUID: s.UUID, Bytes: s.LV.SizeBytes, Place: s.Words()}
	return d, a.takeScratchBack, nil
}

// takeScratchBack removes what was lent. What cannot be removed now is left to Repair.
func (a *Attacher) takeScratchBack(ctx context.Context) error {
	defer a.scratch.Unlock()
	ctx, cancel := context.WithTimeout(ctx, scratchTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := a.ssd.RemoveScratch(ctx)
		if !errors.Is(err, lvm.ErrBusy) || try == scratchTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(scratchPause):
		}
	}
}

// sweepScratch removes a scratch volume that no measurement of this plugin has.
func (a *Attacher) sweepScratch(ctx context.Context, lvs []lvm.LV) error {
	if !slices.ContainsFunc(lvs, ssd.IsScratch) || !a.scratch.TryLock() {
		return nil
	}
	defer a.scratch.Unlock()
	err := a.ssd.RemoveScratch(ctx)
	if errors.Is(err, lvm.ErrBusy) {
		klog.FromContext(ctx).Info("A process still has the scratch volume of a plugin that was killed")
		return nil
	}
	return err
}
