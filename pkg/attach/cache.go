package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const sectorSize = devmapper.SectorSize

// geometry is the shape of a new cache.
type geometry struct {
	chunkSectors         uint64
	dataBytes, metaBytes int64
}

// planGeometry sizes a cache for a volume: a pure function of what was asked
// for, the origin and the pool's unit (allocationUnit). The cache is not larger than
// the volume, but for a whole number of chunks and units.
func planGeometry(spec volume.Spec, originBytes, unit int64) (geometry, error) {
	want := spec.CacheBytes(originBytes)
	chunk := uint64(spec.ChunkBytes / sectorSize)
	if chunk == 0 {
		chunk = devmapper.AutoChunkSectors(want)
	}
	bytes := int64(chunk) * sectorSize
	data := ssd.RoundUp(max(want, bytes), unit)
	if data/bytes > devmapper.MaxCacheBlocks && want/bytes <= devmapper.MaxCacheBlocks {
		data -= unit // what was asked for is allowed, and rounding is ours
	}
	blocks := data / bytes
	if blocks > devmapper.MaxCacheBlocks {
		return geometry{}, fmt.Errorf("%w: chunkSize %d gives %d cache blocks for a cache of %d bytes; accepted are at most %d blocks",
			volume.ErrInvalid, spec.ChunkBytes, blocks, data, devmapper.MaxCacheBlocks)
	}
	return geometry{chunkSectors: chunk, dataBytes: data, metaBytes: ssd.RoundUp(devmapper.MetadataBytes(uint64(blocks)), unit)}, nil
}

// roundedMore is how much larger than planned a cache may be, as long as that is no more
// than an eighth of it.
const roundedMore = 64 << 20

// fits reports whether a cache of that size may be where g was planned. It may be a little
// larger: each pool rounds up to its own extents and number of SSDs, and what comes
// from another node is not given up for that.
func (g geometry) fits(dataBytes int64) bool {
	return dataBytes <= g.dataBytes+min(g.dataBytes/8, roundedMore)
}

// allocationUnit is what LVM makes logical volumes of a pool in: an extent on each of
// the SSDs that they are striped over. A volume of another size is made larger
// (lvcreate(8), --stripes), and the kernel would cache in what the plan does not know.
func allocationUnit(v pool.View) int64 {
	unit := max(v.ExtentBytes, 1)
	if !v.Mirror {
		unit *= int64(max(v.Stripes, 1))
	}
	return unit
}

// prepareCache provides the logical volumes that the plan needs.
func (a *Attacher) prepareCache(ctx context.Context, s *staging) error {
	e := s.entry
	if s.plan.Cache != planCreate {
		if err := a.geometryFromSSD(e, s.cache); err != nil {
			return err
		}
		return a.resumeHydration(ctx, s)
	}
	unit := allocationUnit(a.Pool.View().For(s.rec.Spec.Mirror))
	g, err := planGeometry(s.rec.Spec, int64(s.origin.Sectors)*sectorSize, unit)
	if err != nil {
		return err
	}
	m, warm := a.seedGeometry(ctx, s, &g, unit)
	e.ChunkSectors, e.DataBytes, e.MetaBytes = g.chunkSectors, g.dataBytes, g.metaBytes
	if err := a.save(ctx, e, e.State); err != nil {
		return err
	}
	if m, err = a.provideVolumes(ctx, s, m); err != nil || !warm {
		return err
	}
	s.cache.HydrationMap = m
	if e.Streams() {
		return a.restoreLevels(ctx, s, *m)
	}
	return a.restoreClone(ctx, s)
}

// provideVolumes provides the logical volumes of a new cache, among them what was prewarmed if that
// is of use. It returns the map that the cache is to have, which may be another one for that.
func (a *Attacher) provideVolumes(ctx context.Context, s *staging, m *cachemap.Map) (*cachemap.Map, error) {
	e, ordinary := s.entry, m
	have, keep, err := a.takePrewarm(ctx, s, m)
	if err == nil && keep && e.Streams() {
		m, err = a.layPrewarmed(s, m, have)
	}
	if err != nil {
		return nil, err
	}
	if s.cache, err = a.newVolumes(ctx, s, keep); err == nil && keep && !e.Streams() {
		s.cache.HydrationHave = runsOf(have, e.ChunkSectors)
	}
	if err == nil || !keep {
		return m, err
	}
	klog.FromContext(ctx).Error(err, "Prewarm cannot be taken over", "volume", e.ID)
	if e.Streams() {
		if err := a.streamOver(e, ordinary); err != nil {
			return nil, err
		}
	}
	if err := a.forgetPrewarm(ctx, e); err != nil {
		return nil, err
	}
	s.cache, err = a.newVolumes(ctx, s, false)
	return ordinary, err
}

// geometryFromSSD completes the entry of a cache whose journal was lost with what the SSD
// knows of it. The metadata of a hydration tell that not everything was copied: what was not
// is on the SSD whatever was there before, and comes from the origin.
func (a *Attacher) geometryFromSSD(e *state.Entry, c ssd.Cache) error {
	if e.ChunkSectors != 0 {
		return nil
	}
	sb, err := a.stack.ReadSuperblock(c.Meta.DevPath())
	if err != nil {
		return err
	}
	e.ChunkSectors = uint64(sb.DataBlockSectors)
	e.DataBytes, e.MetaBytes = c.Data.SizeBytes, c.Meta.SizeBytes
	if c.Hydration.Name != "" && e.Hydration == nil {
		e.Hydration = &state.Hydration{RegionSectors: cachemap.RegionSectors(e.ChunkSectors)}
	}
	return nil
}

// makeRoom evicts retained caches, oldest first, until what is free of each SSD fits. It
// evicts none if all of them would not be enough. view is the pool as the volume sees it, and sizes are
// those of one copy of what is to be made.
func (a *Attacher) makeRoom(ctx context.Context, id volume.ID, view pool.View, sizes []int64, fits func(free map[string]int64) bool) error {
	need := int64(0)
	for _, size := range sizes {
		need += view.Copies * size
	}
	for {
		rooms, size, err := a.ssd.Rooms(ctx, view)
		if err != nil || fits(rooms) {
			return err
		}
		free := int64(0)
		for _, n := range rooms {
			free += n
		}
		retained, err := a.retained(id)
		if err != nil {
			return err
		}
		at, evictable, err := a.roomAtMost(ctx, view, rooms, retained)
		if err != nil {
			return err
		}
		if free+evictable < need || !fits(size) || !fits(at) {
			return fmt.Errorf("%w: the cache needs %d bytes on the same SSDs, the pool has %d free and %d in retained caches that could be evicted",
				lvm.ErrNoSpace, need, free, evictable)
		}
		victim := a.idle(retained)
		if victim == nil {
			return fmt.Errorf("%w: the cache needs %d bytes on the same SSDs, the pool has %d free and no retained cache is left to evict", lvm.ErrNoSpace, need, free)
		}
		if err := a.evict(ctx, victim); err != nil {
			return err
		}
	}
}

// roomAtMost is what no SSD has more of when all retained caches are evicted: what is free, and the whole of
// each logical volume of theirs that has a part there. Eviction that cannot help is not begun. evictable
// is what they take of all SSDs.
func (a *Attacher) roomAtMost(ctx context.Context, view pool.View, free map[string]int64, retained []state.Entry) (out map[string]int64, evictable int64, err error) {
	out = maps.Clone(free)
	if len(retained) == 0 {
		return out, 0, nil
	}
	lvs, err := a.LVM.LVs(ctx, view.VG)
	if err != nil {
		return nil, 0, err
	}
	on, err := a.LVM.OnDevices(ctx, view.VG)
	if err != nil {
		return nil, 0, err
	}
	for _, lv := range lvs {
		ids := layout.IDs([]lvm.LV{lv})
		if !slices.ContainsFunc(retained, func(e state.Entry) bool { return slices.Contains(ids, e.ID) }) {
			continue
		}
		evictable += lv.PoolBytes()
		part := lv.CopyBytes()
		if lv.Mirrored() {
			part += view.ExtentBytes // of its own record of the copies (ssd.ChoosePlace)
		}
		for device := range out {
			if slices.Contains(on[device], lv.Name) {
				out[device] += part
			}
		}
	}
	return out, evictable, nil
}

// readable returns the entries that can be read: one that cannot holds no other up.
func (a *Attacher) readable() ([]state.Entry, error) {
	entries, err := a.Journal.List()
	if err != nil && !errors.Is(err, journal.ErrCorrupt) && !errors.Is(err, journal.ErrNewer) {
		return nil, err
	}
	return entries, nil
}

// retained returns the retained caches of other volumes, the one that was used
// longest ago first.
func (a *Attacher) retained(except volume.ID) ([]state.Entry, error) {
	entries, err := a.readable()
	if err != nil {
		return nil, err
	}
	retained := slices.DeleteFunc(entries, func(e state.Entry) bool { return !e.Evictable() || e.ID == except })
	oldestFirst(retained)
	return retained, nil
}

func oldestFirst(retained []state.Entry) {
	slices.SortFunc(retained, func(x, y state.Entry) int { return x.LastUsed().Compare(y.LastUsed()) })
}

// idle returns the first of them whose volume nobody works on; nil if there is
// none.
func (a *Attacher) idle(retained []state.Entry) *state.Entry {
	for i := range retained {
		unlock, ok := a.Locks.TryLock(string(retained[i].ID))
		if ok {
			unlock()
			return &retained[i]
		}
	}
	return nil
}

// evict gives a retained cache's space back.
func (a *Attacher) evict(ctx context.Context, e *state.Entry) error {
	current, unlock, err := a.lockSettled(ctx, e.ID)
	defer unlock()
	if err != nil || current == nil || !current.Evictable() {
		return err
	}
	if agrees, err := a.ssdAgrees(ctx, current); err != nil || !agrees {
		return err
	}
	if current.State == state.Prewarmed {
		klog.FromContext(ctx).Info("Prewarmed data are evicted", "volume", e.ID, "bytes", e.DataBytes)
		return a.wipe(ctx, e.ID, current)
	}
	klog.FromContext(ctx).Info("Retained cache evicted", "volume", e.ID, "lastUsed", e.LastUsed(), "bytes", e.DataBytes)
	if err := a.wipe(ctx, e.ID, current); err != nil {
		return err
	}
	if err := a.reportRetainedCache(ctx, e, nil); err != nil {
		klog.FromContext(ctx).Error(err, "Eviction could not be reported", "volume", e.ID)
	}
	return nil
}

// wipe destroys the cache of id and forgets the entry, if there is one.
func (a *Attacher) wipe(ctx context.Context, id volume.ID, e *state.Entry) error {
	if err := a.empty(ctx, id, e); err != nil {
		return err
	}
	return a.forget(id)
}

// empty destroys the cache of id. An entry stays, in Wiping: it alone knows of a mark and
// of a session.
func (a *Attacher) empty(ctx context.Context, id volume.ID, e *state.Entry) error {
	if e != nil {
		a.dropPrewarm(ctx, e)
		if err := a.save(ctx, e, state.Wiping); err != nil {
			return err
		}
	}
	faultWipeJournaled.Hit()
	if err := a.ssd.Remove(ctx, id); err != nil {
		return err
	}
	faultWipeRemoved.Hit()
	return nil
}

// createDataDevice makes the device under the cache through which its SSD can
// be swapped while the cache is live: linear, or the clone of a hydration.
func (a *Attacher) createDataDevice(ctx context.Context, e *state.Entry, c ssd.Cache, o stack.Origin) (devno string, err error) {
	e.Mirrored, e.Checked = c.Mirrored(), c.Data.Checked
	if e.Hydration != nil && !e.Hydration.Whole && !e.Streams() {
		return a.createClone(ctx, e, c, o)
	}
	lv := c.Data
	dev, err := a.stack.EnsureDevice(ctx, layout.Device(e.ID, layout.Data), layout.UUID(e.Fence, layout.Data), devmapper.LinearTable(uint64(lv.SizeBytes)/sectorSize, lv.DevNo()))
	return dev.DevNo(), err
}

// swapPolicy reloads a live cache with the cleaner or with its own policy. It
// does nothing when the table is already as wanted, and in use.
func (a *Attacher) swapPolicy(ctx context.Context, e *state.Entry, cleaning bool) error {
	if !cleaning && e.Recovered && e.Mode == volume.ModeWritethrough {
		return nil // the cleaner stays: what it has flushed would be dirty again
	}
	next := devmapper.CacheTarget{Mode: liveMode(e.Mode), Policy: devmapper.PolicySMQ}
	if cleaning {
		next.Mode, next.Policy = devmapper.Writethrough, devmapper.PolicyCleaner
	}
	return a.swapTo(ctx, e, next.Mode, next.Policy, a.stack.FinalCount)
}

// countFunc takes the counts of a cache whose table is about to go.
type countFunc func(ctx context.Context, id volume.ID)

// swapTo reloads a live cache in another mode or with another policy.
func (a *Attacher) swapTo(ctx context.Context, e *state.Entry, mode devmapper.CacheMode, policy devmapper.CachePolicy, count countFunc) error {
	if e.Streams() {
		return fmt.Errorf("%w: the cache of volume %s still has two levels", volume.ErrUnavailable, e.ID)
	}
	name := layout.Device(e.ID, layout.Top)
	lines, err := a.DM.Table(ctx, name)
	if err != nil {
		return err
	}
	current, ok := lines.Cache()
	if !ok {
		return fmt.Errorf("device %s is not a cache although the journal says so", name)
	}
	next := current
	next.Mode, next.Policy = mode, policy
	top, _, err := a.stack.Top(ctx, e.ID)
	if err != nil {
		return err
	}
	// A device that is suspended, or about to change its table, belongs to a swap that
	// failed, or whose process was killed. Its cache may not have read its map, or not to
	// the end, and says that nothing is dirty of what it does not know. Another resume of
	// the same table is no way out: the kernel takes its mappings for loaded twice.
	if next.Mode == current.Mode && next.Policy == current.Policy && !top.Suspended && !top.HasInactive {
		return nil
	}
	return a.reloadCache(ctx, e, devmapper.Table{{Start: 0, Length: lines[0].Length, Target: next}}, count)
}

// reloadCache swaps the table of a live cache for another one. The new target has
// counters of its own: some go on from the last commit, some begin at zero.
func (a *Attacher) reloadCache(ctx context.Context, e *state.Entry, t devmapper.Table, count countFunc) error {
	count(ctx, e.ID)
	if err := a.stack.ReloadTop(ctx, e, t); err != nil {
		return err
	}
	if c, cached := t.Cache(); cached && e.Unsafe && c.Mode == devmapper.Writeback {
		// The new table passes flushes. Should this fail, the next look at the volume does it.
		if err := a.stack.SetFlushes(ctx, e.ID, false); err != nil {
			klog.FromContext(ctx).Error(err, "Flushes go through for now", "volume", e.ID)
		}
	}
	a.stack.BeginCounting(ctx, e)
	return a.save(ctx, e, e.State)
}
