package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Publish implements volume.Attacher.
func (a *Attacher) Publish(ctx context.Context, req volume.PublishRequest) error {
	e, err := a.load(req.ID)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Journal could not be read before the volume was published", "volume", req.ID)
	}
	given, err := a.show(ctx, e, req)
	if given && err == nil {
		a.notifyAbandoned(ctx, req.ID, e.Fence, &req.Pod)
	}
	return err
}

// admit judges a volume that is published to a pod, perhaps without a stage, and tells
// whether there is something to tell the pod (states.md, Publish without a stage). Without
// an entry there is not.
func (a *Attacher) admit(ctx context.Context, id volume.ID, e *state.Entry) (given bool, err error) {
	rec, err := a.Records.Get(ctx, id)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return e != nil && e.Abandoned, nil // without a record, unflushed writes are kept (I9)
	case err != nil && (e == nil || e.Mode == volume.ModeWriteback):
		return false, fmt.Errorf("%w: the record of volume %s cannot be read, and has to be before another pod writes: %w", volume.ErrUnavailable, id, err)
	case err != nil:
		return e.Abandoned, nil // every write is on the origin
	case !rec.Published || rec.Fence.Node != a.Node || e != nil && rec.Fence != e.Fence:
		return false, fmt.Errorf("%w: the record of volume %s (generation %d, node %q) does not have it attached to node %s as it is there: delete the pods that have it on this node, so that it is attached anew",
			volume.ErrFenced, id, rec.Fence.Generation, rec.Fence.Node, a.Node)
	case e == nil:
		return false, nil // the journal was lost below a running pod
	case e.Lost != nil:
		return false, fmt.Errorf("%w: the LUN of volume %s is reserved for %s: reads and writes fail on node %s", volume.ErrFenced, id, e.Lost.To, a.Node)
	}
	return e.Abandoned || rec.Abandoned, a.keepMark(ctx, e, rec)
}

// keepMark marks the record of a published volume whose pod may write to the SSD alone, if
// it says that nothing can be lost.
func (a *Attacher) keepMark(ctx context.Context, e *state.Entry, rec volume.Volume) error {
	if rec.PossiblyDirty || e.State != state.Staged || e.Mode != volume.ModeWriteback {
		return nil
	}
	klog.FromContext(ctx).Info("Volume is at work under a record that says clean: it is marked again", "volume", e.ID)
	return a.markDirty(ctx, e)
}

// markDirty is the dirty mark of states.md (I2).
func (a *Attacher) markDirty(ctx context.Context, e *state.Entry) error {
	if e.Mode != volume.ModeWriteback {
		return nil
	}
	if !e.Marked {
		e.Marked = true
		if err := a.save(ctx, e, e.State); err != nil {
			return err
		}
	}
	return a.Records.MarkPossiblyDirty(ctx, e.ID, e.Fence)
}

// notifyTimeout bounds how long a pod waits for what it is told.
const notifyTimeout = 5 * time.Second

// notifyAbandoned tells of writes that were abandoned (I2). The volume works without:
// the record keeps what was not told for the next pod (I6).
func (a *Attacher) notifyAbandoned(ctx context.Context, id volume.ID, f volume.Fence, pod *volume.Pod) {
	tctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if err := a.Records.ReportAbandoned(tctx, id, f, pod); err != nil {
		klog.FromContext(ctx).Error(err, "Pod was not told that writes were abandoned", "volume", id)
	}
}

// show makes the staged volume appear at the target path. given is whether there is
// something to tell the pod.
func (a *Attacher) show(ctx context.Context, e *state.Entry, req volume.PublishRequest) (given bool, err error) {
	info, found, err := a.stack.Top(ctx, req.ID)
	if err != nil {
		return false, err
	}
	if !found {
		return false, fmt.Errorf("%w: volume %s has no device on node %s", volume.ErrNotStaged, req.ID, a.Node)
	}
	if devno, mounted, err := a.FS.Source(ctx, req.TargetPath); err != nil || mounted {
		return e != nil && e.Abandoned, checkMounted(req.TargetPath, devno, info, err)
	}
	if given, err = a.admit(ctx, req.ID, e); err != nil {
		return false, err
	}
	return given, a.mountAt(ctx, req, info)
}

// mountAt mounts the volume at the target path.
func (a *Attacher) mountAt(ctx context.Context, req volume.PublishRequest, info devmapper.Info) error {
	options := req.MountOptions
	if req.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	if req.Block {
		return a.FS.BindBlock(ctx, info.DevPath(), req.TargetPath, options)
	}
	devno, mounted, err := a.FS.Source(ctx, req.StagingPath)
	if err != nil {
		return err
	}
	if !mounted || devno != info.DevNo() {
		return fmt.Errorf("%w: %s does not have volume %s mounted", volume.ErrNotStaged, req.StagingPath, req.ID)
	}
	return a.FS.BindMount(ctx, req.StagingPath, req.TargetPath, options)
}

// Unpublish implements volume.Attacher.
func (a *Attacher) Unpublish(ctx context.Context, _ volume.ID, targetPath string) error {
	return a.FS.Unmount(ctx, targetPath)
}

// Expand implements volume.Attacher: origin, then the tables above it from the
// bottom up, then the filesystem.
func (a *Attacher) Expand(ctx context.Context, req volume.ExpandRequest) (int64, error) {
	id := req.ID
	e, err := a.loadSettled(ctx, id)
	if err != nil {
		return 0, err
	}
	info, found, err := a.stack.Top(ctx, id)
	if err != nil {
		return 0, err
	}
	if e == nil || !found {
		return 0, fmt.Errorf("%w: volume %s has no device on node %s", volume.ErrNotStaged, id, a.Node)
	}
	if e.ReadOnly {
		return e.OriginBytes, nil // what many read does not grow below them, nor does its filesystem
	}
	if err := a.askedFor(ctx, e, req.Size); err != nil {
		return 0, err
	}
	if err := a.rescanForGrowth(ctx, e, req.Credentials); err != nil {
		return 0, err
	}
	o, err := a.growOrigin(ctx, e)
	if err != nil {
		return 0, err
	}
	if err := a.leaveRecovered(ctx, e, o.Sectors); err != nil {
		return 0, err
	}
	if e.Streams() {
		if err := a.stack.GrowHot(ctx, e, o); err != nil {
			return 0, err
		}
	}
	if err := a.stack.GrowTop(ctx, e, o); err != nil {
		return 0, err
	}
	if !req.Block {
		if err := a.FS.Grow(ctx, info.DevPath(), req.Path); err != nil {
			return 0, err
		}
	}
	// A cache that is a share of the volume grows with it.
	before := e.OriginBytes
	e.OriginBytes = int64(o.Sectors) * sectorSize
	if err := a.save(ctx, e, e.State); err != nil {
		return 0, err
	}
	a.ssd.TagGrown(ctx, e, before)
	a.poll()
	return e.OriginBytes, nil
}

// leaveRecovered takes away a cache over which no longer table may be loaded: writes would go to the
// SSD alone under a journal that denies it. Also one that the journal denies by now may be live: a
// try before was killed in the middle. Another one is made below the pod.
func (a *Attacher) leaveRecovered(ctx context.Context, e *state.Entry, sectors uint64) error {
	if !e.Recovered || e.Mode == volume.ModeWriteback {
		return nil
	}
	rec, err := a.Records.Get(ctx, e.ID)
	if err != nil {
		return err
	}
	f, err := a.changeOf(ctx, e, rec)
	if err != nil || !f.LiveCache || f.Status.OriginSectors >= sectors {
		return err
	}
	return a.uncacheLive(ctx, f)
}

// askedFor journals the size that another driver's node plugin is about to be asked for: that of the
// attachment is the one of before.
func (a *Attacher) askedFor(ctx context.Context, e *state.Entry, size int64) error {
	if e.Source.CSI == nil || size <= e.Source.CSI.CapacityBytes {
		return nil
	}
	e.Source.CSI.CapacityBytes = size
	return a.save(ctx, e, e.State)
}

// rescanForGrowth has the kernel see the origin's new size. What it fails of that is
// journalled before anything else can end the call.
func (a *Attacher) rescanForGrowth(ctx context.Context, e *state.Entry, cred *volume.Credentials) error {
	before := maps.Clone(e.OriginMarks)
	if _, err := a.rescan(ctx, e, cred); err != nil {
		return transportError(err)
	}
	if maps.Equal(before, e.OriginMarks) {
		return nil
	}
	return a.save(ctx, e, e.State)
}

// growOrigin gives the device over the paths its new length; the paths have it
// after the rescan.
func (a *Attacher) growOrigin(ctx context.Context, e *state.Entry) (stack.Origin, error) {
	o, found, err := a.Transport.Lookup(ctx, transport.Target{Source: e.Source})
	if err != nil {
		return stack.Origin{}, transportError(err)
	}
	if !found {
		return stack.Origin{}, fmt.Errorf("%w: volume %s has no iSCSI session", volume.ErrUnavailable, e.ID)
	}
	sectors := uint64(o.SizeBytes) / sectorSize
	err = a.stack.GrowDevice(ctx, layout.Device(e.ID, layout.Origin), sectors, func(devmapper.Table) devmapper.Table {
		return stack.OriginTable(sectors, o.DevNos)
	})
	if err != nil && (len(o.Paths) > 1 || !errors.Is(err, devmapper.ErrNotExist)) {
		return stack.Origin{}, err
	}
	return a.lookupOrigin(ctx, e.ID, e.Source)
}

// Stats implements volume.Attacher.
func (a *Attacher) Stats(ctx context.Context, id volume.ID, path string) (volume.Stats, error) {
	st, err := a.FS.Stats(ctx, path)
	if err != nil {
		return volume.Stats{}, err
	}
	st.Message = "attached uncached"
	// The kubelet asks for each volume by itself.
	c, found, err := a.DM.Status(ctx, layout.Device(id, layout.Top))
	if err != nil && !errors.Is(err, devmapper.ErrNotExist) {
		return volume.Stats{}, err
	}
	if found {
		st.Abnormal, st.Message = cacheCondition(c)
	}
	return st, nil
}

// cacheCondition turns the three separate health states of dm-cache into a CSI
// volume condition.
func cacheCondition(c devmapper.CacheStatus) (abnormal bool, message string) {
	switch {
	case c.Fail:
		return true, "the cache has failed: the kernel reports Fail"
	case c.NeedsCheck:
		return true, "the cache's metadata need a check (needs_check)"
	case c.ReadOnly:
		return true, "the cache's metadata are read-only"
	}
	return false, fmt.Sprintf("cached, %d of %d blocks in use, %d dirty", c.CacheUsed, c.CacheTotal, c.Dirty)
}
