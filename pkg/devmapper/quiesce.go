package devmapper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// flagStatusTable asks for tables instead of statuses (DM_STATUS_TABLE_FLAG).
	flagStatusTable = 1 << 4
	// flagSkipLockFS keeps the kernel from freezing the filesystem on a device (DM_SKIP_LOCKFS_FLAG).
	flagSkipLockFS = 1 << 10
)

// quiescer is what a Suspender asks of the kernel; [control] is it.
type quiescer interface {
	ask(request uintptr, name string, flags uint32) error
	info(name string) (Info, error)
	status(name string) (string, error)
	table(name string) (string, error)
	close()
}

// Suspender suspends a device for a moment, for a process that resumes it whatever happens
// (docs/design/states.md, Scrub). It is not for the plugin itself.
type Suspender struct{ c quiescer }

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
// any error, the device goes on. That holds for what is under way: a target's own end (postsuspend) is
// waited for whatever comes. Errors: ErrNotExist; ErrBusy if it is suspended already, which the kernel
// itself takes for success.
func (s *Suspender) Suspend(name string) error {
	i, err := s.c.info(name)
	if err != nil {
		return err
	}
	if i.Suspended {
		return fmt.Errorf("suspend %s: %w: it is suspended already", name, ErrBusy)
	}
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

// Table is [Client.Table] of a device that may be suspended. Errors: ErrNotExist, ErrParse.
func (s *Suspender) Table(name string) (Table, error) {
	text, err := s.c.table(name)
	if err != nil {
		return nil, err
	}
	return ParseTable(text)
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
