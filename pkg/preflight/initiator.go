package preflight

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// madePrefix begins the initiator names that are made here.
const madePrefix = "iqn.2026-11.io.nearflash:node-"

// MakeInitiatorName writes an initiator name that no other node has into a file as open-iscsi's
// initiatorname.iscsi, unless the file is there, whatever is in it. Of several callers one makes it.
func MakeInitiatorName(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(file)
	// A file without a name: nothing is left of it by a kill, and no reader sees a part.
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("initiator name: %w", err)
	}
	defer func() { _ = f.Close() }() // it is synced
	if _, err := fmt.Fprintf(f, "InitiatorName=%s%s\n", madePrefix, strings.ToLower(rand.Text())); err != nil {
		return fmt.Errorf("initiator name: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("initiator name: %w", err)
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, file, unix.AT_SYMLINK_FOLLOW)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("initiator name: %w", err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("initiator name: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
