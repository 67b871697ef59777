package devmapper

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// flagSkipLockFS keeps the kernel from freezing the filesystem on a device (DM_SKIP_LOCKFS_FLAG).
const flagSkipLockFS = 1 << 10

// Suspender suspends a device for a moment, for a process that resumes it whatever happens
// (docs/design/states.md, Scrub). It is not for the plugin itself.
type Suspender struct{ c *control }

// OpenSuspender opens the device mapper. Errors: ErrUnsupported.
func OpenSuspender() (*Suspender, error) {
	k, err := openControl()
	if err != nil {
		return nil, err
	}
	return &Suspender{c: k.(*control)}, nil
}

// Close lets it go.
func (s *Suspender) Close() { s.c.close() }

// Suspend returns when nothing of the device is under way, and nothing new begins (__dm_suspend in
// drivers/md/dm.c); a cache has written its map and its dirty bits by then. It may wait for as long
// as what is below does not answer, until a signal for the thread ends it (EINTR); then, as after
// any error, the device goes on. Errors: ErrNotExist, ErrInvalid (suspended already).
func (s *Suspender) Suspend(name string) error {
	if err := s.c.ask(unix.DM_DEV_SUSPEND, name, flagSuspended|flagSkipLockFS); err != nil {
		return fmt.Errorf("suspend %s: %w", name, err)
	}
	return nil
}

// Resume ends that. Errors: ErrNotExist.
func (s *Suspender) Resume(name string) error {
	if err := s.c.ask(unix.DM_DEV_SUSPEND, name, 0); err != nil {
		return fmt.Errorf("resume %s: %w", name, err)
	}
	return nil
}

// Suspended reports whether the device is. Errors: ErrNotExist.
func (s *Suspender) Suspended(name string) (bool, error) {
	if err := s.c.ask(unix.DM_DEV_STATUS, name, 0); err != nil {
		return false, fmt.Errorf("state of %s: %w", name, err)
	}
	return binary.NativeEndian.Uint32(s.c.buf[dmFlags:])&flagSuspended != 0, nil
}
