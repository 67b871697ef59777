package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/volume"
)

// takePrewarm judges what was prewarmed, now that the lease is known: keep tells
// to take the logical volume over, and have at which places of it chunks are right. What is of no
// use is removed.
func (a *Attacher) takePrewarm(ctx context.Context, s *staging, m *cachemap.Map) (have volume.Bits, keep bool, err error) {
	e := s.entry
	if e.Prewarm == nil {
		return nil, false, nil
	}
	log := klog.FromContext(ctx).WithValues("volume", e.ID)
	why := "the cache does not begin from the node that it was copied from"
	if m != nil && (m == s.seed.peer || s.seed.list != nil) {
		if why = unfit(e.Prewarm, s.seed.lease); why == "" && ssd.RoundUp(e.Prewarm.ExportedBytes, allocationUnit(a.Pool.View().For(s.rec.Spec.Mirror))) != e.DataBytes {
			why = "the cache is to have another size"
		}
	}
	if why == "" {
		why, err = a.misplaced(ctx, e, s.rec.Spec.Mirror)
		if err != nil {
			return nil, false, err
		}
	}
	if why == "" {
		have = unchanged(a.readCopied(e.ID, e.Prewarm.Tracking), s.seed.lease)
		log.Info("Prewarm is used", "chunks", have.Count())
		return have, true, nil
	}
	log.Info("Prewarm is of no use", "reason", why)
	return nil, false, a.forgetPrewarm(ctx, e)
}

// layPrewarmed makes the map of a stream whose first level is what was prewarmed. If that is
// less than an ordinary first level, the map stays as it is.
func (a *Attacher) layPrewarmed(s *staging, m *cachemap.Map, have volume.Bits) (*cachemap.Map, error) {
	e, l := s.entry, s.seed.list
	over, there, err := cachemap.Over(*l, have.Has, m.CacheBlocks, s.origin.Sectors)
	if err != nil || there < cachemap.HotChunks(uint64(len(over.Entries))) {
		return m, err
	}
	h := e.Hydration.Stream
	h.Chunks, h.Hot, h.Prewarmed = uint64(len(over.Entries)), there, true
	return &over, a.writeMap(e.ID, over)
}

// forgetPrewarm removes what was prewarmed, and has the journal forget it before
// another logical volume has its name: that would be taken for the copy by a stage that is
// repeated.
func (a *Attacher) forgetPrewarm(ctx context.Context, e *state.Entry) error {
	if err := a.ssd.Remove(ctx, e.ID); err != nil {
		return err
	}
	a.dropPrewarm(ctx, e)
	e.Prewarm = nil
	return a.save(ctx, e, e.State)
}

// misplaced says why the logical volume is not the one that was copied to, or not with two copies
// if the record asks for them, or "".
func (a *Attacher) misplaced(ctx context.Context, e *state.Entry, mirror bool) (string, error) {
	c, err := a.ssd.Inspect(ctx, a.Pool.View().VG, e.ID)
	if err != nil {
		return "", err
	}
	lv := c.Data
	f, _ := layout.ParseTags(lv.Tags)
	switch {
	case lv.Name == "":
		return "its logical volume is gone", nil
	case f.UID != e.Fence.UID || f.Node != a.Node || f.Generation != e.Fence.Generation && f.Generation != e.Fence.Generation-1:
		return "its logical volume is tagged for another ownership", nil
	case mirror && !lv.Mirrored():
		return "its logical volume has one copy", nil
	case lv.Checked != e.Checked:
		return "its logical volume was made with checksums, or without, and the pool asks for the other by now", nil
	case lv.SizeBytes != e.DataBytes:
		return fmt.Sprintf("its logical volume has %d bytes, not %d", lv.SizeBytes, e.DataBytes), nil
	}
	return "", nil
}

// keepData makes the logical volume that was copied to the one of this ownership.
func (a *Attacher) keepData(ctx context.Context, id volume.ID, tags []string) (lvm.LV, error) {
	vg := a.Pool.View().VG
	// Of a stage that was killed.
	if err := a.LVM.RemoveLVs(ctx, vg, layout.MetaLV(id), layout.HydrationLV(id)); err != nil {
		return lvm.LV{}, err
	}
	c, err := a.ssd.ActivateData(ctx, vg, id)
	if err != nil {
		return lvm.LV{}, err
	}
	var old []string
	data := c.Data
	for _, t := range data.Tags {
		if strings.HasPrefix(t, "nearflash.") && !slices.Contains(tags, t) {
			old = append(old, t)
		}
	}
	if err := a.LVM.ChangeTags(ctx, vg, tags, old, layout.DataLV(id)); err != nil {
		return lvm.LV{}, err
	}
	faultPrewarmTaken.Hit()
	return data, nil
}

// checkPrewarm wipes copied data that can be of no use any more.
func (a *Attacher) checkPrewarm(ctx context.Context, e *state.Entry) error {
	rec, err := a.Records.Get(ctx, e.ID)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	if err == nil && prewarmWanted(e, rec, a.Node, a.Now(), a.Warm.RetainedCacheTTL) {
		return nil
	}
	if agrees, err := a.ssdAgrees(ctx, e); err != nil || !agrees {
		return err
	}
	klog.FromContext(ctx).Info("Prewarmed data are stale or too old", "volume", e.ID, "generation", e.Fence.Generation, "current", rec.Fence.Generation)
	return a.wipe(ctx, e.ID, e)
}
