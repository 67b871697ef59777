package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Tags on a cache's logical volumes: with them the SSD alone tells what it
// holds, also when the journal is gone.
const (
	tagUID        = "nearflash.uid="
	tagGeneration = "nearflash.gen="
	tagNode       = "nearflash.node="
	tagMode       = "nearflash.mode="
	// tagOrigin is the size of the origin in bytes when the cache was made, or when the
	// volume was last expanded under it.
	tagOrigin = "nearflash.origin="
	// tagStop is there from the final removal of the cache's devices until they are made
	// again: the third witness of I4.
	tagStop = "nearflash.stop=clean"
	// tagActivation and tagCount are the volume's last stage here (states.md, Whose disks
	// these are).
	tagActivation = "nearflash.activation="
	tagCount      = "nearflash.count="
	// tagRescued is when the cache was flushed without its node (states.md, Rescue).
	tagRescued = "nearflash.rescued="
)

func cacheTags(f volume.Fence, mode volume.CacheMode) []string {
	return []string{
		tagUID + f.UID,
		tagGeneration + strconv.FormatInt(f.Generation, 10),
		tagNode + f.Node,
		tagMode + string(mode),
	}
}

// parseTags is the inverse of cacheTags; foreign tags are ignored.
func parseTags(tags []string) (f volume.Fence, mode volume.CacheMode) {
	for _, t := range tags {
		if v, ok := strings.CutPrefix(t, tagUID); ok {
			f.UID = v
		}
		if v, ok := strings.CutPrefix(t, tagNode); ok {
			f.Node = v
		}
		if v, ok := strings.CutPrefix(t, tagMode); ok {
			mode = volume.CacheMode(v)
		}
		if v, ok := strings.CutPrefix(t, tagGeneration); ok {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				f.Generation = n
			}
		}
	}
	return f, mode
}

// cacheVolumes are a volume's logical volumes as found.
type cacheVolumes struct {
	facts      cacheFacts
	data, meta lvm.LV
	// fill is the metadata of an unfinished fill; its name is empty without one.
	fill lvm.LV
	// fillMap is the map of a fill that begins; nil for one that goes on.
	fillMap *cachemap.Map
	// fillHave are the runs of its data that were copied beforehand and are right.
	fillHave []cachemap.Range
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
	if !c.active() {
		if c, err = a.activateCache(ctx, view.VG, id, c.names()...); err != nil {
			return c, err
		}
	}
	c.facts.Apart = a.apart(c)
	sb, err := a.readSuperblock(c.meta.DevPath())
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

// names are those of the logical volumes that exist.
func (c cacheVolumes) names() []string {
	var out []string
	for _, lv := range []lvm.LV{c.data, c.meta, c.fill} {
		if lv.Name != "" {
			out = append(out, lv.Name)
		}
	}
	return out
}

// active reports whether the kernel has all of them.
func (c cacheVolumes) active() bool {
	return c.data.Active && c.meta.Active && (c.fill.Name == "" || c.fill.Active)
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
	if !c.facts.Whole || !c.active() {
		return c, fmt.Errorf("cache of volume %s: logical volumes are not active after activation", id)
	}
	return c, nil
}

// pickCache selects the logical volumes of id from a report.
func pickCache(lvs []lvm.LV, id volume.ID) cacheVolumes {
	var c cacheVolumes
	for _, lv := range lvs {
		switch lv.Name {
		case dataLV(id):
			c.data = lv
		case metaLV(id):
			c.meta = lv
		case fillLV(id):
			c.fill = lv
		}
	}
	hasData, hasMeta := c.data.Name != "", c.meta.Name != ""
	c.facts.Whole = hasData && hasMeta
	c.facts.Fill = c.fill.Name != ""
	c.facts.Partial = hasData != hasMeta || c.facts.Fill && !c.facts.Whole
	c.facts.Stopped = slices.Contains(c.data.Tags, tagStop) && slices.Contains(c.meta.Tags, tagStop)
	dataFence, mode := parseTags(c.data.Tags)
	metaFence, _ := parseTags(c.meta.Tags)
	stage, count := parseActivation(c.data.Tags)
	metaStage, _ := parseActivation(c.meta.Tags)
	if c.facts.Whole && dataFence == metaFence && stage == metaStage {
		c.facts.Fence, c.facts.Mode, c.facts.ActivationID, c.facts.ActivationCount = dataFence, mode, stage, count
	}
	return c
}

// top reports the volume's top device. A device of that name which is a part of another
// volume is not it.
func (a *Attacher) top(ctx context.Context, id volume.ID) (info devmapper.Info, found bool, err error) {
	infos, err := a.DM.Info(ctx, topName(id))
	if err != nil {
		return devmapper.Info{}, false, fmt.Errorf("devices of volume %s: %w", id, err)
	}
	info, found = infos[topName(id)]
	if stranger(info, "top") {
		return devmapper.Info{}, false, nil
	}
	return info, found && info.HasLive, nil
}

// stranger tells a device that is another part of another volume: the volume "db-data" and
// the data device of the volume "db" have the same name.
func stranger(info devmapper.Info, part string) bool {
	return strings.HasPrefix(info.UUID, dmUUIDPrefix) && !strings.HasSuffix(info.UUID, "-"+part)
}

// partOf is the part that the device of that name is of volume id.
func partOf(id volume.ID, name string) string {
	part, below := strings.CutPrefix(name, topName(id)+"-")
	if !below {
		return "top"
	}
	return part
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
	info, active, err := a.top(ctx, req.ID)
	if err != nil {
		return stageFacts{}, cacheVolumes{}, err
	}
	f := stageFacts{
		Entry: e, SameBoot: e != nil && e.Boot == a.Boot,
		TopActive: active, TopOurs: active && info.UUID == dmUUID(req.Publication.Fence, "top"),
		Fence: req.Publication.Fence, Record: rec, Node: a.Node,
		Prepared: prepared.precedes(e, req.Publication.Fence),
	}
	if view := a.Pool.View(); !view.Ready {
		f.PoolProblem = view.Problem
	}
	f.KernelProblem = a.CacheProblem(ctx)
	f.WarmProblem = a.warmProblem(ctx)
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
		f.Entry = believed(e, c.facts, rec)
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
