package ssd

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Facts are what the SSD itself shows of a volume's cache.
type Facts struct {
	// Whole is true when both logical volumes exist; Partial when one does.
	Whole, Partial bool
	// Inactive is true of logical volumes that could not be activated, or must not be: their tags are known, and nothing else.
	Inactive bool
	// Fence and Mode come from the tags written when the volumes were made.
	Fence volume.Fence
	Mode  volume.CacheMode
	// SuperblockClean is the clean-shutdown flag of the cache's metadata, the
	// second witness of I4; SuperblockBlank is true for a cache that was never
	// activated.
	SuperblockClean, SuperblockBlank bool
	// Stopped is the tag of a clean stop, the third witness.
	Stopped bool
	// Apart is true when data are on an SSD that the map is not on.
	Apart bool
	// ActivationID and ActivationCount are the last stage, by the tags.
	ActivationID    string
	ActivationCount int64
	// Mirrored is Cache.Mirrored.
	Mirrored bool
	// Leaving is true when a part lies on an SSD that is to leave the pool.
	Leaving bool
	// Checked is true if the data have checksums.
	Checked bool
	// Hydration is true when the logical volume of an unfinished hydration exists.
	Hydration bool
}

// Exists reports whether anything of the cache occupies the pool.
func (c Facts) Exists() bool { return c.Whole || c.Partial }

// Of reports whether the SSD holds the cache that the journal speaks of.
func (c Facts) Of(e *state.Entry) bool {
	return c.Fence == e.Fence && c.Activation() == e.Activation()
}

// StopProven reports whether the SSD agrees that the cache was stopped cleanly (I4). A
// version before wrote no tags; of its entries those are believed that it wrote when the
// volume had left.
func (c Facts) StopProven(e *state.Entry) bool {
	return c.Stopped || e.ActivationID == "" && e.State != state.Flushed
}

// Cache is a volume's logical volumes as found.
type Cache struct {
	layout.Cache
	Facts Facts
	// HydrationMap is the map of a hydration that begins; nil for one that goes on.
	HydrationMap *cachemap.Map
	// HydrationHave are the runs of its prewarmed data that are right.
	HydrationHave []cachemap.Range
}

// Mirrored reports whether data and map have two copies each.
func (c Cache) Mirrored() bool { return c.Data.Mirrored() && c.Meta.Mirrored() }

// Find looks up the cache of id on the SSD. It activates the logical
// volumes, since only then the superblock can be read.
func (g *Group) Find(ctx context.Context, id volume.ID) (Cache, error) {
	view := g.Pool.View()
	if view.VG == "" {
		return Cache{}, nil
	}
	c, err := g.Inspect(ctx, view.VG, id)
	if err != nil {
		return Cache{}, fmt.Errorf("cache of volume %s: %w", id, err)
	}
	leaving, err := g.OnLeaving(ctx)
	if err != nil {
		// It is used where it is, then, and leaves later.
		klog.FromContext(ctx).Error(err, "Whether a cache has to leave its devices is not known", "volume", id)
	}
	if c.Facts.Whole {
		used, err := g.use(ctx, view.VG, id, c)
		if err != nil {
			c.Facts.Inactive = true
			return c, err
		}
		c = used
	}
	if c.Facts.Leaving = leaving[id]; !c.Facts.Whole {
		return c, nil
	}
	c.Facts.Apart, c.Facts.Mirrored = g.Apart(c), c.Mirrored()
	sb, err := g.Stack.ReadSuperblock(c.Meta.DevPath())
	switch {
	case errors.Is(err, devmapper.ErrNoSuperblock):
		// Metadata that are neither blank nor ours could never be loaded; the
		// map is lost. Only blankness proves that nothing was ever cached.
		c.Facts.SuperblockBlank = sb.Blank
	case err != nil:
		return c, fmt.Errorf("cache of volume %s: %w", id, err)
	default:
		c.Facts.SuperblockClean = sb.CleanShutdown && !sb.NeedsCheck
	}
	return c, nil
}

// use activates a cache that is not active. By copies that are behind it is not read, and one that the
// kernel has activated by them alone, whatever LVM saw before, counts as one that is not active
// (states.md, A copy that is behind).
func (g *Group) use(ctx context.Context, vg string, id volume.ID, c Cache) (Cache, error) {
	if err := g.admit(ctx, vg, id, c.LVs()); err != nil || c.Active() {
		return c, err
	}
	active, err := g.Activate(ctx, vg, id, c.Names()...)
	if err != nil {
		return c, err
	}
	return active, g.admit(ctx, vg, id, active.LVs())
}

func (g *Group) admit(ctx context.Context, vg string, id volume.ID, lvs []lvm.LV) error {
	if g.Copies == nil {
		return nil
	}
	if err := g.Copies.Admit(ctx, vg, lvs...); err != nil {
		return fmt.Errorf("cache of volume %s: %w", id, err)
	}
	return nil
}

// ActivateData activates the logical volume of a cache's data, if there is one, and returns the cache.
func (g *Group) ActivateData(ctx context.Context, vg string, id volume.ID) (Cache, error) {
	c, err := g.Inspect(ctx, vg, id)
	if err != nil {
		return Cache{}, err
	}
	if err := g.admit(ctx, vg, id, []lvm.LV{c.Data}); err != nil {
		return Cache{}, err
	}
	if err := g.LVM.Activate(ctx, vg, layout.DataLV(id)); err != nil {
		return Cache{}, err
	}
	return g.Inspect(ctx, vg, id)
}

// Activate activates logical volumes of a cache, and returns it.
func (g *Group) Activate(ctx context.Context, vg string, id volume.ID, names ...string) (Cache, error) {
	if err := g.LVM.Activate(ctx, vg, names...); err != nil {
		return Cache{}, fmt.Errorf("cache of volume %s: %w", id, err)
	}
	c, err := g.Inspect(ctx, vg, id)
	if err != nil {
		return Cache{}, fmt.Errorf("cache of volume %s: %w", id, err)
	}
	if !c.Facts.Whole || !c.Active() {
		return c, fmt.Errorf("cache of volume %s: logical volumes are not active after activation", id)
	}
	return c, nil
}

// Inspect returns the logical volumes of id as LVM has them, and activates nothing: what the
// superblock says, and whether data and map are apart, is not known.
func (g *Group) Inspect(ctx context.Context, vg string, id volume.ID) (Cache, error) {
	lvs, err := g.LVM.LVs(ctx, vg)
	if err != nil {
		return Cache{}, err
	}
	return Pick(lvs, id), nil
}

// Pick selects the logical volumes of id from a report.
func Pick(lvs []lvm.LV, id volume.ID) Cache {
	c := layout.Find(lvs, id)
	return Cache{Cache: c, Facts: Facts{
		Whole: c.Paired(), Partial: c.Partial(), Hydration: c.Hydrating(), Stopped: c.Stopped, Checked: c.Data.Checked,
		Fence: c.Fence, Mode: c.Mode, ActivationID: c.Activation.ID, ActivationCount: c.Activation.Count,
	}}
}
