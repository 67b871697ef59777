package reservation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// Sizes and times of the commands.
const (
	// maxAnswer bounds the answer to READ KEYS: 1023 registrations.
	maxAnswer = 8 + 1023*8
	// firstAnswer has room for 63 registrations.
	firstAnswer = 512
	// commandTimeout is the kernel's for one command, once the path has taken it.
	commandTimeout = 5 * time.Second
	// tries is how often a command is sent whose LUN had something else to say first:
	// each path is told of each change of another one.
	tries = 8
	// quietTimeout is how long to wait for a path to become idle, and quietPoll the pause
	// between two looks.
	quietTimeout = 2 * time.Second
	quietPoll    = 2 * time.Millisecond
	// lastAnswer is how long to wait for the answer to the command before: one that was given
	// up is not sent any more, but its goroutine has to notice that.
	lastAnswer = 100 * time.Millisecond
)

// Disks makes LUNs of SCSI disks. A command to a path that is lost waits in the kernel
// for as long as its session does, and cannot be ended: each path has at most one such
// command, and is not asked again before it has answered.
type Disks struct {
	mu   sync.Mutex
	busy map[string]bool
}

// LUN is the path of a disk, "/dev/sda".
func (d *Disks) LUN(path string) LUN { return disk{d, path} }

type disk struct {
	all  *Disks
	path string
}

// Supported implements LUN.
func (d disk) Supported(ctx context.Context) error {
	b, err := d.in(ctx, inCapabilities, 8)
	if err != nil {
		return err
	}
	supported, err := parseCapabilities(b)
	if err == nil && !supported {
		err = fmt.Errorf("%w of the type write exclusive, registrants only", ErrUnsupported)
	}
	return err
}

// Keys implements LUN.
func (d disk) Keys(ctx context.Context) ([]Key, error) {
	for room := firstAnswer; ; {
		b, err := d.in(ctx, inKeys, room)
		if err != nil {
			return nil, err
		}
		keys, need, err := parseKeys(b)
		if err != nil || need <= room {
			return keys, err
		}
		room = need
	}
}

// Reservation implements LUN.
func (d disk) Reservation(ctx context.Context) (Held, bool, error) {
	b, err := d.in(ctx, inReservation, 24)
	if err != nil {
		return Held{}, false, err
	}
	return parseReservation(b)
}

// Register implements LUN.
func (d disk) Register(ctx context.Context, key Key) error {
	o := d.out(ctx, outRegisterIgnore, 0, 0, key, persist)
	if o.sense.key != 0 {
		// The LUN cannot keep it, or cannot just now: a target without a place for that.
		o = d.out(ctx, outRegisterIgnore, 0, 0, key)
	}
	if o.sense.key == senseNotReady && key != 0 {
		// LIO registers first, and answers so if it has no folder to write down even that
		// nothing is to be kept (core_scsi3_update_and_write_aptpl, target_core_pr.c).
		if registered, err := d.Honoured(ctx, key); err == nil && registered {
			return nil
		}
	}
	return o.err
}

// Reserve implements LUN.
func (d disk) Reserve(ctx context.Context, key Key) error {
	return d.out(ctx, outReserve, WriteExclusiveRegistrantsOnly, key, 0).err
}

// Preempt implements LUN.
func (d disk) Preempt(ctx context.Context, key, victim Key) error {
	return d.out(ctx, outPreemptAbort, WriteExclusiveRegistrantsOnly, key, victim).err
}

// TakeOver implements LUN.
func (d disk) TakeOver(ctx context.Context, key, holder Key) error {
	return d.out(ctx, outPreemptAbort, WriteExclusiveRegistrantsOnly, key, holder, whenQuiet).err
}

// Honoured implements LUN. A release of another type than the reservation's ends
// nothing: a registrant that is not the holder is answered that all is well, and a holder
// that the type is wrong (SPC-4, 5.13.11.2).
func (d disk) Honoured(ctx context.Context, key Key) (bool, error) {
	const otherType Type = 1
	o := d.out(ctx, outRelease, otherType, key, 0)
	switch {
	case o.err == nil, o.sense == sense{senseIllegalRequest, codeParameter, qualifierBadRelease}:
		return true, nil
	case errors.Is(o.err, ErrConflict):
		return false, nil
	}
	return false, o.err
}

func (d disk) in(ctx context.Context, action byte, room int) ([]byte, error) {
	b, o := d.send(ctx, command{cdb: cdbIn(action, room), room: room})
	if o.err != nil {
		return nil, fmt.Errorf("%s: PERSISTENT RESERVE IN, action %d: %w", d.path, action, o.err)
	}
	return b, nil
}

// option is how a PERSISTENT RESERVE OUT is sent.
type option int

const (
	// persist: what it changes survives a loss of the LUN's power.
	persist option = iota
	// whenQuiet: as soon as nothing else is under way on the path.
	whenQuiet
)

func (d disk) out(ctx context.Context, action byte, t Type, key, other Key, how ...option) outcome {
	c := command{quiet: slices.Contains(how, whenQuiet)}
	c.cdb, c.parameters = cdbOut(action, t, key, other, slices.Contains(how, persist))
	_, o := d.send(ctx, c)
	if o.err != nil {
		o.err = fmt.Errorf("%s: PERSISTENT RESERVE OUT, action %d: %w", d.path, action, o.err)
	}
	return o
}

// command is one to a path: with parameters, or with room for an answer.
type command struct {
	cdb, parameters []byte
	room            int
	// quiet: it is sent when nothing else is under way on the path.
	quiet bool
}

// send gives the command to a goroutine of its own, which outlives ctx if the path is
// lost.
func (d disk) send(ctx context.Context, c command) ([]byte, outcome) {
	type answer struct {
		b []byte
		o outcome
	}
	if err := ctx.Err(); err != nil {
		return nil, outcome{err: fmt.Errorf("%w: nothing was sent: %w", ErrPath, err)}
	}
	if !d.begin(ctx) {
		return nil, outcome{err: fmt.Errorf("%w: it has not answered the command before", ErrPath)}
	}
	done := make(chan answer, 1)
	go func() {
		b, o := c.sendTo(ctx, d.path)
		d.end() // before anybody learns of the answer, and sends the next one
		done <- answer{b, o}
	}()
	select {
	case a := <-done:
		return a.b, a.o
	case <-ctx.Done():
		return nil, outcome{err: fmt.Errorf("%w: %w", ErrPath, ctx.Err())}
	}
}

// begin waits for a moment until the path is free, and takes it.
func (d disk) begin(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lastAnswer)
	defer cancel()
	for !d.take() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(quietPoll):
		}
	}
	return true
}

func (d disk) take() bool {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if d.all.busy == nil {
		d.all.busy = map[string]bool{}
	}
	if d.all.busy[d.path] {
		return false
	}
	d.all.busy[d.path] = true
	return true
}

func (d disk) end() {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	delete(d.all.busy, d.path)
}

func (c command) sendTo(ctx context.Context, path string) (b []byte, o outcome) {
	// Not for writing: udev would examine the disk each time that it is closed.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, outcome{err: fmt.Errorf("%w: %w", ErrPath, err)}
	}
	defer func() { _ = f.Close() }() // it was only read
	if c.quiet {
		if err := quiet(ctx, f); err != nil {
			return nil, outcome{err: fmt.Errorf("%w: %w", ErrPath, err)}
		}
	}
	for range tries {
		if b, o = sgIO(f, c.cdb, c.parameters, c.room); !o.again {
			break
		}
	}
	return b, o
}

// quiet waits until no request is under way on a disk. From then on, until f is closed, udev does
// not examine it: it leaves a disk alone that somebody has locked, and locks one that it reads
// (systemd's BLOCK_DEVICE_LOCKING). Where the disk's queue counts nothing (queue/iostats is 0), the
// lock has to do.
func quiet(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, quietTimeout)
	defer cancel()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			idle, err := blockdev.Idle("/sys", fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
			if err = errors.Join(err, ctx.Err()); err != nil || idle {
				return err
			}
			// A request that is under way need not be kept from anybody.
			err = unix.Flock(int(f.Fd()), unix.LOCK_UN)
			if err != nil {
				return err
			}
		} else if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another program uses or locks it, and the LUN cannot be taken over meanwhile: %w", ctx.Err())
		case <-time.After(quietPoll):
		}
	}
}

// sgHeader is struct sg_io_hdr of the kernel's include/uapi (scsi/sg.h).
type sgHeader struct {
	interfaceID    int32
	direction      int32
	cmdLength      uint8
	senseRoom      uint8
	iovecCount     uint16
	transferLength uint32
	data           unsafe.Pointer
	command        unsafe.Pointer
	sense          unsafe.Pointer
	timeout        uint32 // ms
	flags          uint32
	packID         int32
	user           unsafe.Pointer
	status         uint8
	maskedStatus   uint8
	msgStatus      uint8
	senseWritten   uint8
	hostStatus     uint16
	driverStatus   uint16
	residual       int32
	duration       uint32
	info           uint32
}

const (
	sgIOCommand = 0x2285
	sgToDevice  = -2
	sgFromLUN   = -3
)

// sgIO sends one command.
func sgIO(f *os.File, cdb, parameters []byte, room int) ([]byte, outcome) {
	senseBytes := make([]byte, 64)
	h := sgHeader{
		interfaceID: 'S', direction: sgToDevice, cmdLength: uint8(len(cdb)), senseRoom: uint8(len(senseBytes)),
		command: unsafe.Pointer(&cdb[0]), sense: unsafe.Pointer(&senseBytes[0]), timeout: uint32(commandTimeout.Milliseconds()),
	}
	b := parameters
	if room > 0 {
		b, h.direction = make([]byte, room), sgFromLUN
	}
	h.data, h.transferLength = unsafe.Pointer(&b[0]), uint32(len(b))
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), sgIOCommand, uintptr(unsafe.Pointer(&h))); errno != 0 {
		if errno == unix.ENOTTY || errno == unix.EINVAL {
			return nil, outcome{err: fmt.Errorf("%w: no SCSI disk: %w", ErrUnsupported, errno)}
		}
		return nil, outcome{err: fmt.Errorf("%w: %w", ErrPath, errno)}
	}
	if h.hostStatus != 0 {
		return nil, outcome{err: fmt.Errorf("%w: host status 0x%02x", ErrPath, h.hostStatus)}
	}
	o := judge(h.status, parseSense(senseBytes[:h.senseWritten]))
	if o.err != nil || room == 0 {
		return nil, o
	}
	return b[:len(b)-min(max(int(h.residual), 0), len(b))], o
}
