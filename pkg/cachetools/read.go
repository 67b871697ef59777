package cachetools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// ReadMap reads the map of a cache from a copy of its metadata, for which it makes
// files whose names begin with base. A cache that was never stopped cleanly is read
// too.
func ReadMap(ctx context.Context, dump func(ctx context.Context, device, file string) error, metadataDevice, base string) (m cachemap.Map, err error) {
	raw, text := base+rawSuffix, base+textSuffix
	defer func() { err = errors.Join(err, RemoveFiles(raw, text)) }()
	if err := CopyHead(ctx, metadataDevice, raw, math.MaxInt64); err != nil {
		return m, err
	}
	if err := devmapper.AddHints(raw); err != nil {
		return m, err
	}
	if err := dump(ctx, raw, text); err != nil {
		return m, err
	}
	read, err := ReadFile(text)
	if err != nil {
		return m, err
	}
	return *read, nil
}

// What ReadMap makes ends with these.
const rawSuffix, textSuffix = ".raw", ".hot"

// Scratch reports whether a file of that name is one that ReadMap makes, and removes when it ends.
func Scratch(name string) bool {
	return strings.HasSuffix(name, rawSuffix) || strings.HasSuffix(name, textSuffix)
}

// ReadFile reads a map that Dump has written.
func ReadFile(path string) (*cachemap.Map, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	m, err := cachemap.Read(f)
	return &m, err
}

// WriteFile replaces a file by a map for Restore. A process that ends leaves the old file or
// the new one; after a loss of power either may be gone.
func WriteFile(path string, m cachemap.Map) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	if err = errors.Join(m.WriteXML(f), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// CopyHead copies the first n bytes of a device, a multiple of 4096, to a file: past the page
// cache, in which the kernel's own writes do not show.
func CopyHead(ctx context.Context, device, file string, n int64) error {
	in, err := blockdev.OpenDirect(device)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	buf := blockdev.AlignedBuffer(1 << 20)
	for err == nil && n > 0 && ctx.Err() == nil {
		var got int
		if got, err = in.Read(buf[:min(n, int64(len(buf)))]); got > 0 {
			_, werr := out.Write(buf[:got])
			err, n = errors.Join(err, werr), n-int64(got)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, ctx.Err(), out.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", device, err)
	}
	return nil
}

// RemoveFiles removes what may be there.
func RemoveFiles(paths ...string) error {
	var errs []error
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
