package attach_test

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// initiator is the iSCSI initiator of a node.
type initiator struct {
	h    *host
	step func(string)
}

// lun is a path to the unit, which fails once the storage server admits another one.
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

func (i initiator) origin(devno string) transport.Origin {
	e, _ := i.h.w.admission(i.h.name)
	return transport.Origin{
		Paths: []string{"/dev/" + devno}, DevNos: []string{devno}, Products: []string{volume.UnitProduct(e.Generation)},
		SizeBytes: i.h.w.unit.Size(), LogicalBlock: 512, WWID: "wwid-1",
	}
}

// Connect implements transport.Transport.
func (i initiator) Connect(_ context.Context, t transport.Target, _ *transport.Credentials) (transport.Origin, error) {
	i.step("before login to " + t.IQN)
	i.h.mu.Lock()
	defer func() {
		i.h.mu.Unlock()
		i.step("after login to " + t.IQN)
	}()
	if devno, found := i.h.sessions[t.IQN]; found {
		return i.origin(devno), nil
	}
	w := i.h.w
	e, admitted := w.admission(i.h.name)
	if !admitted {
		return transport.Origin{}, fmt.Errorf("%w: %s", transport.ErrNoTarget, t.IQN)
	}
	i.h.luns++
	devno := fmt.Sprintf("8:%d", i.h.luns)
	i.h.machine.Add(devno, "/dev/"+devno, lun{w.unit, w, i.h.name, e})
	i.h.sessions[t.IQN] = devno
	return i.origin(devno), nil
}

// Disconnect implements transport.Transport.
func (i initiator) Disconnect(_ context.Context, t transport.Target) error {
	i.step("before logout of " + t.IQN)
	i.h.mu.Lock()
	if devno, found := i.h.sessions[t.IQN]; found {
		if i.h.machine.Openers(devno) > 0 {
			i.h.w.t.Errorf("logout of %s, which is open", t.IQN)
		}
		i.h.machine.Remove(devno)
		delete(i.h.sessions, t.IQN)
	}
	i.h.mu.Unlock()
	i.step("after logout of " + t.IQN)
	return nil
}

// Lookup implements transport.Transport.
func (i initiator) Lookup(_ context.Context, t transport.Target) (transport.Origin, bool, error) {
	i.step("look at session")
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	devno, found := i.h.sessions[t.IQN]
	return i.origin(devno), found, nil
}

// Rescan implements transport.Transport.
func (i initiator) Rescan(context.Context, transport.Target) error { return nil }

// Marks implements transport.Transport: no request ever fails unseen.
func (i initiator) Marks(_ context.Context, t transport.Target) (transport.Marks, error) {
	i.h.mu.Lock()
	defer i.h.mu.Unlock()
	devno, found := i.h.sessions[t.IQN]
	if !found {
		return nil, nil
	}
	return transport.Marks{t.Portals[0]: {Path: devno}}, nil
}

// filesystems are what a node mounts. A filesystem is a word at its head; a pod writes
// behind it, and its writes are on the device when they are acknowledged.
type filesystems struct {
	h    *host
	step func(string)
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
func (f filesystems) Probe(_ context.Context, device string) (volume.Content, error) {
	f.step("look at " + device)
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
func (f filesystems) Format(_ context.Context, device, _ string) error {
	f.step("before mkfs " + device)
	d, err := f.h.machine.Device(device)
	if err == nil {
		_, err = d.WriteAt([]byte(magic), 0)
	}
	if err == nil {
		err = d.Flush()
	}
	f.step("after mkfs " + device)
	return err
}

// Mount implements attach.Filesystem.
func (f filesystems) Mount(_ context.Context, device, target, _ string, _ []string) error {
	f.step("before mount " + target)
	defer f.step("after mount " + target)
	head, err := f.head(device)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(head, []byte(magic)) {
		return fmt.Errorf("mount %s: %w", device, unix.EINVAL)
	}
	return f.mount(device, target)
}

func (f filesystems) mount(device, target string) error {
	_, closed, err := f.h.machine.Open(device)
	if err != nil {
		return err
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.mounts[target] = mount{devno: devnoOf(device), device: device, close: closed}
	return nil
}

func devnoOf(device string) string {
	var minor int
	if _, err := fmt.Sscanf(device, "/dev/dm-%d", &minor); err != nil {
		return ""
	}
	return blockdevtest.DMNo(minor)
}

// BindMount implements attach.Filesystem.
func (f filesystems) BindMount(_ context.Context, source, target string, _ []string) error {
	f.step("before bind " + target)
	defer f.step("after bind " + target)
	f.h.mu.Lock()
	m := f.h.mounts[source]
	f.h.mu.Unlock()
	return f.mount(m.device, target)
}

// BindBlock implements attach.Filesystem.
func (f filesystems) BindBlock(_ context.Context, device, target string, _ []string) error {
	f.step("before bind " + target)
	defer f.step("after bind " + target)
	return f.mount(device, target)
}

// Unmount implements attach.Filesystem.
func (f filesystems) Unmount(_ context.Context, target string) error {
	f.step("before umount " + target)
	f.h.mu.Lock()
	if m, found := f.h.mounts[target]; found {
		m.close()
		delete(f.h.mounts, target)
	}
	f.h.mu.Unlock()
	f.step("after umount " + target)
	return nil
}

// Source implements attach.Filesystem.
func (f filesystems) Source(_ context.Context, target string) (string, bool, error) {
	f.step("look at mount " + target)
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	m, found := f.h.mounts[target]
	return m.devno, found, nil
}

// Grow implements attach.Filesystem.
func (filesystems) Grow(context.Context, string, string) error { return nil }

// Stats implements attach.Filesystem.
func (filesystems) Stats(context.Context, string) (volume.Stats, error) { return volume.Stats{}, nil }
