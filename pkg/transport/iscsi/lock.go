package iscsi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// lockFile is the lock of the record database: a hard link that an iscsiadm makes
// before it touches the database and removes after it (open-iscsi, usr/idbm.c,
// idbm_lock). One that was killed in between, with the node plugin or by a
// person, leaves it for ever.
const lockFile = "lock.write"

// lockHeld is far longer than the lock is ever held: for the writing of a small
// file, never for a login.
const lockHeld = 10 * time.Second

// removeStaleLock removes a lock whose holder is gone. Making the link sets the
// inode's change time, so that it tells the age of the lock.
func (i tools) removeStaleLock(ctx context.Context) error {
	path := filepath.Join(i.place.Path(i.lockDir), lockFile)
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock of the initiator's records: %w", &os.PathError{Op: "stat", Path: path, Err: err})
	}
	age := time.Since(time.Unix(st.Ctim.Unix()))
	if age < lockHeld {
		return nil
	}
	klog.FromContext(ctx).Info("Removing the lock that a killed iscsiadm left", "path", path, "age", age)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("lock of the initiator's records: %w", err)
	}
	return nil
}
