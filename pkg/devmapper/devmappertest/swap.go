package devmappertest

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// FailSwap has the next swap of a device's tables fail after the new one is in place.
func (k *Kernel) FailSwap(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failSwap = name
}

// below reports whether something is so of a device that this one is on.
func (d *device) below(is func(*device) bool) bool {
	for _, other := range d.k.devices {
		if slices.Contains(d.live.deps, blockdevtest.DMNo(other.minor)) && (is(other) || other.live != nil && other.below(is)) {
			return true
		}
	}
	return false
}

// swap makes the inactive table live, if there is one.
func (d *device) swap() error {
	if d.inactive == nil {
		return nil
	}
	before := d.live
	if d.live != nil && !d.suspended && d.below(func(d *device) bool { return d.suspended }) {
		return fmt.Errorf("suspend %s: what is below it holds I/O back: %w", d.name, unix.EBUSY)
	}
	if c, ok := d.only().(stateful); ok && !d.suspended {
		if err := c.suspend(); err != nil {
			return err
		}
	}
	if c, ok := d.inactive.only().(stateful); ok {
		if err := c.resume(); err != nil {
			return fmt.Errorf("%w: resume %s: %w", devmapper.ErrInvalid, d.name, err)
		}
	}
	d.live, d.inactive, d.readOnly = d.inactive, nil, d.inactive.readOnly
	if before != nil {
		before.close()
	}
	d.suspended = d.k.failSwap == d.name && before != nil
	if d.suspended {
		d.k.failSwap = ""
		return fmt.Errorf("resume %s: %w", d.name, unix.EIO)
	}
	d.k.changed.Broadcast()
	return nil
}
