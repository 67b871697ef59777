package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cacheVolumes are a volume's logical volumes as found.
type cacheVolumes struct {
	layout.Cache
	facts cacheFacts
	// hydrationMap is the map of a hydration that begins; nil for one that goes on.
	hydrationMap *cachemap.Map
	// hydrationHave are the runs of its data that were copied beforehand and are right.
	hydrationHave []cachemap.Range
}

// findCache looks up the cache of id on the SSD. It activates the logical
// volumes, since only then the superblock can be read.
func (a *Attacher) findCache(ctx context.Context, id volume.ID) (cacheVolumes, error) {
	view := a.Pool.View()
	if view.VG == "" {
		return cacheVolumes{}, nil
	}
	lvs, err := a.LVM.LVs(ctx, view.VG)
	if err != nil {
		return cacheVolumes{}, fmt.Errorf("cache of volume %s: %w", id, err)
	}
	c := pickCache(lvs, id)
	if !c.facts.Whole {
		return c, nil
	}
	if !c.Active() {
		if c, err = a.activateCache(ctx, view.VG, id, c.Names()...); err != nil {
			return c, err
		}
	}
	c.facts.Apart = a.apart(c)
	sb, err := a.stack.ReadSuperblock(c.Meta.DevPath())
	switch {
	case errors.Is(err, devmapper.ErrNoSuperblock):
		// Metadata that are neither blank nor ours could never be loaded; the
		// map is lost. Only blankness proves that nothing was ever cached.
		c.facts.SuperblockBlank = sb.Blank
	case err != nil:
		return c, fmt.Errorf("cache of volume %s: %w", id, err)
	default:
		c.facts.SuperblockClean = sb.CleanShutdown && !sb.NeedsCheck
	}
	return c, nil
}

func (a *Attacher) activateCache(ctx context.Context, vg string, id volume.ID, names ...string) (cacheVolumes, error) {
	if err := a.LVM.Activate(ctx, vg, names...); err != nil {
		return cacheVolumes{}, fmt.Errorf("cache of volume %s: %w", id, err)
	}
	lvs, err := a.LVM.LVs(ctx, vg)
	if err != nil {
		return cacheVolumes{}, fmt.Errorf("cache of volume %s: %w", id, err)
	}
	c := pickCache(lvs, id)
	if !c.facts.Whole || !c.Active() {
		return c, fmt.Errorf("cache of volume %s: logical volumes are not active after activation", id)
	}
	return c, nil
}

// pickCache selects the logical volumes of id from a report.
func pickCache(lvs []lvm.LV, id volume.ID) cacheVolumes {
	c := layout.Find(lvs, id)
	return cacheVolumes{Cache: c, facts: cacheFacts{
		Whole: c.Paired(), Partial: c.Partial(), Hydration: c.Hydrating(), Stopped: c.Stopped,
		Fence: c.Fence, Mode: c.Mode, ActivationID: c.Activation.ID, ActivationCount: c.Activation.Count,
	}}
}

// gatherStage collects what decideStage needs. A pool that cannot be read is a
// fact, not an error (I6). If the stage was prepared, nothing on the SSD can ever have
// been activated since, and it is not looked at; prepared is nil otherwise.
func (a *Attacher) gatherStage(ctx context.Context, req volume.StageRequest, prepared *staging) (stageFacts, cacheVolumes, error) {
	rec, err := a.Records.Get(ctx, req.ID)
	if err != nil {
		return stageFacts{}, cacheVolumes{}, err
	}
	e, err := a.loadSettled(ctx, req.ID)
	if err != nil {
		return stageFacts{}, cacheVolumes{}, err
	}
	info, active, err := a.stack.Top(ctx, req.ID)
	if err != nil {
		return stageFacts{}, cacheVolumes{}, err
	}
	f := stageFacts{
		Entry: e, SameBoot: e != nil && e.Boot == a.Boot,
		TopActive: active, TopOurs: active && info.UUID == layout.UUID(req.Publication.Fence, layout.Top),
		Fence: req.Publication.Fence, Record: rec, Node: a.Node,
		Prepared: prepared.precedes(e, req.Publication.Fence),
	}
	if view := a.Pool.View(); !view.Ready {
		f.PoolProblem = view.Problem
	}
	f.KernelProblem = a.CacheProblem(ctx)
	f.WarmProblem, f.StayedBefore = a.warmProblem(ctx), a.stayedBefore(req.ID, f.Fence)
	var c cacheVolumes
	if f.PoolProblem == "" && !f.Prepared {
		cctx, cancel := context.WithTimeout(ctx, a.CacheTimeout)
		defer cancel()
		if c, err = a.findCache(cctx, req.ID); err != nil {
			if ctx.Err() != nil {
				return f, c, ctx.Err()
			}
			f.CacheProblem = err.Error()
		}
		f.Cache = c.facts
		f.Entry = believed(e, c.facts, &rec)
	}
	if known, dirty := unflushed(e, f.Cache); dirty && known != f.Fence {
		if !e.MayBeDirty() {
			e = nil // it does not speak of these writes
		}
		q := unitQuestion{at: req.Publication.Source, cred: credentials(req.Credentials)}
		if f.Proof, err = a.prove(ctx, req.ID, known, e, &rec, q); err != nil {
			return f, c, err
		}
	}
	return f, c, nil
}
