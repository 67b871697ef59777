// Package cachetools reads and writes the metadata of caches that no table uses,
// with thin-provisioning-tools. It needs version 1.0 or newer: those before drop the
// hints.
package cachetools

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// Errors; test with errors.Is. A program that is missing is
// hostexec.ErrNotInstalled, a device or file that is missing fs.ErrNotExist.
var (
	// ErrRefused: the program could not make sense of the metadata, or of the XML.
	ErrRefused = errors.New("cache metadata refused")
	// ErrBusy: a table, or another program, uses the metadata device.
	ErrBusy = errors.New("cache metadata are in use")
	// ErrNoDirect: the metadata are a file whose filesystem has no direct I/O.
	ErrNoDirect = errors.New("no direct I/O, which cache_dump needs and tmpfs has from Linux 6.6 on")
	// ErrNoSpace: the map needs a larger metadata device, or the file more room.
	ErrNoSpace = errors.New("no space for cache metadata")
)

// dumpBytes bounds the XML of a map: somebody else's metadata may say anything. A map of
// cachemap.MaxBlocks has less than half of it.
const dumpBytes = 384 << 20

// Dump writes the map in metadata to a file, as XML (cache_dump(8)). On error there
// is no file. A map of more than dumpBytes is refused.
//
// The metadata must not be in use: those of a running cache change while they are
// read. Errors: ErrRefused, ErrBusy, ErrNoSpace, ErrNoDirect.
func Dump(ctx context.Context, run hostexec.Runner, metadataDevice, file string) error {
	cmd := hostexec.Query("cache_dump", "-o", file, metadataDevice)
	cmd.FileBytes = dumpBytes
	_, err := run.Run(ctx, cmd)
	if err == nil {
		return nil
	}
	if direct := DirectIO(metadataDevice); direct != nil {
		err = fmt.Errorf("%w: %w", direct, err)
	}
	err = fmt.Errorf("dump %s: %w", metadataDevice, classify(err))
	if rmErr := os.Remove(file); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	return err
}

// DirectIO reports whether cache_dump can open a file (open(2), O_DIRECT). Error: ErrNoDirect;
// whatever else is wrong with it the program itself says better.
func DirectIO(file string) error {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %s", ErrNoDirect, file)
	}
	if err == nil {
		_ = f.Close() // it was only read
	}
	return nil
}

// Restore writes metadata of version 2, as after a clean stop, from XML
// (cache_restore(8)). The superblock is written last: on a device that had none before,
// an attempt that failed leaves none. Errors: ErrRefused, ErrBusy, ErrNoSpace.
func Restore(ctx context.Context, run hostexec.Runner, file, metadataDevice string) error {
	if _, err := run.Run(ctx, hostexec.Command("cache_restore", "-i", file, "-o", metadataDevice)); err != nil {
		return fmt.Errorf("restore %s: %w", metadataDevice, classify(err))
	}
	return nil
}

// Writeback writes the dirty blocks of a cache that no table uses to its origin
// (cache_writeback(8)): all blocks if the last stop was unclean, as the kernel would.
// It takes the dirty marks of the blocks that were written. The origin's own cache is
// not flushed.
//
// Errors: ErrRefused, also if some block could not be written; then the others were.
// ErrBusy.
func Writeback(ctx context.Context, run hostexec.Runner, metadataDevice, dataDevice, origin string) error {
	_, err := run.Run(ctx, hostexec.Command("cache_writeback", "--metadata-device", metadataDevice, "--fast-device", dataDevice,
		"--origin-device", origin, "--retry-count", "3"))
	if err != nil {
		return fmt.Errorf("write %s back to %s: %w", dataDevice, origin, classify(err))
	}
	return nil
}

// classify gives the error of a program that ran one of this package's sentinels.
// The programs have one exit status for all that goes wrong.
func classify(err error) error {
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	text := string(exit.Stderr)
	switch {
	case exit.ExitCode < 0, errors.Is(err, ErrNoDirect):
		return err // the former is a signal
	case strings.Contains(text, "Device or resource busy"):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case strings.Contains(text, "No space left on device"), strings.Contains(text, "out of metadata space"):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case strings.Contains(text, "Couldn't find"), strings.Contains(text, "No such file or directory"):
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// Tools are Dump, Restore and Writeback on the machine of a Runner.
type Tools struct {
	Run hostexec.Runner
}

// Dump is the function of the same name.
func (t Tools) Dump(ctx context.Context, metadataDevice, file string) error {
	return Dump(ctx, t.Run, metadataDevice, file)
}

// Restore is the function of the same name.
func (t Tools) Restore(ctx context.Context, file, metadataDevice string) error {
	return Restore(ctx, t.Run, file, metadataDevice)
}

// Writeback is the function of the same name.
func (t Tools) Writeback(ctx context.Context, metadataDevice, dataDevice, origin string) error {
	return Writeback(ctx, t.Run, metadataDevice, dataDevice, origin)
}
