package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/attach/cachefault"
	"github.com/nearflash/nearflash/pkg/volume"
)

// formatFacts are what decideFormat rests on.
type formatFacts struct {
	ID volume.ID
	// State is the record's, Content what was read of the device without an error.
	State   volume.Formatted
	Content volume.Content
	// FSType was asked for; ReadOnly forbids to write.
	FSType   string
	ReadOnly bool
}

// formatStep is one step of the table "The filesystem" in states.md.
type formatStep string

const (
	formatMount formatStep = "Mount"
	formatNote  formatStep = "Note"
	formatMake  formatStep = "Make"
)

// decideFormat is that table, in its order. Errors: ErrInvalid; nothing was written.
func decideFormat(f formatFacts) (formatStep, error) {
	c, may := f.Content, f.State == volume.FormatNever || f.State == volume.FormatBegun
	if bugFormatUnread.On() {
		may = true
	}
	switch {
	case c.Type == f.FSType && !c.Unfinished && (!may || f.ReadOnly):
		return formatMount, nil
	case c.Type == f.FSType && !c.Unfinished:
		return formatNote, nil
	case f.ReadOnly && may:
		return "", fmt.Errorf("%w: volume %s has no filesystem yet, and a read-only volume is not formatted: use it once with write access", volume.ErrInvalid, f.ID)
	case c.Type != "" && c.Type != f.FSType:
		return "", fmt.Errorf("%w: volume %s holds %q, fsType %s was asked for; it is left as it is", volume.ErrInvalid, f.ID, c.Type, f.FSType)
	case may && c.Blank, f.State == volume.FormatBegun:
		return formatMake, nil
	case may:
		return "", fmt.Errorf("%w: volume %s is not blank and holds nothing that is known as a filesystem; it is left as it is: use it as a raw block volume (volumeMode: Block), or overwrite its first and last MiB with zeroes if nobody needs what it holds", volume.ErrInvalid, f.ID)
	case c.Unfinished:
		return "", fmt.Errorf("%w: volume %s holds a filesystem of type %s that was never finished, although its record says that it was formatted; it is left as it is%s", volume.ErrInvalid, f.ID, c.Type, formatRemedy(f.ID))
	}
	return "", fmt.Errorf("%w: volume %s was formatted, and no filesystem is found on it now; it is left as it is%s", volume.ErrInvalid, f.ID, formatRemedy(f.ID))
}

// formatRemedy says what an administrator can do about a volume that lost its filesystem.
func formatRemedy(id volume.ID) string {
	return fmt.Sprintf(": restore it on the storage server, or repair it as a raw block volume; if it is meant to be empty, say so with `kubectl patch cvol %s --subresource=status --type=merge -p '{\"status\":{\"filesystem\":\"NeverFormatted\"}}'`", id)
}

// ensureFilesystem sees to it that the staged device has the filesystem that was asked
// for. The record says before mkfs that it may be under way, and before the mount that
// it is over: killed anywhere, the owner goes on, and nobody else can take what a pod has
// written for an interrupted mkfs.
func (a *Attacher) ensureFilesystem(ctx context.Context, s *staging, device string) error {
	content, err := a.readContent(ctx, s, device)
	if err != nil {
		return err
	}
	fsType := s.req.FSType
	if fsType == "" {
		fsType = volume.DefaultFSType
	}
	f := formatFacts{ID: s.req.ID, State: s.rec.Filesystem, Content: content, FSType: fsType, ReadOnly: s.req.ReadOnly || s.entry.ReadOnly}
	step, err := decideFormat(f)
	if err != nil || step == formatMount {
		return err
	}
	fence := s.req.Publication.Fence
	// The record may be one that an administrator has set back, over a device that drops flushes.
	if err := a.passNow(ctx, s.entry); err != nil {
		return err
	}
	if step == formatMake {
		klog.FromContext(ctx).Info("Formatting", "volume", s.req.ID, "device", device, "fsType", fsType, "state", f.State)
		if err := a.Records.SetFormatted(ctx, s.req.ID, fence, volume.FormatBegun); err != nil {
			return err
		}
		faultFormatBegun.Hit()
		if err := a.FS.Format(ctx, device, fsType); err != nil {
			return err
		}
		faultFormatMade.Hit()
	}
	if s.entry.Unsafe {
		// Also a filesystem that is only noted may have been made while flushes were dropped.
		if err := a.stack.SyncTop(ctx, s.req.ID, &a.flushes); err != nil {
			return err
		}
	}
	return a.Records.SetFormatted(ctx, s.req.ID, fence, volume.FormatDone)
}

// handOutRaw says before a pod gets the device itself that the volume is not blank any
// more: nobody sees where the pod writes.
func (a *Attacher) handOutRaw(ctx context.Context, s *staging) error {
	if s.rec.Filesystem == volume.FormatDone || s.req.ReadOnly || s.entry.ReadOnly {
		return nil
	}
	return a.Records.SetFormatted(ctx, s.req.ID, s.req.Publication.Fence, volume.FormatDone)
}

// readContent reads what the device holds. If the cache's SSD fails that read and the
// origin does not, the cache is left first, provided that it is proven clean.
func (a *Attacher) readContent(ctx context.Context, s *staging, device string) (volume.Content, error) {
	c, err := a.FS.Probe(ctx, device)
	if err == nil || ctx.Err() != nil {
		return c, err
	}
	if bugFormatUnread.On() {
		return volume.Content{Blank: true}, nil
	}
	unread := fmt.Errorf("%w: volume %s cannot be read, so nobody knows whether it has a filesystem: %w", volume.ErrUnavailable, s.req.ID, err)
	if !s.entry.Cached() {
		return c, unread
	}
	if _, originErr := a.FS.Probe(ctx, s.origin.Path); originErr != nil {
		return c, unread
	}
	if err := a.leaveFailedCache(ctx, s, "the SSD cannot be read: "+err.Error()); err != nil {
		return c, fmt.Errorf("%w: the origin can be read, but the cache cannot be left: %w", unread, err)
	}
	return a.FS.Probe(ctx, device)
}

// leaveFailedCache puts the origin in the place of a cache that nobody has mounted yet.
// One in writeback mode has to prove first that it is clean (I2).
func (a *Attacher) leaveFailedCache(ctx context.Context, s *staging, why string) error {
	e := s.entry
	st, err := a.stack.CacheStatus(ctx, e.ID)
	if err != nil {
		return err
	}
	if st.Dirty > 0 {
		return fmt.Errorf("%w: %d bytes on the SSD of node %s are not on the storage server yet", volume.ErrUnavailable, st.DirtyBytes(), a.Node)
	}
	if e.Mode == volume.ModeWriteback {
		clean := changeFacts{Entry: e, Record: s.rec}
		clean.Record.Spec.Mode = volume.ModeWritethrough
		wait, err := a.cleanLive(ctx, clean)
		if err == nil && wait {
			err = fmt.Errorf("%w: the cache of volume %s is being flushed", volume.ErrUnavailable, e.ID)
		}
		if err != nil {
			return errors.Join(err, a.swapPolicy(ctx, e, false))
		}
	}
	if err := a.detachCache(ctx, e, cmp.Or(cachefault.Broken(st), why)); err != nil {
		return err
	}
	s.plan = uncached(s.plan, v1alpha1.ReasonCacheDeviceError, why+": the volume goes on without its cache on node "+a.Node+", nothing is lost")
	return nil
}
