// Package durable makes, replaces and removes files so that a crash of the process or of the
// machine leaves the old state or the new one, and the new one once a call has
// returned. It rests on rename(2) being atomic, and on fsync(2) of the directory:
// without it the rename itself may be lost.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tempPrefix begins the names of half-written files.
const tempPrefix = ".tmp-"

// WriteFile replaces a file, readable for its owner only (mode 0600).
func WriteFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

// Remove removes a file; a missing one is success.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Also after a missing file: its removal may not have been made durable.
	return syncDir(filepath.Dir(path))
}

// Sweep removes what a crash in WriteFile has left in a directory. Nobody may be
// writing there.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
