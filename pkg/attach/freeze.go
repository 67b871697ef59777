package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/freeze"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// freezeReportTime bounds a report of a freeze: it lasts seconds.
	freezeReportTime = 2 * time.Second
	// thawLeftTime bounds how long the start of a plugin waits for freezes of one before it.
	thawLeftTime = 10 * time.Second
)

// Freezer freezes mounted filesystems; freeze.Host is that of this machine.
type Freezer interface {
	// Mounted returns where a filesystem of a device is mounted.
	Mounted(ctx context.Context, devno string) (path string, found bool, err error)
	// Freeze returns when the filesystem is frozen. Something else than this process thaws it
	// after freeze.Limit.
	Freeze(ctx context.Context, o freeze.Order) (freeze.Frozen, error)
	// Left lists the volumes whose filesystem a process before this one may have left frozen;
	// Recover thaws one of them.
	Left(ctx context.Context) ([]volume.ID, error)
	Recover(ctx context.Context, id volume.ID) error
}

// freezeFacts are what decideFreeze rests on.
type freezeFacts struct {
	// Entry is nil if there is none.
	Entry  *state.Entry
	Record volume.Volume
	// Before says that this process has frozen the filesystem for this hold before.
	Before bool
	// Freezes says that this node can freeze filesystems.
	Freezes bool
	// DevNo is the number of the top device, and Path where its filesystem is mounted, "" if
	// it is nowhere.
	DevNo, Path string
}

// freezeStep is what is done about a request for a freeze.
type freezeStep string

const (
	freezeNothing freezeStep = "Nothing"
	freezeRaw     freezeStep = "Raw"
	freezeFailed  freezeStep = "Failed"
	freezeNow     freezeStep = "Freeze"
)

// decideFreeze decides about a request that nobody is working on (states.md, Snapshots and
// clones: A freeze), and says why a freeze has failed.
func decideFreeze(f freezeFacts) (step freezeStep, why string) {
	e, h, said := f.Entry, f.Record.Hold, f.Record.Freeze
	switch {
	case h == nil || h.Token == "" || said.Token == h.Token && said.State != volume.FreezeFrozen:
		return freezeNothing, ""
	case said.Token == h.Token:
		return freezeFailed, "the node's plugin ended meanwhile"
	case h.Freeze != volume.FreezeAsked, !f.Record.Published, e == nil, e != nil && (e.Fence != f.Record.Fence || e.State != state.Staged):
		return freezeNothing, ""
	case e.Raw:
		return freezeRaw, ""
	case f.Before:
		return freezeFailed, "it was frozen for this snapshot before, and that does not count"
	case !f.Freezes:
		return freezeFailed, "this node cannot freeze filesystems"
	case f.Path == "":
		return freezeFailed, "the volume's filesystem is not mounted yet"
	}
	return freezeNow, ""
}

// ThawLeft thaws what a process before this one may have left frozen.
func (a *Attacher) ThawLeft(ctx context.Context) {
	if a.Freezer == nil {
		return
	}
	log := klog.FromContext(ctx)
	left, err := a.Freezer.Left(ctx)
	if err != nil {
		log.Error(err, "Freezes of a plugin before this one could not be looked for")
	}
	var all sync.WaitGroup
	for _, id := range left {
		all.Go(func() {
			if err := a.Freezer.Recover(ctx, id); err != nil {
				log.Error(err, "Filesystem that a plugin before this one may have frozen was not thawed", "volume", id)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(thawLeftTime): // the kernel waits for the storage; other volumes do not
	}
}

// RunFreezes freezes filesystems when that is asked for, until ctx ends.
func (a *Attacher) RunFreezes(ctx context.Context, every time.Duration) {
	changed := a.Owned.Changed()
	for {
		pause := every
		busy, err := a.Freezes(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Requests to freeze filesystems could not be looked for")
		}
		if busy {
			pause = a.PollInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(pause):
		}
	}
}

// Freezes begins what is asked for, each volume for itself, and reports whether there is any.
func (a *Attacher) Freezes(ctx context.Context) (busy bool, err error) {
	records, err := a.Owned.List(ctx)
	if err != nil {
		return false, err
	}
	for _, rec := range records {
		said := rec.Freeze
		if rec.Hold == nil || rec.Hold.Freeze == "" || said.Token == rec.Hold.Token && said.State != volume.FreezeFrozen {
			continue
		}
		busy = true
		a.freezing.Begin(ctx, rec.ID, func(ctx context.Context, id volume.ID) error {
			err := a.Freeze(ctx, id)
			if err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Filesystem could not be frozen", "volume", id)
			}
			return err
		})
	}
	return busy, nil
}

// Freeze does what the record of a volume asks for, and returns when its filesystem is not
// frozen any more. It has the volume's lock meanwhile, so that nobody changes what is below the
// filesystem.
func (a *Attacher) Freeze(ctx context.Context, id volume.ID) error {
	e, unlock, err := a.lockSettled(ctx, id)
	defer unlock()
	if err != nil || e == nil {
		return err
	}
	f := freezeFacts{Entry: e, Freezes: a.Freezer != nil}
	if f.Record, err = a.Records.Get(ctx, id); err != nil {
		return err
	}
	if h := f.Record.Hold; h != nil {
		token, _ := a.frozeFor.Load(id)
		f.Before = token == h.Token
	}
	if f.Freezes {
		top, found, err := a.stack.Top(ctx, id)
		if err != nil {
			return err
		}
		if found {
			f.DevNo = top.DevNo()
			if f.Path, _, err = a.Freezer.Mounted(ctx, f.DevNo); err != nil {
				return err
			}
		}
	}
	switch step, why := decideFreeze(f); step {
	case freezeRaw:
		return a.reportFreeze(ctx, f, volume.FreezeNoFilesystem, "")
	case freezeFailed:
		return a.reportFreeze(ctx, f, volume.FreezeFailed, why)
	case freezeNow:
		return a.freeze(ctx, f)
	case freezeNothing:
	}
	return nil
}

// freeze freezes the filesystem for as long as the record asks for it, or the guard keeps it.
func (a *Attacher) freeze(ctx context.Context, f freezeFacts) error {
	log := klog.FromContext(ctx).WithValues("volume", f.Entry.ID)
	began := time.Now()
	a.frozeFor.Store(f.Entry.ID, f.Record.Hold.Token)
	frozen, err := a.Freezer.Freeze(ctx, freeze.Order{
		ID: f.Entry.ID, Token: f.Record.Hold.Token, Device: layout.Device(f.Entry.ID, layout.Top), DevNo: f.DevNo, Path: f.Path,
	})
	if err != nil {
		log.Error(err, "Filesystem could not be frozen")
		return a.reportFreeze(ctx, f, volume.FreezeFailed, err.Error())
	}
	faultFreezeFrozen.Hit()
	early := a.whileAsked(ctx, f, frozen)
	thawErr := frozen.Thaw(ctx)
	faultFreezeThawed.Hit()
	log.Info("Filesystem was frozen", "duration", time.Since(began), "until", fmt.Sprint(errors.Join(thawErr, early)))
	switch {
	case thawErr != nil:
		return a.reportFreeze(ctx, f, volume.FreezeFailed, thawErr.Error())
	case early != nil:
		return a.reportFreeze(ctx, f, volume.FreezeFailed, early.Error())
	}
	return a.reportFreeze(ctx, f, volume.FreezeHeld, "")
}

// errFreezeOver says that nobody has ended the request in time.
var errFreezeOver = errors.New("the volume was not cut within the time of a freeze")

// whileAsked says that the filesystem is frozen, and returns nil when the record does not ask for
// that any more. The time is the guard's to keep; it is kept here too, should that hang.
func (a *Attacher) whileAsked(ctx context.Context, f freezeFacts, frozen freeze.Frozen) error {
	over := time.After(freeze.Limit)
	if err := a.reportFreeze(ctx, f, volume.FreezeFrozen, ""); err != nil {
		return err
	}
	faultFreezeReported.Hit()
	for {
		rec, err := a.Records.Get(ctx, f.Entry.ID)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			return err
		case err == nil && (rec.Hold == nil || rec.Hold.Token != f.Record.Hold.Token || rec.Hold.Freeze != volume.FreezeAsked):
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the node's plugin ended meanwhile")
		case <-frozen.Done():
			return errFreezeOver
		case <-over:
			return errFreezeOver
		case <-time.After(a.PollInterval):
		}
	}
}

func (a *Attacher) reportFreeze(ctx context.Context, f freezeFacts, s volume.FreezeState, why string) error {
	ctx, cancel := context.WithTimeout(ctx, freezeReportTime)
	defer cancel()
	err := a.Records.ReportFreeze(ctx, f.Entry.ID, f.Entry.Fence, volume.FreezeReport{Token: f.Record.Hold.Token, State: s, Message: why})
	if err == nil && s != volume.FreezeFrozen {
		a.frozeFor.Delete(f.Entry.ID)
	}
	return err
}
