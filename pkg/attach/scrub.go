package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/scrub"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ScrubConfig says how caches are compared with their origins.
type ScrubConfig struct {
	// Period is after how long a volume is scrubbed again; 0 is only when that is asked for.
	Period time.Duration
	// Rate bounds what is compared, in bytes per second; 0 is no limit.
	Rate int64
}

const (
	// mapTries is how often the map of a cache in use is read that changes meanwhile, and mapPause
	// the pause between two.
	mapTries, mapPause = 5, 250 * time.Millisecond
)

// Scrubs returns what compares this node's caches with their origins.
func (a *Attacher) Scrubs() *scrub.Keeper { return a.scrubs }

// newScrubs returns it. Nothing is due on a node that cannot judge what differs.
func (a *Attacher) newScrubs() *scrub.Keeper {
	return &scrub.Keeper{Host: scrubHost{a}, Judge: a.Judge, Open: a.Blocks.Open, Rate: a.Scrub.Rate, Now: func() time.Time { return a.Now() }}
}

// ResumeLeft resumes what a guard may have left suspended that nobody waits for.
func (a *Attacher) ResumeLeft(ctx context.Context) {
	if a.Judge == nil {
		return
	}
	log := klog.FromContext(ctx)
	left, err := a.Judge.Left(ctx)
	if err != nil {
		log.Error(err, "Devices that may be suspended could not be looked for")
	}
	for _, id := range left {
		unlock, ok := a.Locks.TryLock(string(id))
		if !ok {
			continue
		}
		if err := a.Judge.Recover(ctx, id); err != nil {
			log.Error(err, "Device that may be suspended was not resumed; it is tried again", "volume", id)
		}
		unlock()
	}
}

// scrubHost is the Attacher as the keeper of scrubs sees it.
type scrubHost struct{ *Attacher }

// Due implements scrub.Host.
func (h scrubHost) Due(ctx context.Context) ([]scrub.Volume, error) {
	if h.Judge == nil {
		return nil, nil
	}
	h.ResumeLeft(ctx) // that of a plugin before, if it could not be at the start
	records, err := h.Owned.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(records, func(a, b volume.Volume) int { return a.ScrubbedAt.Compare(b.ScrubbedAt) })
	var asked, due []scrub.Volume
	for _, rec := range records {
		request, wanted := decideScrubDue(rec, h.Scrub.Period, h.Now())
		if !wanted {
			continue
		}
		e, err := h.load(rec.ID)
		if err != nil || e == nil || e.State != state.Staged {
			continue // the repair speaks of a journal that cannot be read
		}
		v := scrub.Volume{ID: rec.ID, Fence: rec.Fence, Request: request}
		if request != "" {
			asked = append(asked, v)
		} else if e.Cached() {
			due = append(due, v)
		}
	}
	return append(asked, due...), nil
}

// decideScrubDue reports whether a volume is to be scrubbed, and what was asked for.
func decideScrubDue(rec volume.Volume, period time.Duration, now time.Time) (request string, due bool) {
	switch {
	case !rec.Published:
		return "", false
	case rec.ScrubRequest != "" && rec.ScrubRequest != rec.ScrubDone:
		return rec.ScrubRequest, true
	}
	return "", period > 0 && now.Sub(rec.ScrubbedAt) >= period
}

// scrubFacts are what decideScrub rests on.
type scrubFacts struct {
	changeFacts

	// Boot is the kernel's boot id.
	Boot string
	// Fence is the ownership that the scrub is of.
	Fence volume.Fence
	// Top is the top device.
	Top devmapper.Info
}

// decideScrub is the table "Scrub" of states.md, in its order.
func decideScrub(f scrubFacts) (v scrub.Verdict, why string) {
	e := f.Entry
	switch {
	case e == nil || e.State != state.Staged || e.Boot != f.Boot || e.Fence != f.Fence || f.Record.Fence != f.Fence || !f.Record.Published || e.Lost != nil:
		return scrub.Gone, "the volume is not attached here any more"
	case e.FailoverCause != "" || f.Broken != "" || f.LiveCache && (f.Status.Fail || f.Status.ReadOnly || f.Status.NeedsCheck):
		return scrub.Wait, "the cache fails"
	case !f.LiveCache || !e.Cached():
		return scrub.NoCache, "there is no cache"
	case e.Hydration != nil || e.Exported != nil:
		return scrub.Wait, "the cache is being filled, or read by another node"
	case f.Record.Hold != nil:
		return scrub.Wait, "the volume is being cut for a snapshot"
	case f.Top.Suspended || f.Top.HasInactive || !f.Top.HasLive:
		return scrub.Wait, "another table is about to be live"
	}
	if step := decideChange(f.changeFacts); step != changeDone && step != changeImpossible {
		return scrub.Wait, "something else is to be done first: " + step.words()
	}
	if f.Status.Mode() != liveMode(e.Mode) || f.Status.Policy != devmapper.PolicySMQ {
		return scrub.Wait, "the cache is being flushed"
	}
	return scrub.Compare, ""
}

// Look implements scrub.Host.
func (h scrubHost) Look(ctx context.Context, v scrub.Volume) (c scrub.Cache, unlock func(), err error) {
	unlock, ok := h.Locks.TryLock(string(v.ID))
	if !ok {
		return scrub.Cache{Verdict: scrub.Wait, Why: "a request works on the volume"}, func() {}, nil
	}
	e, err := h.loadSettled(ctx, v.ID)
	if err != nil {
		return c, unlock, err
	}
	f := scrubFacts{Boot: h.Boot, Fence: v.Fence}
	if f.Record, err = h.ownedRecord(ctx, v.ID); err != nil {
		return c, unlock, err
	}
	if f.changeFacts = (changeFacts{Entry: e, Record: f.Record}); e != nil && e.State == state.Staged {
		if f.changeFacts, err = h.changeOf(ctx, e, f.Record); err != nil {
			return c, unlock, err
		}
		if f.Top, _, err = h.stack.Top(ctx, v.ID); err != nil {
			return c, unlock, err
		}
	}
	if c.Verdict, c.Why = decideScrub(f); c.Verdict == scrub.Compare {
		c, err = h.cacheToScrub(ctx, f)
	}
	return c, unlock, err
}

// ownedRecord is the record of a volume as the watch shows it; without an owner if it does not.
func (h scrubHost) ownedRecord(ctx context.Context, id volume.ID) (volume.Volume, error) {
	records, err := h.Owned.List(ctx)
	if err != nil {
		return volume.Volume{}, err
	}
	if i := slices.IndexFunc(records, func(v volume.Volume) bool { return v.ID == id }); i >= 0 {
		return records[i], nil
	}
	return volume.Volume{}, nil
}

// cacheToScrub is where the parts of a live cache are, by its table.
func (h scrubHost) cacheToScrub(ctx context.Context, f scrubFacts) (scrub.Cache, error) {
	top := layout.Device(f.Entry.ID, layout.Top)
	table, err := h.DM.Table(ctx, top)
	if err != nil {
		return scrub.Cache{}, err
	}
	t, ok := table.Cache()
	if !ok {
		return scrub.Cache{}, fmt.Errorf("%w: device %s is not an active cache", volume.ErrUnavailable, top)
	}
	meta, err := devmapper.DevPath(t.Metadata)
	data, dataErr := devmapper.DevPath(t.Data)
	origin, originErr := devmapper.DevPath(t.Origin)
	metaID, metaIDErr := h.lvIdentity(t.Metadata)
	dataID, dataIDErr := h.lvIdentity(t.Data)
	// Without the count nothing is called corrupted that a discard explains.
	discards, countErr := blockdev.Discards(h.Sysfs, f.Top.DevNo())
	return scrub.Cache{
		Discards: !f.Entry.Raw && (discards > 0 || countErr != nil), Raw: f.Entry.Raw,
		Verdict: scrub.Compare, ID: metaID + " " + dataID, Top: top, Meta: meta, Data: data, Origin: origin,
		ChunkSectors: t.ChunkSectors, DataSectors: f.Status.CacheTotal * f.Status.ChunkSectors, OriginSectors: table.Sectors(),
		Writethrough: t.Mode == devmapper.Writethrough && f.Entry.WrittenThrough, Dirty: f.Status.Dirty > 0,
	}, errors.Join(err, dataErr, originErr, metaIDErr, dataIDErr)
}

// lvIdentity is the UUID of a device of the device mapper, which is new for each logical volume.
func (h scrubHost) lvIdentity(devno string) (string, error) {
	b, err := os.ReadFile(filepath.Join(h.Sysfs, "dev/block", devno, "dm/uuid"))
	return strings.TrimSpace(string(b)), err
}

// Map implements scrub.Host.
func (h scrubHost) Map(ctx context.Context, v scrub.Volume, c scrub.Cache) (m cachemap.Map, err error) {
	// The kernel writes down what has changed when it is told to, or flushes.
	if err := h.DM.Commit(ctx, c.Top); err != nil {
		return m, err
	}
	for try := 1; ; try++ {
		m, err = h.readInUse(ctx, c.Meta, filepath.Join(h.Warm.Dir, string(v.ID)+".scrub"))
		if err == nil || try == mapTries {
			return m, err
		}
		select {
		case <-ctx.Done():
			return m, ctx.Err()
		case <-time.After(mapPause):
		}
	}
}

// FailOver implements scrub.Host.
func (h scrubHost) FailOver(ctx context.Context, id volume.ID, cause string) error {
	e, err := h.load(id)
	if err != nil || e == nil || e.State != state.Staged || e.Mode != volume.ModeWritethrough {
		return err
	}
	return h.detachCache(ctx, e, cause)
}

// Report implements scrub.Host.
func (h scrubHost) Report(ctx context.Context, v scrub.Volume, r volume.ScrubReport) error {
	r.Request = v.Request
	return h.Records.ReportScrub(ctx, v.ID, v.Fence, r)
}
