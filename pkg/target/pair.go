package target

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
)

// checkStateVolume fails unless the state directory is the filesystem of the configured
// volume. An empty directory in its place would end every export, and let any cluster in.
func (c Config) checkStateVolume(stat func(path string, st *unix.Stat_t) error) error {
	if c.StateVolume == "" {
		return nil
	}
	device := "/dev/" + c.VolumeGroup + "/" + c.StateVolume
	var volume, dir unix.Stat_t
	if err := stat(device, &volume); err != nil {
		return fmt.Errorf("stateVolume: %s: %w; remedy: activate the volume group, if no other machine has it active", device, err)
	}
	err := stat(c.StateDir, &dir)
	if err == nil && dir.Dev != volume.Rdev {
		err = errors.New("another filesystem is there")
	}
	if err != nil {
		return fmt.Errorf("stateVolume: %s is not mounted at %s: %w; remedy: mount it", device, c.StateDir, err)
	}
	return nil
}

// Withdraw ends all exports in the kernel and keeps them recorded, so that the volume group
// can be deactivated and another machine serves it. It is for a machine whose server is
// stopped, and does nothing on one that exports nothing.
// Errors: exportstate.ErrLocked while the server runs.
func Withdraw(ctx context.Context, cfg Config) error {
	if _, err := os.Stat(cfg.StateDir); err == nil {
		store, err := exportstate.Open(cfg.StateDir)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }() // the lock ends with the process anyway
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s := &Service{cfg: cfg, tree: lio.NewTree(lio.NewFS(lio.DefaultRoot))}
	if err := s.removeUnrecorded(ctx, nil); err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("Exports are withdrawn; they stay recorded")
	return nil
}
