package scrub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// Command is the first argument of a program that is to be a guard; the other is the file of an
// order.
const Command = "scrub"

const (
	// Limit is how long a device is suspended at most, but for a write to the SSD under way.
	Limit = 500 * time.Millisecond
	// budget is the time after which no piece is begun.
	budget = 100 * time.Millisecond
	// MostPieces is how many pieces one suspension judges.
	MostPieces = 16
	// PieceBytes is the length of a piece, if its block is not shorter.
	PieceBytes = 64 << 10
)

// Result is what a guard has found.
type Result struct {
	// Judgements are those of the order's pieces.
	Judgements []Judgement `json:"judgements"`
	// Suspended is how long the device was.
	Suspended time.Duration `json:"suspended"`
}

// Guard is the process that suspends a device and resumes it. It prints its Result, and returns the
// exit status.
func Guard(args []string, stdout, stderr io.Writer) int {
	r, err := runGuard(args)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(r)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err) // nobody else could be told
		return 1
	}
	return 0
}

func runGuard(args []string) (r Result, err error) {
	if len(args) != 1 {
		return r, errors.New("usage: scrub FILE; the node plugin runs this")
	}
	// For as long as this process lives, and a write of its own with it.
	lock, err := holdOrder(args[0])
	if err != nil {
		return r, err
	}
	defer func() { _ = lock.Close() }()
	o, err := readOrder(args[0])
	if err == nil {
		err = o.validate()
	}
	if err != nil {
		return r, err
	}
	dm, err := devmapper.OpenSuspender()
	if err != nil {
		return r, err
	}
	defer dm.Close()
	files, err := openAll(o)
	if err != nil {
		return r, err
	}
	defer files.close()
	g := guard{
		order: o, data: files.data, origin: files.origin, now: time.Now, limit: Limit,
		live: func() (devmapper.Table, error) { return dm.Table(o.Device) },
		places: func(blocks []uint64) ([]devmapper.CacheBlock, error) {
			return readPlaces(files.meta, o.BlockBytes, blocks, func() (devmapper.CacheStatus, error) { return dm.CacheStatus(o.Device) })
		},
		suspend: func() error { return interruptible(Limit, func() error { return dm.Suspend(o.Device) }) },
		resume:  func() error { return dm.Resume(o.Device) },
	}
	return g.run()
}

// readPlaces reads the metadata of a suspended cache, if the kernel has written them down: after an
// error in that they are those of before, and do not know what is dirty (sync_metadata in
// dm-cache-target.c). Then the cache is read-only, and not said to have stopped cleanly.
// blockBytes is the length of its blocks.
func readPlaces(meta io.ReaderAt, blockBytes int64, blocks []uint64, status func() (devmapper.CacheStatus, error)) ([]devmapper.CacheBlock, error) {
	sb, err := devmapper.ReadCacheSuperblock(meta)
	if err != nil {
		return nil, err
	}
	if has := int64(sb.DataBlockSectors) * devmapper.SectorSize; has != blockBytes {
		return nil, fmt.Errorf("%w: they are of blocks of %d bytes, the order of %d", devmapper.ErrMetadata, has, blockBytes)
	}
	st, err := status()
	if err != nil {
		return nil, err
	}
	if st.Fail || st.ReadOnly || st.NeedsCheck || !sb.CleanShutdown || sb.NeedsCheck {
		return nil, fmt.Errorf("%w: they were not written when the device was suspended", devmapper.ErrMetadata)
	}
	return devmapper.ReadCacheBlocks(meta, blocks)
}

// files are what a cache is over, open past the page cache.
type files struct{ meta, data, origin blockdev.File }

func openAll(o Order) (f files, err error) {
	mode := unix.O_RDONLY
	if o.Renew {
		mode = unix.O_RDWR
	}
	if f.meta, err = (blockdev.Host{}).Open(o.Meta, unix.O_RDONLY|unix.O_DIRECT); err == nil {
		if f.data, err = (blockdev.Host{}).Open(o.Data, mode|unix.O_DIRECT); err == nil {
			f.origin, err = (blockdev.Host{}).Open(o.Origin, unix.O_RDONLY|unix.O_DIRECT)
		}
	}
	if err != nil {
		f.close()
	}
	return f, err
}

func (f files) close() {
	for _, c := range []blockdev.File{f.meta, f.data, f.origin} {
		if c != nil {
			_ = c.Close() // what was written is on stable storage
		}
	}
}

// interruptible runs a call of the kernel, and interrupts it when its time is over.
func interruptible(limit time.Duration, call func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, ended := unix.Gettid(), make(chan struct{})
	defer close(ended)
	go func() {
		wait := limit
		for {
			select {
			case <-ended:
				return
			case <-time.After(wait):
			}
			// The runtime of Go has a handler for it, which does nothing.
			_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
			wait = limit / 10
		}
	}()
	return call()
}

// guard is the course of a suspension, over what it does.
type guard struct {
	order           Order
	suspend, resume func() error
	// live reads the live table.
	live func() (devmapper.Table, error)
	// places reads the metadata.
	places func(blocks []uint64) ([]devmapper.CacheBlock, error)
	data   blockdev.File
	origin io.ReaderAt
	now    func() time.Time
	limit  time.Duration

	// mu is held while something is written to the SSD.
	mu     sync.Mutex
	over   bool
	judged []Judgement
}

// run suspends, judges and resumes.
func (g *guard) run() (Result, error) {
	g.judged = make([]Judgement, len(g.order.Pieces))
	for i := range g.judged {
		g.judged[i] = Unknown
	}
	// Made before, so that nothing has to be found for them while the pod waits.
	ssd, origin := blockdev.AlignedBuffer(PieceBytes), blockdev.AlignedBuffer(PieceBytes)
	if err := g.mayBegin(); err != nil {
		return Result{}, err
	}
	began := g.now()
	if err := g.suspend(); err != nil {
		return Result{}, err
	}
	faultSuspended.Hit()
	still := g.now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.judge(still, ssd, origin)
	}()
	select {
	case <-done:
	case <-time.After(g.limit):
	}
	g.mu.Lock() // a write that is under way ends first
	g.over = true
	r := Result{Judgements: append([]Judgement{}, g.judged...)}
	g.mu.Unlock()
	err := g.resume()
	r.Suspended = g.now().Sub(began)
	faultResumed.Hit()
	return r, err
}

// mayBegin says why nothing may be suspended. The kernel waits for an origin that does not answer, and
// for that no signal ends it (cache_postsuspend).
func (g *guard) mayBegin() error {
	if err := g.sameCache(); err != nil {
		return err
	}
	at := int64(0)
	if len(g.order.Pieces) > 0 {
		at = g.at(g.order.Pieces[0].Origin, g.order.Pieces[0])
	}
	read := make(chan error, 1)
	go func() {
		_, err := g.origin.ReadAt(blockdev.AlignedBuffer(compared), at)
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil {
			return fmt.Errorf("%w, and so nothing is suspended: %w", errOrigin, err)
		}
		return nil
	case <-time.After(g.limit):
		return fmt.Errorf("%w within %s, and so nothing is suspended", errOrigin, g.limit)
	}
}

// sameCache says how the live table is not that of the order.
func (g *guard) sameCache() error {
	t, err := g.live()
	if err != nil {
		return err
	}
	return g.order.matches(t)
}

// judge judges the pieces one after the other, with the device suspended.
func (g *guard) judge(still time.Time, ssd, origin []byte) {
	if len(g.order.Pieces) == 0 {
		return
	}
	if g.sameCache() != nil {
		return
	}
	numbers := make([]uint64, len(g.order.Pieces))
	for i, p := range g.order.Pieces {
		numbers[i] = p.Cache
	}
	blocks, err := g.places(numbers)
	if err != nil {
		return
	}
	for i, p := range g.order.Pieces {
		j := judgeMap(p, blocks[i])
		if j == "" && g.now().Sub(still) < budget {
			j = g.judgePiece(p, ssd[:p.Length], origin[:p.Length])
		}
		if j != "" && !g.record(i, j) {
			return
		}
		if j.differs() && g.order.Renew {
			g.renew(i, p, origin[:p.Length], ssd[:p.Length])
		}
	}
}

func (g *guard) record(i int, j Judgement) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.judged[i] = j
	}
	return !g.over
}

func (g *guard) judgePiece(p Piece, ssd, origin []byte) Judgement {
	if _, err := g.data.ReadAt(ssd, g.at(p.Cache, p)); err != nil {
		return Unknown
	}
	if _, err := g.origin.ReadAt(origin, g.at(p.Origin, p)); err != nil {
		return Unknown
	}
	return judgeContent(ssd, origin, g.order)
}

func (g *guard) at(block uint64, p Piece) int64 { return int64(block)*g.order.BlockBytes + p.Offset }

// renew writes what the origin has to the SSD, and reads it back. The device is not resumed
// meanwhile: a pod's write would come first.
func (g *guard) renew(i int, p Piece, want, got []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	at := g.at(p.Cache, p)
	_, err := g.data.WriteAt(want, at)
	if err == nil {
		// After a loss of power a block of a writeback cache counts as dirty: what it held before
		// would be written to the origin (I4).
		err = g.data.Sync()
	}
	faultWritten.Hit()
	if err == nil {
		_, err = g.data.ReadAt(got, at)
	}
	g.judged[i] = Renewed
	if err != nil || !bytes.Equal(got, want) {
		g.judged[i] = NotKept
	}
}
