package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/scsidisk"
)

// krbd is the kernel's client, by its files (Documentation/ABI/testing/sysfs-bus-rbd).
type krbd struct {
	// sys is /sys, dev /dev.
	sys, dev string
}

// mapping is an image that this kernel has mapped.
type mapping struct {
	// ID is the kernel's number of it: the N of /dev/rbdN.
	ID int
	// Image is POOL/IMAGE.
	Image string
	// Client is the address by which the OSDs know it, as the blocklist has it.
	Client string
}

// mapRequest says what is to be mapped and who asks.
type mapRequest struct {
	image, monitors, user, key string
}

// attach maps an image. Nothing is read or written without its lock (lock_on_read), and
// there is one client for each mapping (noshare). I/O waits for a cluster that does not
// answer, for ever: what fails is for the fence to say.
func (k krbd) attach(r mapRequest) error {
	pool, image, _ := strings.Cut(r.image, "/")
	secret, err := base64.StdEncoding.DecodeString(r.key)
	if err != nil {
		return errors.New("the key of the secret is not in base64")
	}
	// A key ring of this thread, which ends with it: the key is in no command and no file,
	// and nobody else's thread sees it.
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- k.attachHere(r, pool, image, secret)
	}()
	return <-done
}

func (k krbd) attachHere(r mapRequest, pool, image string, secret []byte) error {
	name := "lab-" + r.user
	if _, err := unix.AddKey("ceph", name, secret, unix.KEY_SPEC_THREAD_KEYRING); err != nil {
		return fmt.Errorf("key ring: %w", err)
	}
	options := fmt.Sprintf("name=%s,key=%s,ms_mode=prefer-crc,noshare,lock_on_read", r.user, name)
	if err := k.write("add_single_major", strings.Join([]string{r.monitors, options, pool, image, "-"}, " ")); err != nil {
		return fmt.Errorf("map %s: %w", r.image, err)
	}
	return nil
}

// lock has the client take the exclusive lock, by a read. It waits for a client that has
// the lock and is gone, half a minute, and breaks the lock then.
func (k krbd) lock(m mapping) error {
	const size = 4096
	buffer, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	if err != nil {
		return fmt.Errorf("memory for a read: %w", err)
	}
	defer func() { _ = unix.Munmap(buffer) }()
	f, err := os.OpenFile(k.device(m), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return fmt.Errorf("lock of %s: %w", m.Image, err)
	}
	_, err = f.ReadAt(buffer, 0)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("lock of %s: %w", m.Image, err)
	}
	return nil
}

// disk makes a mapping a disk of SCSI, unless it is one, and returns the path of that.
func (k krbd) disk(ctx context.Context, m mapping) (string, error) {
	name, err := scsi(m).Add(ctx)
	return filepath.Join(k.dev, name), err
}

// scsi describes a mapping as a disk of SCSI, whose serial number is the image's name.
func scsi(m mapping) scsidisk.Disk {
	return scsidisk.Disk{Device: fmt.Sprintf("rbd%d", m.ID), Serial: filepath.Base(m.Image)}
}

// detach unmaps; the error is EBUSY while somebody has the device open, or the disk of SCSI
// that it is.
func (k krbd) detach(m mapping) error {
	err := scsi(m).Remove()
	if errors.Is(err, scsidisk.ErrInUse) {
		err = errors.Join(err, unix.EBUSY)
	}
	if err != nil {
		return fmt.Errorf("unmap %s: %w", m.Image, err)
	}
	if err := k.write("remove_single_major", strconv.Itoa(m.ID)); err != nil {
		return fmt.Errorf("unmap /dev/rbd%d of %s: %w", m.ID, m.Image, err)
	}
	return nil
}

// refresh has the kernel look at an image's size.
func (k krbd) refresh(m mapping) error {
	if err := k.write(filepath.Join("devices", strconv.Itoa(m.ID), "refresh"), "1"); err != nil {
		return fmt.Errorf("refresh /dev/rbd%d: %w", m.ID, err)
	}
	return nil
}

func (k krbd) write(file, text string) error {
	f, err := os.OpenFile(filepath.Join(k.sys, "bus/rbd", file), os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("this kernel has no rbd, or the module is not loaded: %w", err)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// find returns the mapping of an image, if there is one.
func (k krbd) find(image string) (m mapping, found bool, err error) {
	dir := filepath.Join(k.sys, "bus/rbd/devices")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return mapping{}, false, fmt.Errorf("mapped images: %w", err)
	}
	for _, e := range entries {
		m, err := readMapping(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // unmapped meanwhile
		}
		if err != nil {
			return mapping{}, false, err
		}
		if m.Image == image {
			return m, true, nil
		}
	}
	return mapping{}, false, nil
}

func readMapping(dir string) (mapping, error) {
	id, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		return mapping{}, fmt.Errorf("mapped image %s: %w", dir, err)
	}
	m := mapping{ID: id}
	words := map[string]string{}
	for _, name := range []string{"pool", "name", "client_addr"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return mapping{}, err
		}
		words[name] = strings.TrimSpace(string(b))
	}
	m.Image, m.Client = words["pool"]+"/"+words["name"], words["client_addr"]
	return m, nil
}

// device is the path of a mapping's device node.
func (k krbd) device(m mapping) string { return filepath.Join(k.dev, fmt.Sprintf("rbd%d", m.ID)) }

// size is that of the device, in bytes.
func (k krbd) size(m mapping) (int64, error) {
	b, err := os.ReadFile(filepath.Join(k.sys, "block", fmt.Sprintf("rbd%d", m.ID), "size"))
	if err != nil {
		return 0, fmt.Errorf("size: %w", err)
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return sectors * 512, err
}

// The search for a size that the kernel has been told of.
const sizePoll = 100 * time.Millisecond

// awaitSize waits until the device has a size at least.
func (k krbd) awaitSize(ctx context.Context, m mapping, want int64) (int64, error) {
	for {
		have, err := k.size(m)
		if err != nil || have >= want {
			return have, err
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("/dev/rbd%d has %d bytes, want %d: %w", m.ID, have, want, ctx.Err())
		case <-time.After(sizePoll):
		}
	}
}
