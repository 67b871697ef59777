package devmapper

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// bigTable is from how many lines on a table goes to the kernel without dmsetup: libdm
// refuses requests of more than 64 MiB, which is less than what a cache of a million
// blocks needs when each of them is somewhere else on its origin. The kernel itself takes
// 1,048,576 targets (DM_MAX_TARGETS, drivers/md/dm-ioctl.c).
const bigTable = 100_000

// Layout of struct dm_target_spec (include/uapi/linux/dm-ioctl.h), behind which the
// target's arguments follow, ended by a zero, up to a multiple of eight bytes:
//
//	u64 start; u64 length; s32 status; u32 offset of the next one from this; char type[16]
const (
	specLength = 8
	specNext   = 20
	specType   = 24
	specBytes  = 40
	specAlign  = 8
)

// kernelControl is the kernel without a process between.
type kernelControl interface {
	messenger
	// load puts a table into a device's inactive slot. Errors: ErrNotExist; ErrBusy;
	// ErrInvalid.
	load(name string, t Table, readOnly bool) error
	// deps returns the devices that a device's live table rests on, as "major:minor".
	// Errors: ErrNotExist.
	deps(name string) ([]string, error)
}

// tableRequest is a request for DM_TABLE_LOAD. Errors: ErrInvalid.
func tableRequest(name string, t Table, flags uint32) ([]byte, error) {
	if len(name) >= dmNameLen {
		return nil, fmt.Errorf("%w: name of %d bytes", ErrInvalid, len(name))
	}
	buf := make([]byte, dmHeader, dmHeader+len(t)*(specBytes+4*specAlign))
	ne := binary.NativeEndian
	var spec [specBytes]byte
	for _, l := range t {
		kind, params := l.Target.Type(), l.Target.Params()
		if len(kind) >= specBytes-specType {
			return nil, fmt.Errorf("%w: target type %q", ErrInvalid, kind)
		}
		whole := (specBytes + len(params) + specAlign) / specAlign * specAlign
		clear(spec[:])
		ne.PutUint64(spec[:], l.Start)
		ne.PutUint64(spec[specLength:], l.Length)
		ne.PutUint32(spec[specNext:], uint32(whole))
		copy(spec[specType:], kind)
		at := len(buf)
		buf = append(append(buf, spec[:]...), params...)
		buf = append(buf, make([]byte, at+whole-len(buf))...)
	}
	header(buf, name) // with the size that the request has come to
	ne.PutUint32(buf[dmTargets:], uint32(len(t)))
	ne.PutUint32(buf[dmFlags:], flags)
	return buf, nil
}

// load implements kernelControl.
func (c *control) load(name string, t Table, readOnly bool) error {
	flags := uint32(0)
	if readOnly {
		flags = flagReadOnly
	}
	buf, err := tableRequest(name, t, flags)
	if err != nil {
		return err
	}
	if err := c.ioctl(unix.DM_TABLE_LOAD, buf); err != nil {
		return fmt.Errorf("load a table of %d lines into %s: %w", len(t), name, err)
	}
	return nil
}

// deps implements kernelControl.
func (c *control) deps(name string) ([]string, error) {
	if err := c.ask(unix.DM_TABLE_DEPS, name, 0); err != nil {
		return nil, fmt.Errorf("devices below %s: %w", name, err)
	}
	return parseDeps(c.buf)
}

// parseDeps reads a struct dm_target_deps:
//
//	u32 count; u32 padding; u64 dev[count]
func parseDeps(buf []byte) ([]string, error) {
	if len(buf) >= dmHeader && binary.NativeEndian.Uint32(buf[dmFlags:])&flagBufferFull != 0 {
		return nil, fmt.Errorf("%w: more devices than fit into %d bytes", ErrParse, len(buf))
	}
	d, err := data(buf)
	if err != nil {
		return nil, err
	}
	const fixed, each = 8, 8
	if len(d) == 0 {
		return nil, nil // no live table
	}
	if len(d) < fixed {
		return nil, fmt.Errorf("%w: the list of devices is cut off", ErrParse)
	}
	n := uint64(binary.NativeEndian.Uint32(d))
	if fixed+n*each > uint64(len(d)) {
		return nil, fmt.Errorf("%w: %d devices in %d bytes", ErrParse, n, len(d))
	}
	var out []string
	for i := range n {
		dev := binary.NativeEndian.Uint64(d[fixed+i*each:])
		out = append(out, fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)))
	}
	return out, nil
}
