package devmapper

import (
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

// CacheStatus is [Client.Status] of a device that may be suspended. Errors: ErrNotExist, ErrParse if
// it is no cache.
func (s *Suspender) CacheStatus(name string) (CacheStatus, error) {
	text, err := s.c.status(name)
	if err != nil {
		return CacheStatus{}, err
	}
	lines, err := parseLines(text)
	if err != nil {
		return CacheStatus{}, fmt.Errorf("status of %s: %w", name, err)
	}
	if len(lines) != 1 || lines[0].Type != "cache" {
		return CacheStatus{}, fmt.Errorf("status of %s: %w: it is no cache", name, ErrParse)
	}
	return cacheStatus(lines[0]), nil
}
