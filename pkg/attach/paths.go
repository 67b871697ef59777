package attach

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// pathsEvery is the pause between two looks at the paths of attached volumes.
const pathsEvery = 5 * time.Second

// RunPaths brings back the paths of origins that work again, until ctx ends (states.md,
// Paths that fail). The kernel's multipath target has no checker: a path that failed stays
// failed until somebody says otherwise.
func (a *Attacher) RunPaths(ctx context.Context) {
	said := ""
	for {
		err := a.TendPaths(ctx)
		if passes.News(err, &said) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Paths of volumes could not be looked at")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pathsEvery):
		}
	}
}

// TendPaths looks once at each volume that may wait for paths. It takes no lock and writes no
// journal: whoever holds the volume's lock may be waiting for just this.
func (a *Attacher) TendPaths(ctx context.Context) error {
	entries, err := a.Journal.List()
	problems := []error{err}
	for i := range entries {
		if e := &entries[i]; e.State != StateResident && e.State != StatePrewarm && (len(e.Source.Portals) > 1 || e.Fill != nil) {
			problems = append(problems, a.tendVolume(ctx, e))
		}
	}
	return errors.Join(problems...)
}

func (a *Attacher) tendVolume(ctx context.Context, e *Entry) error {
	waits := false
	for _, part := range []layout.Part{layout.Origin, layout.Source} {
		name := layout.Device(e.ID, part)
		st, err := a.DM.MultipathStatus(ctx, name)
		if errors.Is(err, devmapper.ErrNotExist) || errors.Is(err, devmapper.ErrParse) {
			continue // none, or over one path
		}
		if err != nil {
			return err
		}
		waits = waits || !st.HasPath()
		for _, p := range st.Paths {
			// What a fill copies from is brought back by the fill's own steps.
			if !p.Active && part == layout.Origin {
				a.tryPath(ctx, e.ID, name, p.Device)
			}
		}
	}
	if !waits {
		return nil
	}
	rec, err := a.Records.Get(ctx, e.ID)
	found := err == nil
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	if !pathsOver(e, rec, found) {
		return nil
	}
	klog.FromContext(ctx).Info("Nothing waits for lost paths any more, because the ownership is over", "volume", e.ID, "generation", e.Fence.Generation)
	return a.failPaths(ctx, e.ID)
}

// pathsOver tells whether an entry's volume need not wait for lost paths: its record has a
// later owner, so that the server does not admit this one any more; or no write is on the
// SSD alone, and the record does not have the volume attached here. A record that is not
// found proves nothing about writes.
func pathsOver(e *Entry, rec volume.Volume, found bool) bool {
	if found && laterOwner(rec.Fence, e.Fence) {
		return true
	}
	return !e.MayBeDirty() && !e.Marked && (!found || !rec.Published || rec.Fence != e.Fence)
}

// tryPath reads from a path that failed, and says so to the kernel if that works. A read may
// take as long as the session is waited for; until it has ended, there is no other.
func (a *Attacher) tryPath(ctx context.Context, id volume.ID, name, devno string) {
	end, free := a.trying.TryLock(name + " " + devno)
	if !free {
		return
	}
	go func() {
		defer end()
		log := klog.FromContext(ctx).WithValues("volume", id, "path", devno)
		if err := readPath(a.Sysfs, devno); err != nil {
			log.V(4).Info("Path does not work yet", "reason", err.Error())
			return
		}
		if err := a.DM.Message(ctx, name, 0, "reinstate_path", devno); err != nil {
			log.Error(err, "Path works again and could not be brought back")
			return
		}
		log.Info("Path works again")
	}()
}

// readPath reads the beginning of a device past the page cache.
func readPath(sysfs, devno string) error {
	link, err := os.Readlink(filepath.Join(sysfs, "dev", "block", devno))
	if err != nil {
		return fmt.Errorf("device %s: %w", devno, err)
	}
	f, err := blockdev.OpenDirect("/dev/" + filepath.Base(link))
	if err != nil {
		return err
	}
	_, err = f.ReadAt(blockdev.AlignedBuffer(probeBytes), 0)
	return errors.Join(err, f.Close())
}
