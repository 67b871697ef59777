// Package netns makes the lab's network: a named network namespace with a
// bridge and one tap per guest, so that nothing of a lab is visible in the
// host's own network.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// dir is where iproute2 keeps its named namespaces (ip-netns(8)), so that
// `ip netns` shows the lab's too.
const dir = "/run/netns"

// share makes dir a mount of its own that is shared, as `ip netns add` does before it makes
// its first namespace. Where it is one already, nobody mounts it over the lab's names later.
func share() error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("namespace folder: %w", err)
	}
	err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount yet
		if err = unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("share namespace folder %s (root is needed): %w", dir, err)
	}
	return nil
}

// NS is a named network namespace.
type NS struct{ Name string }

// Path is the file the namespace is mounted on.
func (n NS) Path() string { return filepath.Join(dir, n.Name) }

// Create makes the namespace. It fails when the name is taken.
func (n NS) Create() error {
	if err := share(); err != nil {
		return err
	}
	f, err := os.OpenFile(n.Path(), os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", n.Name, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("namespace %s: %w", n.Name, err)
	}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace (root is needed): %w", err)
		}
		self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		return unix.Mount(self, n.Path(), "", unix.MS_BIND, "")
	})
	if err != nil {
		return errors.Join(fmt.Errorf("namespace %s: %w", n.Name, err), os.Remove(n.Path()))
	}
	return nil
}

// Delete removes the name. The namespace itself ends with its last process.
// Deleting a namespace that is not there succeeds.
func (n NS) Delete() error {
	if err := unix.Unmount(n.Path(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount namespace %s: %w", n.Name, err)
	}
	err := os.Remove(n.Path())
	if errors.Is(err, unix.EBUSY) {
		err = n.uncover()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", n.Name, err)
	}
	return nil
}

// uncover removes a name that is mounted below a folder that was mounted over it later, as
// `ip netns add` does with a folder that is no mount yet. In a mount namespace in which
// nothing is mounted on the file it can be removed, and that takes the mounts of all others
// along (mount_namespaces(7)).
func (n NS) uncover() error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("new mount namespace (root is needed): %w", err)
		}
		if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		for _, path := range []string{n.Path(), dir} {
			for unix.Unmount(path, unix.MNT_DETACH) == nil {
			}
		}
		for unix.Unmount(n.Path(), unix.MNT_DETACH) == nil {
		}
		return os.Remove(n.Path())
	})
}

// Inode returns the number by which /proc/PID/ns/net shows the namespace, or 0
// when there is no such namespace.
func (n NS) Inode() (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(n.Path(), &fs); errors.Is(err, unix.ENOENT) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("namespace %s: %w", n.Name, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return 0, nil // the file is there, but nothing is mounted on it
	}
	var st unix.Stat_t
	if err := unix.Stat(n.Path(), &st); err != nil {
		return 0, fmt.Errorf("namespace %s: %w", n.Name, err)
	}
	return st.Ino, nil
}

// Do runs fn on a thread of its own inside the namespace. Processes that fn
// starts and sockets that it opens belong to the namespace.
func (n NS) Do(fn func() error) error {
	return onThread(func() error {
		if err := n.Join(); err != nil {
			return err
		}
		return fn()
	})
}

// Join moves the calling thread into the namespace; the caller must have locked
// itself to it and must never unlock it.
func (n NS) Join() error {
	fd, err := unix.Open(n.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("namespace %s (is the lab up?): %w", n.Name, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", n.Name, err)
	}
	return nil
}

// DialContext connects from inside the namespace. The address must be numeric:
// then the socket is made on the calling thread.
func (n NS) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := n.Do(func() error {
		var err error
		d := net.Dialer{FallbackDelay: -1}
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Private runs fn inside a new network namespace without a name, which ends with
// the last process that fn started.
func Private(fn func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace (root is needed): %w", err)
		}
		return fn()
	})
}

// onThread runs fn on an OS thread that ends with it, so that what fn did to the
// thread's namespaces can leak nowhere.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime then ends the thread
		done <- fn()
	}()
	return <-done
}
