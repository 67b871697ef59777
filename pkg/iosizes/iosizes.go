// Package iosizes has the kernel count how long the reads are that block devices are given.
//
// Statistics of the device mapper see less: of a read that spans several chunks of a cache they see the parts,
// none longer than a chunk (dm_io_acct in drivers/md/dm.c). But the kernel has a tracepoint for each bio that
// a device is given (block_bio_queue in block/blk-core.c). It fires once for a bio, with the length that this has
// then, and not again for what is left of it when a part was taken (BIO_TRACE_COMPLETION). Where the kernel has
// histograms (CONFIG_HIST_TRIGGERS), it counts those events by device and length. Since they are those of all
// devices of the host, it does so for a while only: that is a sample.
//
// The instance of tracefs is our own, and bounded in its memory. It stays between samples, and counts
// nothing then: to make one costs more than to keep it.
package iosizes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/tracefs"
)

// ErrUnavailable: this kernel cannot count, or does not let us: no tracefs, no event of that kind or no
// histograms, or it is locked down (kernel_lockdown(7), confidentiality).
var ErrUnavailable = errors.New("the kernel cannot count reads by size")

// errRoom: there are too many devices.
var errRoom = errors.New("the kernel had no room for all sizes of reads")

const (
	// instance is the name of ours.
	instance = "nearflash_sizes"
	event    = "events/block/block_bio_queue"
	// room is for how many pairs of a device and a length there is room.
	room = 8192
	// condition are reads, read ahead or not.
	condition = `rwbs ~ "R*"`
	keys      = "hist:keys=dev,nr_sector.log2"
	// Exponents bounds lengths: no bio has 2^32 sectors (bi_size in include/linux/blk_types.h).
	Exponents = 32
)

var (
	histInfo = regexp.MustCompile(`^` + regexp.QuoteMeta(keys) + `:vals=hitcount:sort=hitcount:size=\d+ if ` + regexp.QuoteMeta(condition) + ` \[active\]$`)
	histKey  = regexp.MustCompile(`^dev: +(\d+), nr_sector: ~ 2\^(\d+)$`)
)

// Counts are reads of one device. That at k is of those of at most 2^k sectors of 512 bytes, and more
// than half of that.
type Counts [Exponents]uint64

// Sampler makes samples. It is not safe for concurrent use; two of them, also of two processes, may
// spoil each other's samples, which is an error of one.
type Sampler struct {
	// Wait takes the time of a sample; tests have another one.
	Wait func(ctx context.Context, d time.Duration) error

	tracing, dir string
	kernel       kernel
}

// kernel is what is asked of tracefs beyond reading files.
type kernel struct {
	mount       func() error
	mkdir, drop func(dir string) error
	write       func(file, text string) error
}

// New returns a Sampler. tracing is where the kernel has its mount point for tracefs, /sys/kernel/tracing; it
// is mounted there, in this mount namespace, if it is not.
func New(tracing string) *Sampler {
	return &Sampler{Wait: passes.Pause, tracing: tracing, dir: filepath.Join(tracing, tracefs.Instances, instance), kernel: kernel{
		mount: func() error { return tracefs.Mount(tracing) },
		mkdir: tracefs.Make, drop: tracefs.Drop, write: tracefs.Write,
	}}
}

// Sample counts the reads of all devices for so long, and returns them by "major:minor". It counts no
// longer than that, unless the process is killed: then until the next sample of whichever process, or Stop.
// Errors: ErrUnavailable, that of ctx, that there was no room for all, and those of a sample that somebody has spoiled.
func (s *Sampler) Sample(ctx context.Context, d time.Duration) (map[string]Counts, error) {
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := s.kernel.write(s.file("trigger"), trigger); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	err := s.Wait(ctx, d)
	text, readErr := os.ReadFile(s.file("hist"))
	if err := errors.Join(err, readErr, s.kernel.write(s.file("trigger"), "!"+trigger)); err != nil {
		return nil, fmt.Errorf("sample of the sizes of reads: %w", err)
	}
	return parse(string(text))
}

var trigger = fmt.Sprintf("%s:size=%d if %s", keys, room, condition)

func (s *Sampler) file(name string) string { return filepath.Join(s.dir, event, name) }

// prepare leaves an instance that counts nothing.
func (s *Sampler) prepare() error {
	if err := s.kernel.mount(); err != nil {
		return err
	}
	if err := s.knowsEvent(); err != nil {
		return err
	}
	text, err := os.ReadFile(s.file("hist"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A trigger is of a process that was killed, or another one's. A new instance has none.
	if err != nil || strings.Contains(string(text), "# trigger info:") {
		if err := s.kernel.drop(s.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.kernel.mkdir(s.dir); err != nil {
			return err
		}
	}
	// Nothing is ever written to its ring buffer, which has 1.4 MiB for each processor to begin with.
	if err := s.kernel.write(filepath.Join(s.dir, "buffer_size_kb"), "4"); err != nil {
		return errors.Join(err, s.kernel.drop(s.dir))
	}
	return nil
}

// knowsEvent checks that there are histograms, of an event that has the fields that a filter and a key name.
// The host's own tracing shows that, without an instance.
func (s *Sampler) knowsEvent() error {
	dir := filepath.Join(s.tracing, event)
	if _, err := os.Stat(filepath.Join(dir, "hist")); err != nil {
		return err
	}
	return tracefs.Knows(dir, "field:dev_t dev;", "field:unsigned int nr_sector;", "field:char rwbs[")
}

// Stop ends it in the kernel: for a node that has no volume any more.
func (s *Sampler) Stop() error {
	if s.kernel.mount() != nil {
		return nil // no tracefs, and nothing of ours in it
	}
	if err := s.kernel.drop(s.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end what counts sizes of reads: %w", err)
	}
	return nil
}

// parse reads a histogram. If the kernel had no room for some reads, those of a length that came late are
// missing, and what is there says nothing of the rest.
func parse(text string) (map[string]Counts, error) {
	h, err := tracefs.ParseHistogram(text, histInfo)
	if err != nil {
		return nil, err
	}
	if h.Dropped > 0 {
		return nil, fmt.Errorf("%w: %d reads of more than %d pairs of a device and a size", errRoom, h.Dropped, room)
	}
	out := map[string]Counts{}
	for _, e := range h.Entries {
		m := histKey.FindStringSubmatch(e.Key)
		if m == nil {
			return nil, fmt.Errorf("%w: %q", tracefs.ErrFormat, e.Key)
		}
		dev, err := strconv.ParseUint(m[1], 10, 32)
		k, err2 := strconv.ParseUint(m[2], 10, 8)
		if err := errors.Join(err, err2); err != nil || k >= Exponents {
			return nil, fmt.Errorf("%w: %q", tracefs.ErrFormat, e.Key)
		}
		major, minor := tracefs.Devno(uint32(dev))
		devno := fmt.Sprintf("%d:%d", major, minor)
		c := out[devno]
		c[k] += min(e.N, math.MaxUint64-c[k])
		out[devno] = c
	}
	return out, nil
}
