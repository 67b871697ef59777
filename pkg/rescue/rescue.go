// Package rescue flushes the cache of a node that is lost, from its SSD alone
// (states.md, Rescue): it tells what an SSD holds, writes the dirty blocks of one
// volume to its origin, and sees to it that nobody ever writes them again.
//
// It activates logical volumes, and otherwise changes nothing before it has refused
// what it must.
package rescue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Errors; test with errors.Is.
var (
	// ErrNotFound: the SSDs have no cache of the volume.
	ErrNotFound = errors.New("no cache of the volume found")
	// ErrRefused: writing the cache back could do harm, or makes no sense.
	ErrRefused = errors.New("refused")
)

// Tools read the metadata of caches that are not active, and write such caches back.
type Tools interface {
	Dump(ctx context.Context, metadataDevice, file string) error
	Writeback(ctx context.Context, metadataDevice, dataDevice, origin string) error
}

// Records is the part of volume.Records that a rescue needs.
type Records interface {
	Get(ctx context.Context, id volume.ID) (volume.Volume, error)
	MarkClean(ctx context.Context, id volume.ID, f volume.Fence) error
	ReportTorn(ctx context.Context, id volume.ID, f volume.Fence, message string) error
}

// Rescuer works on the SSDs that its LVM client has.
type Rescuer struct {
	DM    devmapper.Client
	LVM   lvm.Client
	Tools Tools
	// VG is the volume group of the lost node's pool.
	VG string
	// Records are the cluster's; nil if it is not to be asked.
	Records Records
	// LUNs speaks to the origin about its reservation; nil if that is not asked for.
	LUNs attach.Reserver
	// OneCopy admits mirrors of which an SSD is missing.
	OneCopy bool
	// Dir is where maps are put while they are read.
	Dir string
	Now func() time.Time
}

// Request asks for the writes of one volume.
type Request struct {
	Volume volume.ID
	// Origin is the path of the origin's device.
	Origin string
	// Generation is that of the cache, if it is known from elsewhere; 0 takes what the
	// SSD says.
	Generation int64
	// Grown admits an origin that is larger than the SSD knows it.
	Grown bool
	// DryRun ends where the first byte would be written.
	DryRun bool
}

// Result is what a rescue did, or with DryRun would do.
type Result struct {
	Cache Cache
	// OriginBytes is the size of the origin's device.
	OriginBytes int64
	// Written is true if the dirty blocks are on the origin and the cache can never be
	// flushed again, Reported if the record says so too.
	Written, Reported bool
}

// Rescue writes the dirty blocks of a cache to the origin. It may be repeated after
// it was killed or has failed, as long as nobody else has written to the origin.
//
// Errors: ErrNotFound, ErrRefused; any other when it has begun to write, and the cache
// is as it was then.
func (r *Rescuer) Rescue(ctx context.Context, req Request) (Result, error) {
	c, err := r.find(ctx, req.Volume)
	if err != nil {
		return Result{}, err
	}
	res := Result{Cache: c}
	if err := refuseCache(c, req); err != nil {
		return res, err
	}
	spec, err := r.refuseRecord(ctx, c)
	if err != nil {
		return res, err
	}
	if res.OriginBytes, err = originSize(req.Origin); err != nil {
		return res, err
	}
	if err := refuseOrigin(c, req, res.OriginBytes); err != nil {
		return res, err
	}
	if spec.Static == nil {
		if err := refuseLUN(c, req.Origin); err != nil {
			return res, err
		}
	}
	if req.DryRun {
		return res, nil
	}
	if err := admit(ctx, r.LUNs, c, req.Origin); err != nil {
		return res, err
	}
	if c.DirtyBlocks > 0 {
		if err := r.writeBack(ctx, c, req.Origin); err != nil {
			return res, err
		}
	}
	if err := flushDevice(req.Origin); err != nil {
		return res, err
	}
	faultRescueWritten.Hit()
	if err := r.tellTorn(ctx, c, spec); err != nil {
		return res, err // a retired cache is not rescued again
	}
	if err := r.finish(ctx, c); err != nil {
		return res, err
	}
	res.Written = true
	return res, r.report(ctx, c, &res)
}

// find inspects one cache.
func (r *Rescuer) find(ctx context.Context, id volume.ID) (Cache, error) {
	lvs, err := r.LVM.LVs(ctx, r.VG)
	if err != nil {
		return Cache{}, err
	}
	for _, f := range layout.Scan(lvs) {
		if f.ID == id {
			return r.inspect(ctx, f), nil
		}
	}
	return Cache{}, fmt.Errorf("%w: volume %s in volume group %s", ErrNotFound, id, r.VG)
}

// refuseCache judges what the SSD says.
func refuseCache(c Cache, req Request) error {
	switch {
	case c.State != StateDirty && c.State != StateUnclean && c.State != StateClean:
		return fmt.Errorf("%w: the cache of volume %s is %s: %s", ErrRefused, c.ID, c.State, c.Detail)
	case req.Generation != 0 && req.Generation != c.Fence.Generation:
		return fmt.Errorf("%w: the cache of volume %s is of generation %d, asked for is %d", ErrRefused, c.ID, c.Fence.Generation, req.Generation)
	}
	return nil
}

// refuseRecord asks the cluster whether the cache is still the newest (I3), and returns what the
// record asks for.
func (r *Rescuer) refuseRecord(ctx context.Context, c Cache) (spec volume.Spec, err error) {
	if r.Records == nil {
		return volume.Spec{}, nil
	}
	rec, err := r.Records.Get(ctx, c.ID)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return volume.Spec{}, fmt.Errorf("%w: volume %s is not in the cluster: it was deleted, or it is another cluster", ErrRefused, c.ID)
	case err != nil:
		return volume.Spec{}, err
	case rec.Fence.UID != c.Fence.UID:
		return volume.Spec{}, fmt.Errorf("%w: the cluster's volume %s is another one of the same name", ErrRefused, c.ID)
	case rec.Fence.Generation != c.Fence.Generation || rec.Fence.Node != c.Fence.Node:
		return volume.Spec{}, fmt.Errorf("%w: volume %s has generation %d on node %s by now, the cache has generation %d of node %s: it would write over newer data",
			ErrRefused, c.ID, rec.Fence.Generation, rec.Fence.Node, c.Fence.Generation, c.Fence.Node)
	case rec.Identify(c.Activation) == volume.IdentityPast:
		return volume.Spec{}, fmt.Errorf("%w: volume %s was attached or flushed on node %s after these SSDs were as they are: they are an image, or were in another machine of that name", ErrRefused, c.ID, c.Fence.Node)
	case !rec.PossiblyDirty:
		return volume.Spec{}, fmt.Errorf("%w: the record of volume %s says that its writes were flushed or abandoned: what the storage server has may have been used since", ErrRefused, c.ID)
	}
	return rec.Spec, nil
}

// refuseOrigin judges the size of the device that is to be written to.
func refuseOrigin(c Cache, req Request, size int64) error {
	switch {
	case size < c.OriginEnd: // a part of a chunk at the end is never cached (cache_map in dm-cache-target.c)
		return fmt.Errorf("%w: %s has %d bytes, but the cache holds blocks up to byte %d: it is not the origin", ErrRefused, req.Origin, size, c.OriginEnd)
	case c.OriginBytes > 0 && size < c.OriginBytes:
		return fmt.Errorf("%w: %s has %d bytes, the volume had %d: it is not the origin", ErrRefused, req.Origin, size, c.OriginBytes)
	case c.OriginBytes > 0 && size > c.OriginBytes && !req.Grown:
		return fmt.Errorf("%w: %s has %d bytes, the volume had %d when the SSD last noted it: say so if it was expanded since", ErrRefused, req.Origin, size, c.OriginBytes)
	}
	return nil
}

// refuseLUN asks the storage server's disk, which says for which generation it was
// exported last, whether the cache is still the newest (I3). No record is needed for that.
func refuseLUN(c Cache, path string) error {
	devno, err := blockdev.DevNo(path)
	if err != nil {
		return err
	}
	names, err := blockdev.Models("/sys", devno)
	if err != nil {
		return fmt.Errorf("what %s says of itself: %w", path, err)
	}
	return refuseGeneration(c, path, names)
}

func refuseGeneration(c Cache, path string, models []string) error {
	if g, since := volume.GivenSince(models, c.Fence.Generation); since {
		return fmt.Errorf("%w: %s was given to another owner since, under generation %d, and the cache has generation %d: it would write over newer data",
			ErrRefused, path, g, c.Fence.Generation)
	}
	return nil
}

// writeBack copies the dirty blocks, and proves by the map that none is left.
func (r *Rescuer) writeBack(ctx context.Context, c Cache, path string) error {
	klog.FromContext(ctx).Info("Writing dirty blocks to the origin", "volume", c.ID, "blocks", c.DirtyBlocks, "bytes", c.DirtyBytes())
	if c.State == StateUnclean {
		// A swap of live tables may have left the flag of a clean stop.
		if err := ssd.MarkUnclean(blockdev.Host{}, c.Meta.DevPath()); err != nil {
			return err
		}
	}
	if err := r.Tools.Writeback(ctx, c.Meta.DevPath(), c.Data.DevPath(), path); err != nil {
		return err
	}
	m, err := r.readMap(ctx, c.Meta.DevPath(), c.ID)
	if err != nil {
		return err
	}
	if m.Dirty > 0 {
		return fmt.Errorf("%d blocks of volume %s are still dirty after the write-back", m.Dirty, c.ID)
	}
	return nil
}

// metaHead covers the superblock with a margin.
const metaHead = 64 << 10

// finish makes sure that the cache is never flushed again, also not by its own node
// with its own journal: without a superblock there is nothing to be flushed, and the
// tags say why.
func (r *Rescuer) finish(ctx context.Context, c Cache) error {
	ctx = context.WithoutCancel(ctx)
	if err := blockdev.ZeroHead(ctx, c.Meta.DevPath(), metaHead); err != nil {
		return fmt.Errorf("the writes of volume %s are on the origin, but its cache could not be retired; run it again before anybody uses the origin: %w", c.ID, err)
	}
	faultRescueRetired.Hit()
	add, remove := layout.RescuedTags(r.Now())
	if err := r.LVM.ChangeTags(ctx, r.VG, add, remove, c.Data.Name, c.Meta.Name); err != nil {
		return fmt.Errorf("the writes of volume %s are on the origin and its cache is retired, but it does not say so: %w", c.ID, err)
	}
	return nil
}

// tellTorn says in the record that flushed writes may be missing (states.md, Dropped flushes). An SSD
// whose map is empty has lost some as well: the map was not committed.
func (r *Rescuer) tellTorn(ctx context.Context, c Cache, spec volume.Spec) error {
	if r.Records == nil || !spec.Unsafe || c.Stopped && c.State != StateUnclean {
		return nil
	}
	err := r.Records.ReportTorn(ctx, c.ID, c.Fence, fmt.Sprintf(
		"node %s stopped uncleanly, and the volume is in mode %s (generation %d): writes may be missing, also flushed ones, while newer ones are there. What its SSD had is on the storage server. Check the data, or make them anew",
		c.Fence.Node, volume.ModeWritebackUnsafe, c.Fence.Generation))
	if err != nil {
		return fmt.Errorf("the writes of volume %s are on the origin, but the record does not say that some may be missing; run it again before anybody uses the origin: %w", c.ID, err)
	}
	return nil
}

// report lets the volume go to other nodes.
func (r *Rescuer) report(ctx context.Context, c Cache, res *Result) error {
	if r.Records == nil {
		return nil
	}
	if err := r.Records.MarkClean(ctx, c.ID, c.Fence); err != nil {
		return fmt.Errorf("the writes of volume %s are on the origin, but the record does not say so: kubectl nearflash abandon does it, and abandons nothing: %w", c.ID, err)
	}
	res.Reported = true
	return nil
}
