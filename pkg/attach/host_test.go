package attach_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// initiator is the iSCSI initiator of a node.
type initiator struct {
	h    *host
	step blockdevtest.Step
}

// lun is a path to the LUN, which fails once the storage server admits another one.
type lun struct {
	*blockdevtest.Disk
	w     *world
	node  string
	given backend.Export
}

func (l lun) admitted() error {
	if e, admitted := l.w.admission(l.node); !admitted || e.Admission != l.given.Admission {
		return unix.EIO
	}
	return nil
}

func (l lun) ReadAt(p []byte, off int64) (int, error) {
	if err := l.admitted(); err != nil {
		return 0, err
	}
	return l.Disk.ReadAt(p, off)
}

func (l lun) WriteAt(p []byte, off int64) (int, error) {
	if err := l.admitted(); err != nil {
		return 0, err
	}
	return l.Disk.WriteAt(p, off)
}

func (l lun) Flush() error { return l.admitted() }

// session is one with a target; origin says what is at its end.
type session struct {
	devno  string
	origin func() transport.Origin
}

func (i initiator) lun(devno string) func() transport.Origin {
	return func() transport.Origin {
		e, _ := i.h.w.admission(i.h.name)
		return transport.Origin{
			Paths: []string{"/dev/" + devno}, DevNos: []string{devno}, Products: []string{volume.LUNProduct(e.Generation)},
			SizeBytes: i.h.w.lun.Size(), LogicalBlock: 512, WWID: "wwid-1",
		}
	}
}

// Connect implements transport.Transport.
func (i initiator) Connect(ctx context.Context, t transport.Target, _ *volume.Credentials) (o transport.Origin, err error) {
	i.h.awaitMap()
	err = i.step.Change(ctx, "login to "+t.IQN, func() error {
		o, err = i.login(t)
		return err
	})
	return o, err
}

// awaitMap has a stage be over when what the test is about has happened to the map of its stream:
// it is asked for, or here.
func (h *host) awaitMap() {
	if h.listed != nil {
		select {
		case <-h.listed:
		case <-time.After(callHangs / 2):
			h.w.t.Error("nobody has got the other node's map")
		}
	}
	if h.silent == nil {
		return
	}
	if e := h.entry(); e == nil || e.Hydration == nil {
		return // nobody asks
	}
	select {
	case <-h.silent:
	case <-time.After(time.Second): // a stage that was killed may leave this to another one
	}
}

func (i initiator) login(t transport.Target) (transport.Origin, error) {
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	if s, found := i.h.sessions[t.IQN]; found {
		return s.origin(), nil
	}
	devno := fmt.Sprintf("8:%d", i.h.luns+1)
	var at blockdevtest.Device
	s := session{devno: devno, origin: i.lun(devno)}
	if l := i.h.w.exported(t.IQN, i.h.name); l != nil {
		at, s.origin = l, func() transport.Origin {
			return transport.Origin{Paths: []string{"/dev/" + devno}, DevNos: []string{devno}, SizeBytes: l.Size(), LogicalBlock: 512}
		}
	} else if e, admitted := i.h.w.admission(i.h.name); admitted && !strings.HasPrefix(t.IQN, exportedPrefix) {
		at = lun{i.h.w.lun, i.h.w, i.h.name, e}
	} else {
		return transport.Origin{}, fmt.Errorf("%w: %s", transport.ErrNoTarget, t.IQN)
	}
	i.h.luns++
	i.h.machine.Add(devno, "/dev/"+devno, at)
	i.h.sessions[t.IQN] = s
	return s.origin(), nil
}

// Disconnect implements transport.Transport.
func (i initiator) Disconnect(ctx context.Context, t transport.Target) error {
	return i.step.Change(ctx, "logout of "+t.IQN, func() error {
		i.h.mu.Lock()
		defer i.h.mu.Unlock()
		s, found := i.h.sessions[t.IQN]
		if !found {
			return nil
		}
		if i.h.machine.Openers(s.devno) > 0 {
			i.h.w.t.Errorf("logout of %s, which is open", t.IQN)
		}
		i.h.machine.Remove(s.devno)
		delete(i.h.sessions, t.IQN)
		return nil
	})
}

// Lookup implements transport.Transport.
func (i initiator) Lookup(ctx context.Context, t transport.Target) (transport.Origin, bool, error) {
	if err := i.step.Query(ctx, "session"); err != nil {
		return transport.Origin{}, false, err
	}
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	s, found := i.h.sessions[t.IQN]
	if !found {
		return transport.Origin{}, false, nil
	}
	return s.origin(), true, nil
}

// Rescan implements transport.Transport.
func (i initiator) Rescan(context.Context, transport.Target, *volume.Credentials) error { return nil }

// Marks implements transport.Transport: no request ever fails unseen.
func (i initiator) Marks(_ context.Context, t transport.Target) (transport.Marks, error) {
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	s, found := i.h.sessions[t.IQN]
	if !found {
		return nil, nil
	}
	return transport.Marks{t.Portals[0]: {Path: s.devno}}, nil
}

// filesystems are what a node mounts. A filesystem is a word at its head; a pod writes
// behind it, and its writes are on the device when they are acknowledged.
type filesystems struct {
	h    *host
	step blockdevtest.Step
}

const magic = "filesystem"

func (f filesystems) head(device string) ([]byte, error) {
	d, err := f.h.machine.Device(device)
	if err != nil {
		return nil, err
	}
	head := make([]byte, 4096)
	_, err = d.ReadAt(head, 0)
	return head, err
}

// Probe implements attach.Filesystem.
func (f filesystems) Probe(ctx context.Context, device string) (volume.Content, error) {
	if err := f.step.Query(ctx, device); err != nil {
		return volume.Content{}, err
	}
	head, err := f.head(device)
	switch {
	case err != nil:
		return volume.Content{}, err
	case bytes.HasPrefix(head, []byte(magic)):
		return volume.Content{Type: "ext4"}, nil
	}
	return volume.Content{Blank: bytes.Count(head, []byte{0}) == len(head)}, nil
}

// Format implements attach.Filesystem.
func (f filesystems) Format(ctx context.Context, device, _ string) error {
	return f.step.Change(ctx, "mkfs "+device, func() error {
		d, err := f.h.machine.Device(device)
		if err != nil {
			return err
		}
		if _, err := d.WriteAt([]byte(magic), 0); err != nil {
			return err
		}
		return d.Flush()
	})
}

// Mount implements attach.Filesystem.
func (f filesystems) Mount(ctx context.Context, device, target, _ string, _ []string) error {
	return f.step.Change(ctx, "mount "+target, func() error {
		head, err := f.head(device)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(head, []byte(magic)) {
			return fmt.Errorf("mount %s: %w", device, unix.EINVAL)
		}
		return f.mount(device, target)
	})
}

func (f filesystems) mount(device, target string) error {
	_, closed, err := f.h.machine.Open(device)
	if err != nil {
		return err
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.mounts[target] = mount{device: device, close: closed}
	return nil
}

// BindMount implements attach.Filesystem.
func (f filesystems) BindMount(ctx context.Context, source, target string, options []string) error {
	f.h.mu.Lock()
	m := f.h.mounts[source]
	f.h.mu.Unlock()
	return f.BindBlock(ctx, m.device, target, options)
}

// BindBlock implements attach.Filesystem.
func (f filesystems) BindBlock(ctx context.Context, device, target string, _ []string) error {
	return f.step.Change(ctx, "bind "+target, func() error { return f.mount(device, target) })
}

// Unmount implements attach.Filesystem. There are no paths.
func (f filesystems) Unmount(ctx context.Context, target string) error { return f.Release(ctx, target) }

// Release implements attach.Filesystem.
func (f filesystems) Release(ctx context.Context, target string) error {
	return f.step.Change(ctx, "umount "+target, func() error {
		f.h.mu.Lock()
		defer f.h.mu.Unlock()
		if m, found := f.h.mounts[target]; found {
			m.close()
			delete(f.h.mounts, target)
		}
		return nil
	})
}

// Source implements attach.Filesystem.
func (f filesystems) Source(ctx context.Context, target string) (string, bool, error) {
	if err := f.step.Query(ctx, "mount "+target); err != nil {
		return "", false, err
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	m, found := f.h.mounts[target]
	return f.h.machine.DevNo(m.device), found, nil
}

// Grow implements attach.Filesystem.
func (filesystems) Grow(context.Context, string, string) error { return nil }

// Stats implements attach.Filesystem.
func (filesystems) Stats(context.Context, string) (volume.Stats, error) { return volume.Stats{}, nil }

// tempDir is in memory where the system has such a folder: a journal on a disk takes most
// of a life's time.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "attach")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
