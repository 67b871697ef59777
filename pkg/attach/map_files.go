package attach

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/cachetools"
)

// SweepMapFiles removes what a killed process has left of the maps that it was reading
// (cachetools.ReadMap): a copy of metadata takes as much as these. It is for the start of the process,
// before anything reads a map. What cannot be removed takes room, and no more.
func (a *Attacher) SweepMapFiles(ctx context.Context) {
	if a.Warm.Dir == "" {
		return
	}
	files, err := os.ReadDir(a.Warm.Dir)
	problems := []error{err}
	for _, f := range files {
		if cachetools.Scratch(f.Name()) {
			problems = append(problems, cachetools.RemoveFiles(filepath.Join(a.Warm.Dir, f.Name())))
		}
	}
	if err := errors.Join(problems...); err != nil {
		klog.FromContext(ctx).Error(err, "Files of a process before were not removed")
	}
}
