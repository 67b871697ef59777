package ssd

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/devmapper"
)

// MarkUnclean sees to it that the kernel counts every block of a cache as dirty when it
// loads its map the next time, and returns when that is on stable storage.
func MarkUnclean(blocks Blocks, meta string) error {
	f, err := blocks.Open(meta, unix.O_RDWR|unix.O_DIRECT)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := devmapper.MarkUnclean(f); err != nil {
		return fmt.Errorf("metadata %s: %w", meta, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("metadata %s: %w", meta, err)
	}
	return nil
}
