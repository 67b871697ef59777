package ioerrors

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/tracefs"
)

// Errors; test with errors.Is.
var (
	// ErrUnavailable: this kernel cannot count, or does not let us: no tracefs or no event of
	// that kind, or it is locked down (kernel_lockdown(7), confidentiality).
	ErrUnavailable = errors.New("the kernel cannot count failed requests")
	// ErrNotCounting: nobody has started it since the machine has, or somebody has ended it.
	ErrNotCounting = errors.New("failed requests are not counted")
	// ErrNotBioBased: the device is none of the device mapper, or takes requests and not
	// bios, whose errors are not seen.
	ErrNotBioBased = errors.New("not a bio-based device of the device mapper")
	// errParse: the kernel has said something that this version does not understand.
	errParse = tracefs.ErrFormat
)

const (
	// prefix begins the names of our instances; the rest is random, so that a name tells one
	// count from another that began later.
	prefix = "nearflash-"
	event  = "events/block/block_bio_complete"
	// lockPoll is how often the lock is tried that another process has.
	lockPoll = 20 * time.Millisecond
)

// Counter reads and starts the counts of this kernel. It keeps nothing itself: another one,
// also of another process, goes on where this one was. It is safe for concurrent use.
type Counter struct {
	tracefs, sysfs string
	kernel         kernel
	// noHistogram takes the other way where there are two.
	noHistogram bool
}

// kernel is what is asked of tracefs beyond reading files.
type kernel struct {
	mount       func(dir string) error
	mkdir, drop func(dir string) error
	write       func(file, text string) error
}

// New returns a Counter. tracing is where the kernel has its mount point for it,
// /sys/kernel/tracing; it is mounted there, in this mount namespace, if it is not. sysfs is
// /sys.
func New(tracing, sysfs string) *Counter {
	return &Counter{tracefs: tracing, sysfs: sysfs, kernel: kernel{
		mount: tracefs.Mount, mkdir: tracefs.Make, drop: tracefs.Drop, write: tracefs.Write,
	}}
}

// Start has the kernel count for a device, given as "major:minor", if it does not yet. It
// changes no count that goes on. The device has a table by now. Errors: ErrUnavailable,
// ErrNotBioBased.
func (c *Counter) Start(ctx context.Context, devno string) error {
	if err := c.bioBased(devno); err != nil {
		return err
	}
	unlock, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := c.names()
	if err != nil {
		return err
	}
	going := false
	for _, name := range names {
		dir := c.dir(name)
		if !going {
			_, err := c.way(dir).read(dir)
			if going = err == nil; going {
				continue
			}
			if !errors.Is(err, ErrNotCounting) && !errors.Is(err, errParse) {
				return err
			}
		}
		// Begun and not finished, or changed by somebody: how much it has missed, nobody knows.
		if err := c.kernel.drop(dir); err != nil {
			return fmt.Errorf("remove a count that does not go on: %w", err)
		}
	}
	if going {
		return nil
	}
	return c.begin()
}

// begin makes an instance that counts.
func (c *Counter) begin() error {
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		return fmt.Errorf("name of a count: %w", err)
	}
	dir := c.dir(prefix + hex.EncodeToString(random))
	if err := c.kernel.mkdir(dir); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	err := tracefs.Knows(filepath.Join(dir, event), "field:dev_t dev;", "field:int error;")
	if err == nil {
		err = c.setUp(dir, c.way(dir))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, err), c.kernel.drop(dir))
	}
	return nil
}

// setUp writes what a way needs, and reads whether it counts then.
func (c *Counter) setUp(dir string, w way) error {
	for _, s := range w.settings() {
		path := filepath.Join(dir, s.file)
		if _, err := os.Stat(path); s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := c.kernel.write(path, s.text); err != nil {
			return fmt.Errorf("%s: %w", s.file, err)
		}
	}
	_, err := w.read(dir)
	return err
}

// Count returns how many bios a device, given as "major:minor", has failed since an unknown
// moment. It never becomes less as long as id is the same; another id is another count, of
// which nothing follows for the first. It may count too much, never too little.
// Errors: ErrNotCounting, ErrUnavailable; after any error nothing is known.
func (c *Counter) Count(ctx context.Context, devno string) (n uint64, id string, err error) {
	dev, err := tracefs.Number(devno)
	if err != nil {
		return 0, "", err
	}
	unlock, err := c.open(ctx)
	if err != nil {
		return 0, "", err
	}
	defer unlock()
	names, err := c.names()
	if err != nil {
		return 0, "", err
	}
	err = ErrNotCounting
	for _, name := range names {
		dir := c.dir(name)
		r, readErr := c.way(dir).read(dir)
		if readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		return r.failed[dev] + r.lost, name + " " + devno, nil
	}
	return 0, "", err
}

// Stop ends all counts: a tracepoint that nobody looks at costs nothing. It is for a node
// that has no volume any more; of what is counted later, Count has another id.
func (c *Counter) Stop(ctx context.Context) error {
	unlock, err := c.open(ctx)
	if errors.Is(err, ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	names, err := c.names()
	for _, name := range names {
		err = errors.Join(err, c.kernel.drop(c.dir(name)))
	}
	return err
}

// open makes tracefs visible and keeps other processes from changing our instances.
func (c *Counter) open(ctx context.Context) (unlock func(), err error) {
	if err := c.kernel.mount(c.tracefs); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	f, err := os.Open(filepath.Join(c.tracefs, tracefs.Instances))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), ctx.Err()), f.Close())
		case <-time.After(lockPoll):
		}
	}
}

// names lists our instances.
func (c *Counter) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.tracefs, tracefs.Instances))
	if err != nil {
		return nil, fmt.Errorf("instances of tracefs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (c *Counter) dir(name string) string { return filepath.Join(c.tracefs, tracefs.Instances, name) }

// bioBased checks that a device ends bios: one that takes requests has queues for them in
// sysfs (block/blk-mq-sysfs.c).
func (c *Counter) bioBased(devno string) error {
	if _, err := tracefs.Number(devno); err != nil {
		return err
	}
	dir := filepath.Join(c.sysfs, "dev/block", devno)
	if _, err := os.Stat(filepath.Join(dir, "dm")); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNotBioBased, devno, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "mq")); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s has queues of requests (%w)", ErrNotBioBased, devno, err)
	}
	return nil
}
