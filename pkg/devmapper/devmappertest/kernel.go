// Package devmappertest is a device mapper in memory, with the targets linear, error, zero,
// cache, clone, integrity and multipath. Its cache keeps blocks, dirty bits and a superblock on its metadata device as
// dm-cache does, and loses after a power loss what dm-cache would: mappings that were not
// committed, and the knowledge which of the others are clean.
//
// The conformance suite of this package holds it to the real one.
package devmappertest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// Kernel is the device mapper of one machine until its power is lost.
type Kernel struct {
	machine *blockdevtest.Machine
	mu      sync.Mutex
	// changed tells whoever waits for a path that something is different.
	changed *sync.Cond
	devices map[string]*device
	// metadata are those of caches, by the device that they are on: tables that are loaded
	// at the same time share them (dm-cache-metadata.c, lookup_or_open).
	metadata map[blockdevtest.Device]*metadata
	regions  uint64
	// failSwap is the device whose next swap fails.
	failSwap string
}

// New returns the device mapper of a machine, without devices.
func New(m *blockdevtest.Machine) *Kernel {
	k := &Kernel{machine: m, devices: map[string]*device{}, metadata: map[blockdevtest.Device]*metadata{}}
	k.changed = sync.NewCond(&k.mu)
	return k
}

// PowerLoss makes all devices vanish, with what the kernel had not written.
func (k *Kernel) PowerLoss() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.devices {
		for _, t := range []*table{d.live, d.inactive} {
			if t != nil {
				t.close()
			}
		}
		k.machine.Remove(blockdevtest.DMNo(d.minor))
	}
	clear(k.devices)
	clear(k.metadata)
}

// device is one device. Its exported methods are its I/O, and take the kernel's lock.
type device struct {
	k              *Kernel
	name, uuid     string
	major, minor   int
	readOnly       bool
	live, inactive *table
	// suspended is true after a swap that has failed: the new table is there, and what comes
	// waits (dm_swap_table and dm_resume in drivers/md/dm.c).
	suspended bool
	// region is that of its statistics, 0 without; tracked is what was written to, and reads
	// how often its areas were read.
	region  uint64
	tracked *tracked
	reads   *devmapper.Reads
}

type tracked struct {
	tag     string
	written devmapper.Written
}

// table is a table with its devices open.
type table struct {
	lines    devmapper.Table
	targets  []target
	deps     []string
	closers  []func()
	readOnly bool
}

func (t *table) close() {
	for _, c := range t.closers {
		c()
	}
}

// target is the I/O of one line, with offsets from its start. It is called with the
// kernel's lock held.
type target interface {
	read(p []byte, off int64) error
	write(p []byte, off int64) error
	flush() error
	discard(off, n int64) error
}

func (d *device) Size() int64 {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	return d.size()
}

func (d *device) size() int64 {
	if d.live == nil {
		return 0
	}
	return int64(d.live.lines.Sectors()) * devmapper.SectorSize
}

func (d *device) ReadAt(p []byte, off int64) (int, error) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	n := int(max(min(int64(len(p)), d.size()-off), 0))
	if err := d.read(p[:n], off); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (d *device) WriteAt(p []byte, off int64) (int, error) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	if err := d.write(p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (d *device) Flush() error {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	return d.flush()
}

func (d *device) Discard(off, n int64) error {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	return d.discard(off, n)
}

func (d *device) discard(off, n int64) error {
	return d.each(off, n, func(t target, _, at, n int64) error { return t.discard(at, n) })
}

func (d *device) read(p []byte, off int64) error {
	if r := d.reads; r != nil {
		area := int64(r.AreaSectors) * devmapper.SectorSize
		for at := off / area; at*area < off+int64(len(p)) && at < int64(len(r.Counts)); at++ {
			r.Counts[at]++
		}
		r.ReadSectors += uint64(len(p)) / devmapper.SectorSize
	}
	return d.each(off, int64(len(p)), func(t target, in, at, n int64) error { return t.read(p[in:in+n], at) })
}

func (d *device) write(p []byte, off int64) error {
	if d.readOnly {
		return fmt.Errorf("write to %s: %w", d.name, unix.EPERM)
	}
	if w := d.tracked; w != nil {
		area := int64(w.written.AreaSectors) * devmapper.SectorSize
		for at := off / area; at*area < off+int64(len(p)); at++ {
			w.written.Areas[at] = true
		}
	}
	if r := d.reads; r != nil {
		r.Writes++
		r.WriteSectors += uint64(len(p)) / devmapper.SectorSize
	}
	return d.each(off, int64(len(p)), func(t target, in, at, n int64) error { return t.write(p[in:in+n], at) })
}

func (d *device) flush() error {
	if d.live == nil {
		return fmt.Errorf("flush of %s: %w", d.name, unix.EIO)
	}
	for _, t := range d.live.targets {
		if err := t.flush(); err != nil {
			return err
		}
	}
	return nil
}

// each hands parts of a range to the targets that they belong to: in is where the part
// begins in the range, at where it begins in the target.
func (d *device) each(off, n int64, do func(t target, in, at, n int64) error) error {
	for d.suspended {
		d.k.changed.Wait()
	}
	if off < 0 || off+n > d.size() {
		return fmt.Errorf("%d bytes at %d of %s, which has %d: %w", n, off, d.name, d.size(), unix.EIO)
	}
	for i, l := range d.lines() {
		start, end := int64(l.Start)*devmapper.SectorSize, int64(l.Start+l.Length)*devmapper.SectorSize
		from, to := max(off, start), min(off+n, end)
		if from >= to {
			continue
		}
		if err := do(d.live.targets[i], from-off, from-start, to-from); err != nil {
			return err
		}
	}
	return nil
}

// only is the target if the live table has one, nil otherwise.
func (d *device) only() target { return d.live.only() }

func (t *table) only() target {
	if t == nil || len(t.targets) != 1 {
		return nil
	}
	return t.targets[0]
}

// cache is the target if the live table is one cache, nil otherwise.
func (d *device) cache() *cache {
	c, _ := d.only().(*cache)
	return c
}

// stateful is a target with metadata of its own.
type stateful interface {
	resume() error
	suspend() error
}

func (d *device) lines() devmapper.Table {
	if d.live == nil {
		return nil
	}
	return d.live.lines
}

// lower is a device below a target. Those of the same device mapper are used without its
// lock, which is held.
type lower struct{ blockdevtest.Device }

func (l lower) read(p []byte, off int64) error {
	if d, ok := l.Device.(*device); ok {
		return d.read(p, off)
	}
	_, err := l.ReadAt(p, off)
	return err
}

func (l lower) write(p []byte, off int64) error {
	if d, ok := l.Device.(*device); ok {
		return d.write(p, off)
	}
	_, err := l.WriteAt(p, off)
	return err
}

func (l lower) flush() error {
	if d, ok := l.Device.(*device); ok {
		return d.flush()
	}
	return l.Flush()
}

func (l lower) discard(off, n int64) error {
	if d, ok := l.Device.(*device); ok {
		return d.discard(off, n)
	}
	return l.Discard(off, n)
}

func (l lower) size() int64 {
	if d, ok := l.Device.(*device); ok {
		return d.size()
	}
	return l.Size()
}

// open makes a table of lines. On error nothing stays open.
func (k *Kernel) open(lines devmapper.Table, readOnly bool) (*table, error) {
	if len(lines) == 0 {
		return nil, fmt.Errorf("%w: an empty table", devmapper.ErrInvalid)
	}
	// What the kernel prints of it is what others see.
	printed, err := devmapper.ParseTable(lines.String())
	if err != nil {
		return nil, err
	}
	t := &table{lines: printed, readOnly: readOnly}
	for _, l := range printed {
		made, err := k.target(t, l)
		if err != nil {
			t.close()
			return nil, fmt.Errorf("line %q: %w", l, err)
		}
		t.targets = append(t.targets, made)
	}
	return t, nil
}

func (k *Kernel) target(t *table, l devmapper.Line) (target, error) {
	switch v := l.Target.(type) {
	case devmapper.LinearTarget:
		d, err := k.take(t, v.Device, v.Offset+l.Length)
		return linear{lower: d, start: int64(v.Offset) * devmapper.SectorSize}, err
	case devmapper.ErrorTarget:
		return failing{}, nil
	case devmapper.ZeroTarget:
		return zeroes{}, nil
	case devmapper.CacheTarget:
		return k.cache(t, l, v)
	case devmapper.CloneTarget:
		return k.clone(t, l, v)
	case devmapper.MultipathTarget:
		return k.multipath(t, l, v)
	case devmapper.IntegrityTarget:
		return k.integrity(t, l, v)
	}
	return nil, fmt.Errorf("%w: %w: target %s", devmapper.ErrUnsupported, devmapper.ErrInvalid, l.Target.Type())
}

// take opens a device for a table, which must have so many sectors.
func (k *Kernel) take(t *table, devno string, sectors uint64) (lower, error) {
	d, closed, err := k.machine.Open(devno)
	if err != nil {
		return lower{}, err
	}
	t.closers = append(t.closers, closed)
	if !slices.Contains(t.deps, devno) {
		t.deps = append(t.deps, devno)
	}
	if l := (lower{d}); l.size() >= int64(sectors)*devmapper.SectorSize {
		return l, nil
	}
	return lower{}, fmt.Errorf("%w: device %s is too small for %d sectors", devmapper.ErrInvalid, devno, sectors)
}

func (k *Kernel) get(name string) (*device, error) {
	d, ok := k.devices[name]
	if !ok {
		return nil, fmt.Errorf("%w: %s", devmapper.ErrNotExist, name)
	}
	return d, nil
}

func (k *Kernel) create(name, uuid string, lines devmapper.Table, readOnly bool) (devmapper.Info, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.devices {
		if d.name == name || uuid != "" && d.uuid == uuid {
			return devmapper.Info{}, fmt.Errorf("%w: %s, UUID %s", devmapper.ErrExist, name, uuid)
		}
	}
	t, err := k.open(lines, readOnly)
	if err != nil {
		return devmapper.Info{}, err
	}
	d := &device{k: k, name: name, uuid: uuid, readOnly: readOnly, inactive: t}
	if err := d.swap(); err != nil {
		t.close()
		return devmapper.Info{}, err
	}
	d.major, d.minor = k.machine.AddDM(d)
	k.devices[name] = d
	return d.info(), nil
}

func (k *Kernel) load(name string, lines devmapper.Table, readOnly bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, err := k.get(name)
	if err != nil {
		return err
	}
	t, err := k.open(lines, readOnly)
	if err != nil {
		return err
	}
	if d.inactive != nil {
		d.inactive.close()
	}
	d.inactive = t
	return nil
}

func (k *Kernel) resume(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, err := k.get(name)
	if err != nil {
		return err
	}
	if d.inactive != nil {
		k.machine.PassFlushes(blockdevtest.DMNo(d.minor))
	}
	return d.swap()
}

func (k *Kernel) clear(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, err := k.get(name)
	if err == nil && d.inactive != nil {
		d.inactive.close()
		d.inactive = nil
	}
	return err
}

func (k *Kernel) remove(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, ok := k.devices[name]
	if !ok {
		return nil
	}
	if k.machine.Openers(blockdevtest.DMNo(d.minor)) > 0 {
		return fmt.Errorf("%w: %s", devmapper.ErrBusy, name)
	}
	if c, ok := d.only().(stateful); ok {
		// What cannot be written is lost with the device: the kernel says it in its log.
		_ = c.suspend()
	}
	for _, t := range []*table{d.live, d.inactive} {
		if t != nil {
			t.close()
		}
	}
	k.machine.Remove(blockdevtest.DMNo(d.minor))
	delete(k.devices, name)
	return nil
}

func (k *Kernel) rename(name, to string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	d, err := k.get(name)
	if err != nil {
		return err
	}
	if _, taken := k.devices[to]; taken {
		return fmt.Errorf("%w: %s", devmapper.ErrExist, to)
	}
	delete(k.devices, name)
	d.name, k.devices[to] = to, d
	return nil
}

func (d *device) info() devmapper.Info {
	return devmapper.Info{
		Name: d.name, UUID: d.uuid, Major: d.major, Minor: d.minor,
		OpenCount: d.k.machine.Openers(blockdevtest.DMNo(d.minor)),
		Suspended: d.suspended, ReadOnly: d.readOnly, HasLive: d.live != nil, HasInactive: d.inactive != nil,
	}
}

func (k *Kernel) infos(prefix string) map[string]devmapper.Info {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]devmapper.Info{}
	for name, d := range k.devices {
		if strings.HasPrefix(name, prefix) {
			out[name] = d.info()
		}
	}
	return out
}

// Client is the device mapper as one process of the machine sees it.
func (k *Kernel) Client(step blockdevtest.Step) devmapper.Client { return &client{k: k, step: step} }

type client struct {
	k    *Kernel
	step blockdevtest.Step
}
