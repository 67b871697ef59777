//go:build kernel

package kernel

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// held is a LUN that answers no read and no write until the function that is returned is called.
func (l *lun) held() (release func()) {
	l.m.t.Helper()
	name := strings.ReplaceAll(storageVG, "-", "--") + "-" + l.name
	l.m.must("dmsetup", "suspend", "--nolockfs", "--noflush", name)
	release = sync.OnceFunc(func() { l.m.must("dmsetup", "resume", name) })
	l.m.t.Cleanup(release)
	return release
}

// reading reads a disk once, past the page cache; what it came to. The read is under way on return.
func reading(t *testing.T, disk, devno string) <-chan error {
	t.Helper()
	f, err := os.OpenFile(disk, os.O_RDONLY|unix.O_DIRECT, 0)
	mustPass(t, "open", err)
	done := make(chan error, 1)
	go func() {
		_, err := f.ReadAt(aligned(64<<10), 0)
		done <- errors.Join(err, f.Close())
	}()
	for idle := true; idle; time.Sleep(time.Millisecond) {
		idle, err = blockdev.Idle("/sys", devno)
		mustPass(t, "requests under way", err)
	}
	return done
}

// locked is a disk that udev reads, until the function that is returned is called.
func locked(t *testing.T, disk string) (release func()) {
	t.Helper()
	f, err := os.Open(disk)
	mustPass(t, "open", err)
	mustPass(t, "lock", unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB))
	return func() { _ = f.Close() } // it was not written to
}

// TestKernelReservedBusy: a LUN that is reserved already is not taken over while its path is
// read, as udev does with a disk that has just come. The kernel's target would wait for the read
// in the thread that ends it, and never answer again. The key that held it is this node's of an
// earlier session, or an earlier owner's: the target aborts what came under the holder's key.
func TestKernelReservedBusy(t *testing.T) {
	m := newMachine(t)
	l := m.newLUN("busy", 16*mib, []string{portalA})
	i := m.initiatorAs(initiatorB)
	at := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{portalA}, IQN: l.iqn}}}
	var disks reservation.Disks
	for _, generation := range []int64{1, 1, 2} {
		key := reservation.KeyOf("busy", generation)
		o, err := i.Connect(t.Context(), at, nil)
		mustPass(t, "connect", err)
		disk := o.Paths[0]
		paths := []reservation.Path{{Name: disk, LUN: disks.LUN(disk)}}
		before, _, err := reservation.Inspect(t.Context(), paths, key)
		mustPass(t, "inspect", err)
		if before.Found {
			m.must("udevadm", "settle") // which would have the lock
			refused := func(what string) {
				t.Helper()
				if _, err := reservation.Take(t.Context(), paths, key); !errors.Is(err, reservation.ErrPath) {
					t.Fatalf("taken while %s: %v, want ErrPath", what, err)
				}
			}
			unlock := locked(t, disk)
			refused("udev has it")
			unlock()
			release := l.held()
			read := reading(t, disk, o.DevNos[0])
			refused("the path is read")
			taken := make(chan error, 1)
			go func() {
				_, err := reservation.Take(t.Context(), paths, key)
				taken <- err
			}()
			release()
			mustPass(t, "read", <-read)
			mustPass(t, "take", <-taken)
		} else {
			mustTake(t, paths, key)
		}
		mustPass(t, "write", path{disk: disk}.Write(t.Context()))
		if generation == 2 {
			mustPass(t, "give", reservation.Give(t.Context(), paths, key))
		}
		mustPass(t, "disconnect", i.Disconnect(t.Context(), at))
	}
}
