package volumetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Attacher is volume.Attacher in memory. It makes and removes the target paths,
// because callers look at them.
type Attacher struct {
	mu     sync.Mutex
	staged map[volume.ID]string
	// published are the target paths by volume.
	published map[volume.ID]map[string]bool
	announced []volume.ID
}

var _ volume.Attacher = (*Attacher)(nil)

// NewAttacher returns an Attacher with nothing staged.
func NewAttacher() *Attacher {
	return &Attacher{staged: map[volume.ID]string{}, published: map[volume.ID]map[string]bool{}}
}

// Staged lists the volumes that are staged.
func (a *Attacher) Staged() []volume.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []volume.ID
	for id := range a.staged {
		out = append(out, id)
	}
	return out
}

// Announce implements volume.Attacher.
func (a *Attacher) Announce(req volume.StageRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.announced = append(a.announced, req.ID)
}

// Announced lists the volumes whose stages were announced.
func (a *Attacher) Announced() []volume.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.announced)
}

// Stage implements volume.Attacher.
func (a *Attacher) Stage(_ context.Context, req volume.StageRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok := a.staged[req.ID]; ok && at != req.StagingPath {
		return fmt.Errorf("%w: %s is staged at %s", volume.ErrInUse, req.ID, at)
	}
	a.staged[req.ID] = req.StagingPath
	return nil
}

// Unstage implements volume.Attacher.
func (a *Attacher) Unstage(_ context.Context, id volume.ID, _ string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.published[id]) > 0 {
		return fmt.Errorf("%w: %s is published", volume.ErrInUse, id)
	}
	delete(a.staged, id)
	return nil
}

// Publish implements volume.Attacher.
func (a *Attacher) Publish(_ context.Context, req volume.PublishRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.staged[req.ID] == "" {
		return fmt.Errorf("%w: %s", volume.ErrNotStaged, req.ID)
	}
	if err := os.MkdirAll(req.TargetPath, 0o750); err != nil {
		return err
	}
	if a.published[req.ID] == nil {
		a.published[req.ID] = map[string]bool{}
	}
	a.published[req.ID][req.TargetPath] = true
	return nil
}

// Unpublish implements volume.Attacher.
func (a *Attacher) Unpublish(_ context.Context, id volume.ID, target string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.published[id], target)
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Expand implements volume.Attacher.
func (a *Attacher) Expand(_ context.Context, req volume.ExpandRequest) (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.staged[req.ID] == "" {
		return 0, fmt.Errorf("%w: %s", volume.ErrNotStaged, req.ID)
	}
	return 1 << 60, nil
}

// Stats implements volume.Attacher.
func (a *Attacher) Stats(_ context.Context, id volume.ID, path string) (volume.Stats, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.published[id][path] && a.staged[id] != path {
		return volume.Stats{}, fmt.Errorf("%w: %s is not at %s", volume.ErrNotFound, id, path)
	}
	return volume.Stats{TotalBytes: 4096, UsedBytes: 1024, AvailableBytes: 3072, TotalInodes: 4, UsedInodes: 1, AvailableInodes: 3}, nil
}
