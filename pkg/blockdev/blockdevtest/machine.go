// Package blockdevtest is the block layer of a machine in memory: disks that keep bytes,
// and the devices that drivers make above them, found by number and path as on a real
// one. It serves the fakes of the device mapper and of LVM, which share its devices.
//
// Nothing here takes time, and a disk keeps each write at once: it has no cache of its own
// that a power loss could empty.
package blockdevtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// dmMajor is the major number of the device mapper's devices, logical volumes included.
const dmMajor = 253

// Device is one block device. Offsets and lengths are in bytes.
type Device interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	// Flush returns when everything that was written is on stable storage.
	Flush() error
	Discard(off, n int64) error
}

// Machine has devices. The zero value is not ready; see New.
type Machine struct {
	mu    sync.Mutex
	nodes map[string]*node
	paths map[string]string
	minor int
}

type node struct {
	device  Device
	openers int
	// drops says that flushes end at the device.
	drops bool
}

// New returns a machine without devices.
func New() *Machine {
	return &Machine{nodes: map[string]*node{}, paths: map[string]string{}}
}

// Add makes a device appear under a number "major:minor" and a path.
func (m *Machine) Add(devno, path string, d Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes[devno], m.paths[path] = &node{device: d}, devno
}

// AddDM makes a device of the device mapper appear, with a minor number that no other one
// has had.
func (m *Machine) AddDM(d Device) (major, minor int) {
	m.mu.Lock()
	m.minor++
	minor = m.minor
	m.mu.Unlock()
	m.Add(DMNo(minor), DMPath(minor), d)
	return dmMajor, minor
}

// DMNo and DMPath are how a device of the device mapper is found.
func DMNo(minor int) string   { return fmt.Sprintf("%d:%d", dmMajor, minor) }
func DMPath(minor int) string { return fmt.Sprintf("/dev/dm-%d", minor) }

// Remove makes a device disappear, also one that is open: whoever decides that it may go
// asks Openers first.
func (m *Machine) Remove(devno string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, devno)
	for path, no := range m.paths {
		if no == devno {
			delete(m.paths, path)
		}
	}
}

// DevNo is the number "major:minor" of a path, "" if there is no such device.
func (m *Machine) DevNo(path string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paths[path]
}

// Device returns the device of a number or a path. Errors: ENXIO, ENOENT.
func (m *Machine) Device(name string) (Device, error) {
	n, err := m.find(name)
	if err != nil {
		return nil, err
	}
	return n.device, nil
}

func (m *Machine) find(name string) (*node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if no, ok := m.paths[name]; ok {
		name = no
	}
	n, ok := m.nodes[name]
	switch {
	case ok:
		return n, nil
	case strings.HasPrefix(name, "/"):
		return nil, &os.PathError{Op: "open", Path: name, Err: unix.ENOENT}
	}
	return nil, fmt.Errorf("device %s: %w", name, unix.ENXIO)
}

// Open counts an opener of a device until close is called. Errors: those of Device.
func (m *Machine) Open(name string) (d Device, closed func(), err error) {
	n, err := m.find(name)
	if err != nil {
		return nil, nil, err
	}
	m.count(n, 1)
	return n.device, func() { m.count(n, -1) }, nil
}

func (m *Machine) count(n *node, by int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n.openers += by
}

// Openers is how many have a device open; 0 of one that is not there.
func (m *Machine) Openers(name string) int {
	n, err := m.find(name)
	if err != nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.openers
}

// Blocks is what a process of this machine does to block devices.
type Blocks struct {
	m    *Machine
	step Step
	mu   sync.Mutex
	// open is nil once the process has ended.
	open map[*file]bool
}

// Blocks begins a process.
func (m *Machine) Blocks(step Step) *Blocks {
	return &Blocks{m: m, step: step, open: map[*file]bool{}}
}

// Exit closes what the process has open, as the end of a process does. It opens nothing any more:
// a part of it that comes to its next step only then would hold the device for good.
func (b *Blocks) Exit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for f := range b.open {
		f.closed()
	}
	b.open = nil
}

// Open is blockdev.Open.
func (b *Blocks) Open(path string, flags int) (blockdev.File, error) {
	return b.opened(path, flags)
}

func (b *Blocks) opened(path string, flags int) (*file, error) {
	d, closed, err := b.m.Open(path)
	if err != nil {
		return nil, err
	}
	f := &file{Device: d, b: b, path: path, flags: flags, closed: closed}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		closed()
		return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrProcessDone}
	}
	b.open[f] = true
	return f, nil
}

type file struct {
	Device
	b      *Blocks
	path   string
	flags  int
	closed func()
}

func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	if f.flags&unix.O_ACCMODE == unix.O_RDONLY {
		return 0, &os.PathError{Op: "write", Path: f.path, Err: unix.EBADF}
	}
	err = f.b.step.Change(context.Background(), "write to "+f.path, func() error {
		n, err = f.Device.WriteAt(p, off)
		return err
	})
	return n, err
}

func (f *file) Sync() error { return f.Flush() }

func (f *file) Close() error {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	if f.b.open[f] {
		delete(f.b.open, f)
		f.closed()
	}
	return nil
}

// ZeroHead is blockdev.ZeroHead.
func (b *Blocks) ZeroHead(ctx context.Context, path string, n int64) error {
	return b.with(path, func(d Device) error {
		return b.step.Change(ctx, "zero head of "+path, func() error { return zero(d, 0, min(n, d.Size())) })
	})
}

// Discard is blockdev.Discard.
func (b *Blocks) Discard(ctx context.Context, path string, ranges [][2]uint64) error {
	if len(ranges) == 0 {
		return nil
	}
	return b.with(path, func(d Device) error {
		return b.step.Change(ctx, "discard "+path, func() error {
			for _, r := range ranges {
				if err := d.Discard(int64(r[0]), int64(r[1])); err != nil {
					return fmt.Errorf("discard %s: %w", path, err)
				}
			}
			return nil
		})
	})
}

func (b *Blocks) with(path string, do func(Device) error) error {
	f, err := b.opened(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return do(f.Device)
}

// SetFlushes is blockdev.SetFlushes. Nothing here has a cache that a flush would empty: who drops
// flushes is all that is kept, until the device has another table (PassFlushes).
func (b *Blocks) SetFlushes(devno string, pass bool) error {
	return b.step.Change(context.Background(), fmt.Sprintf("pass flushes of %s: %t", devno, pass), func() error {
		n, err := b.m.find(devno)
		if err == nil {
			b.m.drop(n, !pass)
		}
		return err
	})
}

// PassesFlushes is blockdev.PassesFlushes.
func (b *Blocks) PassesFlushes(devno string) (bool, error) { return b.m.PassesFlushes(devno) }

// PassesFlushes reports whether nobody has a device drop flushes.
func (m *Machine) PassesFlushes(devno string) (bool, error) {
	n, err := m.find(devno)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return !n.drops, nil
}

// PassFlushes is what a new table does.
func (m *Machine) PassFlushes(devno string) {
	if n, err := m.find(devno); err == nil {
		m.drop(n, false)
	}
}

func (m *Machine) drop(n *node, drops bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n.drops = drops
}

// RefuseDiscards is blockdev.RefuseDiscards. Nobody here discards through a device.
func (b *Blocks) RefuseDiscards(devno string) error {
	return b.step.Change(context.Background(), "refuse discards of "+devno, func() error {
		_, err := b.m.find(devno)
		return err
	})
}
