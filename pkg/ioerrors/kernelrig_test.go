//go:build kernel

// Tests on a real kernel: device mapper and scsi_debug. They need root and two disks
// (package guest) of at least 256 MiB whose content they DESTROY. Run them in a throwaway
// machine.
package ioerrors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/e2e/kernel/guest"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
)

const (
	mib        = 1 << 20
	mibSectors = mib / devmapper.SectorSize
	// sizes in MiB of the parts of a volume; all of them are on two disks.
	metaSize, dataSize, originSize = 4, 16, 32
	realTracefs                    = "/sys/kernel/tracing"
)

func TestMain(m *testing.M) { os.Exit(guest.Main(m)) }

// rig makes devices.
type rig struct {
	t   *testing.T
	run hostexec.Runner
	dm  devmapper.Client
	// used is how many MiB of each disk have a volume.
	used map[string]uint64
}

func newRig(t *testing.T) *rig {
	t.Helper()
	for _, disk := range []string{guest.Disk("b"), guest.Disk("d")} {
		if _, err := os.Stat(disk); err != nil || os.Geteuid() != 0 {
			t.Fatalf("run as root in a throwaway guest that has %s (its content is destroyed): %v", disk, err)
		}
	}
	run := hostexec.New()
	return &rig{t: t, run: run, dm: devmapper.New(run), used: map[string]uint64{}}
}

func (r *rig) must(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) command(name string, args ...string) {
	r.t.Helper()
	_, err := r.run.Run(context.Background(), hostexec.Command(name, args...))
	r.must(name, err)
}

func (r *rig) device(name string, sectors uint64, target devmapper.Target) devmapper.Info {
	r.t.Helper()
	info, err := r.dm.Create(r.t.Context(), name, "", devmapper.Table{{Length: sectors, Target: target}})
	r.must("create "+name, err)
	r.t.Cleanup(func() {
		if err := r.dm.Remove(context.Background(), name); err != nil {
			r.t.Error(err)
		}
	})
	return info
}

// slice is a part of a disk that no other one has.
func (r *rig) slice(name, disk string, mibs uint64) devmapper.Info {
	r.t.Helper()
	devno, err := blockdev.DevNo(disk)
	r.must("disk", err)
	info := r.device(name, mibs*mibSectors, devmapper.LinearTarget{Device: devno, Offset: r.used[disk] * mibSectors})
	r.used[disk] += mibs
	return info
}

// vol is a writethrough cache over nf-NAME.origin over a device of another driver.
type vol struct {
	*rig

	name                 string
	lower, origin, cache devmapper.Info
	// file is the cache, past the page cache. It stays open: when somebody closes a device that
	// was open for writing, udev has a look at it, and its reads may fail too.
	file *os.File
	// seed makes data of one write differ from those of the last.
	seed byte
	// cold counts reads of what is not cached.
	cold int
}

// volume is one over a disk's part, which fail and repair change.
func (r *rig) volume(name string) *vol {
	r.t.Helper()
	return r.volumeOver(name, r.slice("nf-"+name+".lower", guest.Disk("d"), originSize))
}

func (r *rig) volumeOver(name string, lower devmapper.Info) *vol {
	r.t.Helper()
	v := &vol{rig: r, name: name, lower: lower}
	meta := r.slice("nf-"+name+".meta", guest.Disk("b"), metaSize)
	data := r.slice("nf-"+name+".data", guest.Disk("b"), dataSize)
	r.must("empty metadata", blockdev.ZeroHead(r.t.Context(), meta.DevPath(), mib))
	v.origin = r.device("nf-"+name+".origin", originSize*mibSectors, devmapper.LinearTarget{Device: lower.DevNo()})
	cache := devmapper.CacheTarget{
		Metadata: meta.DevNo(), Data: data.DevNo(), Origin: v.origin.DevNo(), ChunkSectors: devmapper.MinChunkSectors,
		Mode: devmapper.Writethrough, Policy: devmapper.PolicySMQ,
	}
	v.cache = r.device("nf-"+name, originSize*mibSectors, cache)
	f, err := os.OpenFile(v.cache.DevPath(), os.O_RDWR|unix.O_DIRECT, 0)
	r.must("open", err)
	r.t.Cleanup(func() { _ = f.Close() })
	v.file = f
	v.heat()
	// The other policy reads the origin for whatever is used often, which may fail too.
	cache.Policy = devmapper.PolicyCleaner
	r.must("load", r.dm.Load(r.t.Context(), "nf-"+name, devmapper.Table{{Length: originSize * mibSectors, Target: cache}}))
	r.must("resume", r.dm.Resume(r.t.Context(), "nf-"+name))
	r.command("udevadm", "settle")
	return v
}

// swap gives the lower device another table below the running cache.
func (v *vol) swap(target devmapper.Target) {
	v.t.Helper()
	name := "nf-" + v.name + ".lower"
	v.must("load", v.dm.Load(v.t.Context(), name, devmapper.Table{{Length: originSize * mibSectors, Target: target}}))
	v.must("resume", v.dm.ResumeUnfrozen(v.t.Context(), name))
}

// fail has the lower device refuse everything; repair ends that.
func (v *vol) fail() (repair func()) {
	v.t.Helper()
	table, err := v.dm.Table(v.t.Context(), "nf-"+v.name+".lower")
	v.must("table", err)
	v.swap(devmapper.ErrorTarget{})
	return func() { v.swap(table[0].Target) }
}

// buffer is one that O_DIRECT accepts.
func buffer(n int, fill byte) []byte {
	const unit = 4096
	b := make([]byte, n+unit)
	for i := range b {
		b[i] = fill
	}
	skip := unit - int(uintptr(unsafe.Pointer(&b[0]))%unit)
	return b[skip : skip+n : skip+n]
}

// heat reads the first chunk until it is cached.
func (v *vol) heat() {
	v.t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; {
		before, _, err := v.dm.Status(v.t.Context(), "nf-"+v.name)
		v.must("status", err)
		for range 200 {
			_, err := v.file.ReadAt(buffer(4096, 0), 0)
			v.must("read", err)
		}
		after, _, err := v.dm.Status(v.t.Context(), "nf-"+v.name)
		v.must("status", err)
		if after.ReadHits-before.ReadHits == 200 {
			return
		}
	}
	v.t.Fatal("the first chunk is not in the cache")
}

// writes writes n blocks of 4 KiB in the first chunk, which is cached.
func (v *vol) writes(n int) (failed uint64) {
	v.t.Helper()
	v.seed++
	for i := range n {
		_, err := v.file.WriteAt(buffer(4096, v.seed), int64(i%8)*4096)
		failed += v.isEIO(err)
	}
	return failed
}

// reads reads n blocks of 4 KiB that are not cached, far from each other.
func (v *vol) reads(n int) (failed uint64) {
	v.t.Helper()
	for range n {
		_, err := v.file.ReadAt(buffer(4096, 0), int64(4+v.cold%(originSize-4))*mib)
		failed += v.isEIO(err)
		v.cold++
	}
	return failed
}

// discard discards the second MiB.
func (v *vol) discard() error {
	area := [2]uint64{mib, mib}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, v.file.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&area))); errno != 0 {
		return errno
	}
	return nil
}

func (v *vol) isEIO(err error) uint64 {
	v.t.Helper()
	switch {
	case err == nil:
		return 0
	case !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENODATA):
		v.t.Errorf("%v, want EIO or ENODATA", err)
	}
	return 1
}

// fakeDisk is a SCSI disk in memory that takes requests. It lasts until the test is over.
func (r *rig) fakeDisk(options ...string) devmapper.Info {
	r.t.Helper()
	r.command("modprobe", append([]string{"scsi_debug", "dev_size_mb=64", "delay=0"}, options...)...)
	r.t.Cleanup(func() {
		var err error
		for range 100 { // somebody may have a look at it
			if _, err = r.run.Run(context.Background(), hostexec.Command("modprobe", "--remove", "scsi_debug")); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		r.t.Errorf("scsi_debug: %v", err)
	})
	for range 600 {
		found, err := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*:*/block/*")
		r.must("glob", err)
		if len(found) == 1 {
			var info devmapper.Info
			b, err := os.ReadFile(filepath.Join(found[0], "dev"))
			if err == nil {
				if _, err = fmt.Sscanf(strings.TrimSpace(string(b)), "%d:%d", &info.Major, &info.Minor); err == nil {
					return info
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	r.t.Fatal("scsi_debug made no disk")
	return devmapper.Info{}
}
