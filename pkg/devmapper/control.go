package devmapper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlDevice takes the ioctls of the device mapper.
const controlDevice = "/dev/mapper/control"

// Offsets in struct dm_ioctl (include/uapi/linux/dm-ioctl.h), which begins every
// buffer.
const (
	dmVersion   = 0
	dmDataSize  = 12
	dmDataStart = 16
	dmTargets   = 20
	dmOpenCount = 24
	dmFlags     = 28
	dmDev       = 40
	dmName      = 48
	dmNameLen   = 128
	dmUUID      = 176
	dmUUIDLen   = 129
	dmHeader    = 312

	flagReadOnly   = 1 << 0
	flagSuspended  = 1 << 1
	flagLive       = 1 << 5
	flagInactive   = 1 << 6
	flagBufferFull = 1 << 8
	flagNoFlush    = 1 << 11
	flagDataOut    = 1 << 16

	// messageBytes holds a header and any answer about one region; the kernel
	// allocates as much for each call.
	messageBytes = 4 << 10
	listBytes    = 64 << 10
	maxBytes     = 16 << 20
)

// control speaks to the kernel without a process between. Only what cannot wait
// for a disk is asked for in this way: a thread that waits in the kernel for a
// device that does not answer could not be ended, nor could the plugin.
type control struct {
	file *os.File
	buf  []byte
}

func openControl() (kernelControl, error) {
	f, err := os.OpenFile(controlDevice, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("device mapper: %w", err)
	}
	return &control{file: f, buf: make([]byte, messageBytes)}, nil
}

func (c *control) close() { _ = c.file.Close() } // nothing was written

// names implements messenger.
func (c *control) names() ([]string, error) {
	for size := listBytes; size <= maxBytes; size *= 4 {
		buf := make([]byte, size)
		header(buf, "")
		if err := c.ioctl(unix.DM_LIST_DEVICES, buf); err != nil {
			return nil, fmt.Errorf("list device-mapper devices: %w", err)
		}
		if binary.NativeEndian.Uint32(buf[dmFlags:])&flagBufferFull == 0 {
			return parseNames(buf)
		}
	}
	return nil, fmt.Errorf("%w: the list of devices is longer than %d bytes", ErrParse, maxBytes)
}

// info implements messenger.
func (c *control) info(name string) (Info, error) {
	if err := c.ask(unix.DM_DEV_STATUS, name, 0); err != nil {
		return Info{}, fmt.Errorf("state of %s: %w", name, err)
	}
	return parseDevice(c.buf)
}

// status implements messenger.
func (c *control) status(name string) (string, error) {
	if err := c.ask(unix.DM_TABLE_STATUS, name, flagNoFlush); err != nil {
		return "", fmt.Errorf("status of %s: %w", name, err)
	}
	return parseStatus(c.buf)
}

// table returns the live table of a device, a line for each target.
func (c *control) table(name string) (string, error) {
	if err := c.ask(unix.DM_TABLE_STATUS, name, flagNoFlush|flagStatusTable); err != nil {
		return "", fmt.Errorf("table of %s: %w", name, err)
	}
	return parseStatus(c.buf)
}

// ask makes a request that is a header alone; the answer is in c.buf.
func (c *control) ask(request uintptr, name string, flags uint32) error {
	if len(name) >= dmNameLen {
		return fmt.Errorf("%w: name of %d bytes", ErrInvalid, len(name))
	}
	header(c.buf, name)
	binary.NativeEndian.PutUint32(c.buf[dmFlags:], flags)
	return c.ioctl(request, c.buf)
}

// message implements messenger.
func (c *control) message(name, text string) (string, error) {
	buf := c.buf
	if err := putMessage(buf, name, text); err != nil {
		return "", err
	}
	if err := c.ioctl(unix.DM_TARGET_MSG, buf); err != nil {
		return "", fmt.Errorf("message %s: %w", name, err)
	}
	return parseAnswer(buf)
}

func (c *control) ioctl(request uintptr, buf []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, c.file.Fd(), request, uintptr(unsafe.Pointer(&buf[0])))
	runtime.KeepAlive(buf)
	switch errno {
	case 0:
		return nil
	case unix.ENXIO:
		return fmt.Errorf("%w: %w", ErrNotExist, errno)
	case unix.EBUSY:
		return fmt.Errorf("%w: %w", ErrBusy, errno)
	case unix.EINVAL, unix.ENOENT:
		return fmt.Errorf("%w: %w", ErrInvalid, errno)
	}
	return errno
}

// header makes buf a request for a device.
func header(buf []byte, name string) {
	clear(buf[:dmHeader])
	ne := binary.NativeEndian
	ne.PutUint32(buf[dmVersion:], 4) // 4.0.0: no feature is needed that came later
	ne.PutUint32(buf[dmDataSize:], uint32(len(buf)))
	ne.PutUint32(buf[dmDataStart:], dmHeader)
	copy(buf[dmName:dmName+dmNameLen-1], name)
}

// putMessage adds a struct dm_target_msg: the sector, which messages that begin
// with @ do not heed, and the words.
func putMessage(buf []byte, name, text string) error {
	if len(name) >= dmNameLen || dmHeader+8+len(text)+1 > len(buf) {
		return fmt.Errorf("%w: name or message is too long", ErrInvalid)
	}
	header(buf, name)
	clear(buf[dmHeader : dmHeader+8])
	n := copy(buf[dmHeader+8:], text)
	buf[dmHeader+8+n] = 0
	return nil
}

// data returns what follows the header in an answer.
func data(buf []byte) ([]byte, error) {
	if len(buf) < dmHeader {
		return nil, fmt.Errorf("%w: answer of %d bytes", ErrParse, len(buf))
	}
	ne := binary.NativeEndian
	start, size := ne.Uint32(buf[dmDataStart:]), ne.Uint32(buf[dmDataSize:])
	if start < dmHeader || start > size || uint64(size) > uint64(len(buf)) {
		return nil, fmt.Errorf("%w: answer from %d to %d of %d bytes", ErrParse, start, size, len(buf))
	}
	return buf[start:size], nil
}

// parseAnswer returns the text that a message was answered with, "" if none: then the
// kernel gives the size of its own header, which is less than where data would begin.
func parseAnswer(buf []byte) (string, error) {
	if len(buf) < dmHeader {
		return "", fmt.Errorf("%w: answer of %d bytes", ErrParse, len(buf))
	}
	flags := binary.NativeEndian.Uint32(buf[dmFlags:])
	if flags&(flagBufferFull|flagDataOut) == 0 {
		return "", nil
	}
	d, err := data(buf)
	if err != nil {
		return "", err
	}
	if flags&flagBufferFull != 0 {
		return "", fmt.Errorf("%w: the answer is longer than %d bytes", ErrParse, len(d))
	}
	text, _, found := bytes.Cut(d, []byte{0})
	if !found {
		return "", fmt.Errorf("%w: the answer has no end", ErrParse)
	}
	return string(text), nil
}

// parseStatus reads the chain of struct dm_target_spec, each with its status behind it,
// into the lines that dmsetup prints:
//
//	u64 start; u64 length; s32 status; u32 next one, from the first; char type[16]; char text[]
func parseStatus(buf []byte) (string, error) {
	ne := binary.NativeEndian
	if len(buf) >= dmHeader && ne.Uint32(buf[dmTargets:]) == 0 {
		return "", nil // no live table
	}
	d, err := data(buf)
	if err != nil {
		return "", err
	}
	if ne.Uint32(buf[dmFlags:])&flagBufferFull != 0 {
		return "", fmt.Errorf("%w: the status is longer than %d bytes", ErrParse, len(d))
	}
	const typeAt, textAt = 24, 40
	var lines strings.Builder
	at := uint64(0)
	for range ne.Uint32(buf[dmTargets:]) {
		if at+textAt > uint64(len(d)) {
			return "", fmt.Errorf("%w: the status is cut off", ErrParse)
		}
		spec := d[at:]
		kind, _, _ := bytes.Cut(spec[typeAt:textAt], []byte{0})
		text, _, found := bytes.Cut(spec[textAt:], []byte{0})
		if !found {
			return "", fmt.Errorf("%w: a target's status has no end", ErrParse)
		}
		fmt.Fprintf(&lines, "%d %d %s %s\n", ne.Uint64(spec), ne.Uint64(spec[8:]), kind, text)
		next := uint64(ne.Uint32(spec[20:]))
		if next <= at {
			return "", fmt.Errorf("%w: the status points back to byte %d", ErrParse, next)
		}
		at = next
	}
	return lines.String(), nil
}

// parseDevice reads the header of an answer about a device.
func parseDevice(buf []byte) (Info, error) {
	if len(buf) < dmHeader {
		return Info{}, fmt.Errorf("%w: answer of %d bytes", ErrParse, len(buf))
	}
	text := func(from, length int) string {
		t, _, _ := bytes.Cut(buf[from:from+length], []byte{0})
		return string(t)
	}
	ne := binary.NativeEndian
	flags, dev := ne.Uint32(buf[dmFlags:]), ne.Uint64(buf[dmDev:])
	return Info{
		Name: text(dmName, dmNameLen), UUID: text(dmUUID, dmUUIDLen),
		Major: int(unix.Major(dev)), Minor: int(unix.Minor(dev)), OpenCount: int(int32(ne.Uint32(buf[dmOpenCount:]))),
		Suspended: flags&flagSuspended != 0, ReadOnly: flags&flagReadOnly != 0,
		HasLive: flags&flagLive != 0, HasInactive: flags&flagInactive != 0,
	}, nil
}

// parseNames reads the chain of struct dm_name_list:
//
//	u64 dev; u32 offset of the next one, 0 in the last; char name[]
func parseNames(buf []byte) ([]string, error) {
	d, err := data(buf)
	if err != nil {
		return nil, err
	}
	const fixed = 12
	var names []string
	if len(d) == 0 {
		return nil, nil // a machine without any device
	}
	for {
		if len(d) < fixed {
			return nil, fmt.Errorf("%w: the list of devices is cut off", ErrParse)
		}
		dev, next := binary.NativeEndian.Uint64(d), binary.NativeEndian.Uint32(d[8:])
		if dev == 0 && len(names) == 0 {
			return nil, nil // an empty list has one empty entry
		}
		name, _, found := bytes.Cut(d[fixed:], []byte{0})
		if !found {
			return nil, fmt.Errorf("%w: a device's name has no end", ErrParse)
		}
		names = append(names, string(name))
		switch {
		case next == 0:
			return names, nil
		case next < fixed || uint64(next) > uint64(len(d)):
			return nil, fmt.Errorf("%w: the list of devices points %d bytes ahead", ErrParse, next)
		}
		d = d[next:]
	}
}
