package attach

import (
	"cmp"
	"context"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// gatherStage collects what decideStage needs. A pool that cannot be read is a
// fact, not an error (I6). If the stage was prestaged, nothing on the SSD can ever have
// been activated since, and it is not looked at; prestaged is nil otherwise.
func (a *Attacher) gatherStage(ctx context.Context, req volume.StageRequest, prestaged *staging) (stageFacts, ssd.Cache, error) {
	rec, err := a.Records.Get(ctx, req.ID)
	if err != nil {
		return stageFacts{}, ssd.Cache{}, err
	}
	e, err := a.loadSettled(ctx, req.ID)
	if err != nil {
		return stageFacts{}, ssd.Cache{}, err
	}
	info, active, err := a.stack.Top(ctx, req.ID)
	if err != nil {
		return stageFacts{}, ssd.Cache{}, err
	}
	if !req.Publication.Source.Fenced() && rec.Spec.Mode == volume.ModeWriteback {
		rec.Spec.Mode = volume.ModeWritethrough // unfenced says why
	}
	f := stageFacts{
		Entry: e, SameBoot: e != nil && e.Boot == a.Boot,
		TopActive: active, TopOurs: active && info.UUID == layout.UUID(req.Publication.Fence, layout.Top),
		Fence: req.Publication.Fence, Record: rec, Node: a.Node,
		Prestaged: prestaged.precedes(e, req.Publication.Fence),
	}
	view := a.Pool.View()
	if f.CanMirror = view.For(true).Mirror; !view.Ready {
		f.PoolProblem = view.Problem
	}
	if f.PoolChecked = view.Integrity; f.PoolChecked {
		f.IntegrityProblem, f.IntegrityReason = a.integrityProblem(ctx, view), integrityReason(view)
	}
	f.KernelProblem = a.CacheProblem(ctx)
	f.StayedBefore = a.stayedBefore(req.ID, f.Fence)
	m := methodFacts{Asked: cmp.Or(rec.Spec.WarmStart.Method, a.Warm.Method), CloneProblem: a.warmProblem(ctx), StreamProblem: a.streamProblem(ctx)}
	f.Method, f.MethodReason = decideMethod(m)
	f.Streams = m.Asked != volume.MethodClone && m.StreamProblem == ""
	var c ssd.Cache
	if view.Readable() && !f.Prestaged {
		cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
		defer cancel()
		c, err = a.ssd.Find(cctx, req.ID)
		if err == nil && f.stopDue(c.Facts) {
			if err := a.noteStop(ctx, e); err != nil {
				return f, c, err
			}
			c, err = a.ssd.Find(cctx, req.ID)
		}
		if err != nil {
			if ctx.Err() != nil {
				return f, c, ctx.Err()
			}
			f.CacheProblem = err.Error()
		}
		f.Cache = c.Facts
		f.Entry = believed(e, c.Facts, &rec)
	}
	f.Proof.GivenUp = givenUp(f.Entry, f.Cache, &rec)
	if known, dirty := unflushed(e, f.Cache); dirty && known != f.Fence {
		if !e.MayBeDirty() {
			e = nil // it does not speak of these writes
		}
		q := lunQuestion{at: req.Publication.Source, cred: req.Credentials}
		if f.Proof, err = a.prove(ctx, req.ID, known, e, f.Cache, &rec, q); err != nil {
			return f, c, err
		}
	}
	return f, c, nil
}

// stopDue reports whether a take-down of this boot has ended between the end of the top device and
// the note of that on the SSD: a repair has little time for each volume, and a stage comes in
// between (states.md, A clean stop).
func (f *stageFacts) stopDue(c ssd.Facts) bool {
	e := f.Entry
	return e != nil && e.State == state.Flushed && f.SameBoot && !f.TopActive && c.Whole && c.Fence == e.Fence && !c.Stopped
}

// noteStop goes on with the take-down up to the note, as release does, so that the cache is not
// thrown away. One that is in doubt gets no note.
func (a *Attacher) noteStop(ctx context.Context, e *state.Entry) error {
	if err := a.stack.RemoveDevices(ctx, e.ID); err != nil {
		return err
	}
	if a.doubt(ctx, e) != "" {
		return nil
	}
	return a.tagStopped(ctx, e)
}
