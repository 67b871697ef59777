package scrub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// sliceBytes is how much is compared under the volume's lock at a time.
	sliceBytes = 8 << 20
	readBytes  = 1 << 20
	// again is the pause before a piece that differs is read again, and looks how often it is.
	again = 300 * time.Millisecond
	looks = 5
	// suspendEvery is the least time between two suspensions of a volume, and mostSuspensions how
	// many a scrub has that finds nothing.
	suspendEvery, mostSuspensions = 5 * time.Second, 64
	// mostSuspects bounds what is remembered: what else differs is unjudged.
	mostSuspects = 4096
)

// suspect is a piece that differs.
type suspect struct {
	Piece

	// ssd and origin are hashes of what both had, seen how often they were read.
	ssd, origin uint64
	seen        int
	at          time.Time
}

// run is the scrub of one volume.
type run struct {
	v     Volume
	began time.Time
	// cache is the identity of the cache that all below is of.
	cache Cache
	// m is what the cache has, nil before it was read; next is the entry that is compared next, from
	// a byte of its block on.
	m    *cachemap.Map
	next int
	from int64
	// written is true once what is dirty is in the metadata.
	written bool
	// pending are looked at again, suspects are to be judged; both bounded by mostSuspects. renew
	// are to be replaced.
	pending, suspects, renew []suspect
	every                    time.Duration // suspendEvery
	suspendedAt              time.Time
	suspensions              int
	found                    volume.ScrubReport
	// corrupted are the blocks of the origin of which a piece was.
	corrupted map[uint64]bool
	// reading is open while a slice reads that was given up.
	reading chan struct{}
	seed    maphash.Seed
	buffers [2][]byte
}

func newRun(v Volume, now time.Time, every time.Duration) *run {
	return &run{
		v: v, began: now, every: every, seed: maphash.MakeSeed(), corrupted: map[uint64]bool{},
		buffers: [2][]byte{blockdev.AlignedBuffer(readBytes), blockdev.AlignedBuffer(readBytes)},
	}
}

// stage is what is to be done next in a scrub.
type stage string

const (
	stageWriteDown stage = "WriteDown" // suspend, so that what is dirty is in the metadata
	stageMap       stage = "Map"
	stageCompare   stage = "Compare"
	stageJudge     stage = "Judge"
	stageRenew     stage = "Renew"
	stageRest      stage = "Rest" // wait until a suspension is allowed, or a piece is looked at again
	stageDone      stage = "Done"
)

// decideStage is what is next.
func decideStage(r *run, dirty bool, now time.Time) stage {
	rested := now.Sub(r.suspendedAt) >= r.every
	suspend := rested && r.suspensions < mostSuspensions
	exhausted := r.m != nil && r.next >= len(r.m.Entries)
	switch {
	case len(r.renew) > 0 && rested:
		return stageRenew
	case r.m == nil && dirty && !r.written:
		if suspend {
			return stageWriteDown
		}
		return stageRest
	case r.m == nil:
		return stageMap
	case len(r.suspects) > 0 && suspend && (len(r.suspects) >= MostPieces || exhausted && len(r.pending) == 0):
		return stageJudge
	case !exhausted, len(r.pending) > 0 && now.Sub(r.pending[0].at) >= again:
		return stageCompare
	case len(r.pending) > 0, len(r.renew) > 0, len(r.suspects) > 0 && r.suspensions < mostSuspensions:
		return stageRest
	}
	return stageDone
}

// useful checks a map that was read while its cache is in use.
func useful(m cachemap.Map, c Cache) error {
	if m.ChunkSectors != c.ChunkSectors || m.End() > c.DataSectors {
		return fmt.Errorf("%w: chunks of %d sectors up to %d, of a cache with chunks of %d and %d sectors", devmapper.ErrMetadata, m.ChunkSectors, m.End(), c.ChunkSectors, c.DataSectors)
	}
	return nil
}

// take begins to compare by a map.
func (r *run) take(m cachemap.Map) {
	before := uint64(0)
	if r.m != nil && r.next < len(r.m.Entries) {
		before = r.m.Entries[r.next].Cache
	}
	clean := m.Clean()
	r.m = &clean
	// Goes on where it was, by an older map.
	r.next, _ = slices.BinarySearchFunc(clean.Entries, before, func(e cachemap.Entry, at uint64) int { return cmp.Compare(e.Cache, at) })
	if r.next >= len(clean.Entries) || clean.Entries[r.next].Cache != before {
		r.from = 0
	}
}

// compare compares the next slice, and looks again at what differed. It returns how many bytes it
// has read from each side.
func (r *run) compare(ctx context.Context, open func(path string, flags int) (blockdev.File, error), c Cache, now time.Time) (n int64, err error) {
	data, err := open(c.Data, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return 0, err
	}
	defer func() { _ = data.Close() }()
	origin, err := open(c.Origin, unix.O_RDONLY|unix.O_DIRECT)
	if err != nil {
		return 0, err
	}
	defer func() { _ = origin.Close() }()
	for len(r.pending) > 0 && now.Sub(r.pending[0].at) >= again && n < sliceBytes {
		s := r.pending[0]
		r.pending = r.pending[1:]
		err := r.readBoth(data, origin, c, s.Piece)
		if n += s.Length; err == nil {
			r.lookAgain(s, now)
		} else if err = r.unreadable(ctx, s.Piece, err); err != nil {
			return n, err
		}
	}
	for n < sliceBytes && r.next < len(r.m.Entries) && ctx.Err() == nil {
		p, whole := r.part(c)
		if p.Length > 0 {
			err := r.readBoth(data, origin, c, p)
			if err == nil {
				r.differences(p, now)
				r.found.CheckedBytes += p.Length
			} else if err = r.unreadable(ctx, p, err); err != nil {
				return n, err
			}
		}
		n += p.Length
		if r.from += p.Length; whole {
			r.next, r.from = r.next+1, 0
		}
	}
	return n, nil
}

// part is the next part of the entry that is compared; whole is true of its last one.
func (r *run) part(c Cache) (p Piece, whole bool) {
	e, block := r.m.Entries[r.next], int64(c.ChunkSectors)*devmapper.SectorSize
	length := min(block, int64(c.OriginSectors)*devmapper.SectorSize-int64(e.Origin)*block) // the last one may be cut off
	p = Piece{Cache: e.Cache, Origin: e.Origin, Offset: r.from, Length: max(min(readBytes, length-r.from), 0)}
	return p, r.from+p.Length >= length
}

func (r *run) readBoth(data, origin blockdev.File, c Cache, p Piece) error {
	block := int64(c.ChunkSectors) * devmapper.SectorSize
	if _, err := data.ReadAt(r.buffers[0][:p.Length], int64(p.Cache)*block+p.Offset); err != nil {
		return fmt.Errorf("%w: %w", errSSD, err)
	}
	if _, err := origin.ReadAt(r.buffers[1][:p.Length], int64(p.Origin)*block+p.Offset); err != nil {
		return fmt.Errorf("%w: %w", errOrigin, err)
	}
	return nil
}

// unreadable goes past what the SSD does not return; whoever watches for failing SSDs judges that.
func (r *run) unreadable(ctx context.Context, p Piece, err error) error {
	if !errors.Is(err, errSSD) {
		return err
	}
	klog.FromContext(ctx).Error(err, "Part of a cache cannot be compared", "volume", r.v.ID, "block", p.Cache, "offset", p.Offset, "length", p.Length)
	r.found.Unjudged += (p.Length + PieceBytes - 1) / PieceBytes
	return nil
}

// differences remembers the pieces of what was read that differ.
func (r *run) differences(p Piece, now time.Time) {
	for at := int64(0); at < p.Length; at += PieceBytes {
		end := min(at+PieceBytes, p.Length)
		ssd, origin := r.hashes(at, end)
		if ssd == origin {
			continue
		}
		if len(r.pending)+len(r.suspects) >= mostSuspects {
			r.found.Unjudged++
			continue
		}
		s := suspect{Piece: p, ssd: ssd, origin: origin, seen: 1, at: now}
		s.Offset, s.Length = p.Offset+at, end-at
		r.pending = append(r.pending, s)
	}
}

func (r *run) hashes(at, end int64) (ssd, origin uint64) {
	return maphash.Bytes(r.seed, r.buffers[0][at:end]), maphash.Bytes(r.seed, r.buffers[1][at:end])
}

// lookAgain judges a piece that differed by what was read of it now.
func (r *run) lookAgain(s suspect, now time.Time) {
	ssd, origin := r.hashes(0, s.Length)
	switch {
	case ssd == origin:
	case ssd == s.ssd && origin == s.origin:
		r.suspects = append(r.suspects, s)
	case s.seen+1 >= looks:
		r.found.Unjudged++
	default:
		s.ssd, s.origin, s.seen, s.at = ssd, origin, s.seen+1, now
		r.pending = append(r.pending, s)
	}
}
