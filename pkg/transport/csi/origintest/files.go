package origintest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Files are Devices that need no kernel: a device node is a regular file that says which one
// it is, and there is a sysfs. It is safe for concurrent use.
type Files struct {
	// Root has the folders dev and sys.
	Root string
	// Links has devices published as symbolic links, and not as nodes.
	Links bool
	// Leave has targets stay when they are unpublished.
	Leave bool
	// Attributes are further ones of each disk, by their paths in its folder of sysfs.
	Attributes map[string]string

	mu    sync.Mutex
	disks map[string]*fileDisk
	last  int // number of the last device
}

type fileDisk struct {
	size int64
	// name is "" while it is not attached.
	name, devno string
	open        bool
}

const nodePrefix = "block "

// Stat is what csi.Stat is on a kernel.
func (f *Files) Stat(path string) (devno string, block bool, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return "", false, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", false, err
	}
	devno, block = strings.CutPrefix(strings.TrimSpace(string(b)), nodePrefix)
	return devno, block, nil
}

func (f *Files) disk(handle string) (*fileDisk, error) {
	d := f.disks[handle]
	if d == nil {
		return nil, fmt.Errorf("no disk of %s", handle)
	}
	return d, nil
}

// Create implements Devices.
func (f *Files) Create(handle string, size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.disks == nil {
		f.disks = map[string]*fileDisk{}
	}
	if f.disks[handle] == nil {
		f.disks[handle] = &fileDisk{size: size}
	}
	return nil
}

// Delete implements Devices.
func (f *Files) Delete(handle string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.disks[handle]; d != nil && d.name != "" {
		return fmt.Errorf("disk of %s is attached", handle)
	}
	delete(f.disks, handle)
	return nil
}

// Resize implements Devices.
func (f *Files) Resize(handle string, size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.disk(handle)
	if err != nil {
		return err
	}
	d.size = size
	return nil
}

// Attach implements Devices.
func (f *Files) Attach(handle string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.disk(handle)
	if err != nil || d.name != "" {
		return err
	}
	f.last++
	d.name, d.devno = fmt.Sprintf("fake%d", f.last), fmt.Sprintf("240:%d", f.last)
	return f.show(d)
}

// show writes what the kernel has of an attached disk.
func (f *Files) show(d *fileDisk) error {
	dir := filepath.Join(f.Root, "sys/devices", d.name)
	files := map[string]string{
		filepath.Join(f.Root, "dev", d.name):           nodePrefix + d.devno,
		filepath.Join(dir, "uevent"):                   "MAJOR=240\nDEVNAME=" + d.name + "\nDEVTYPE=disk",
		filepath.Join(dir, "size"):                     fmt.Sprint(d.size / 512),
		filepath.Join(dir, "diskseq"):                  fmt.Sprint(f.last),
		filepath.Join(dir, "queue/logical_block_size"): "512",
	}
	for name, value := range f.Attributes {
		files[filepath.Join(dir, name)] = value
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			return err
		}
	}
	link := filepath.Join(f.Root, "sys/dev/block", d.devno)
	if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
		return err
	}
	if err := os.Symlink(dir, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Detach implements Devices.
func (f *Files) Detach(handle string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.disks[handle]
	if d == nil || d.name == "" {
		return nil
	}
	err := errors.Join(
		os.RemoveAll(filepath.Join(f.Root, "sys/dev/block", d.devno)),
		os.RemoveAll(filepath.Join(f.Root, "sys/devices", d.name)),
		os.RemoveAll(filepath.Join(f.Root, "dev", d.name)),
	)
	d.name, d.devno = "", ""
	return err
}

// Refresh implements Devices.
func (f *Files) Refresh(handle string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.disk(handle)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.Root, "sys/devices", d.name, "size"), []byte(fmt.Sprint(d.size/512)), 0o600)
}

// Publish implements Devices.
func (f *Files) Publish(handle, target string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.disk(handle)
	if err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f.Links {
		return os.Symlink(filepath.Join(f.Root, "dev", d.name), target)
	}
	return os.WriteFile(target, []byte(nodePrefix+d.devno), 0o600)
}

// Unpublish implements Devices.
func (f *Files) Unpublish(target string) error {
	if f.Leave {
		return nil
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Open implements Devices.
func (f *Files) Open(handle string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.disks[handle]
	return d != nil && d.open, nil
}

// SetOpen says whether somebody uses the device.
func (f *Files) SetOpen(handle string, open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.disks[handle]; d != nil {
		d.open = open
	}
}
