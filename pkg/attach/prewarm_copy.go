package attach

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/hydration"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// prewarmPiece is how much is read at a time.
	prewarmPiece = 1 << 20
	// prewarmSaved is how much is copied between two notes of it.
	prewarmSaved = 64 << 20
	// copiedMagic begins a file of chunks that were copied.
	copiedMagic = "NFC\x01"
)

// errStopped: the copy may not write any more.
var errStopped = errors.New("the copy was stopped")

// copiedFile holds which chunks were prewarmed.
func (a *Attacher) copiedFile(id volume.ID) string {
	return filepath.Join(a.Warm.Dir, string(id)+".copied")
}

// encodeCopied is the form of that file: what it is, a checksum, the record of writes
// that the copy began under, and one bit for each chunk.
func encodeCopied(tracking string, copied bitmap) []byte {
	body := append(append([]byte(tracking), '\n'), copied...)
	out := binary.BigEndian.AppendUint32([]byte(copiedMagic), crc32.ChecksumIEEE(body))
	return append(out, body...)
}

// decodeCopied is the inverse. A file that is not whole, or of another record, says
// nothing: no chunk was copied.
func decodeCopied(b []byte, tracking string) bitmap {
	rest, ok := bytes.CutPrefix(b, []byte(copiedMagic))
	if !ok || len(rest) < 4 || crc32.ChecksumIEEE(rest[4:]) != binary.BigEndian.Uint32(rest) {
		return nil
	}
	id, copied, ok := bytes.Cut(rest[4:], []byte{'\n'})
	if !ok || tracking == "" || string(id) != tracking {
		return nil
	}
	return copied
}

// readCopied returns which chunks were copied; none without a file.
func (a *Attacher) readCopied(id volume.ID, tracking string) bitmap {
	b, err := os.ReadFile(a.copiedFile(id))
	if err != nil {
		return nil
	}
	return decodeCopied(b, tracking)
}

// prewarming is a copy under way. Once stopped it never writes again, whatever its
// reader is still waiting for.
type prewarming struct {
	request, tracking, file string
	cancel                  context.CancelFunc

	mu      sync.Mutex
	stopped bool
	dst     *os.File
	copied  bitmap
	unsaved int
}

// write puts a piece where it belongs. The chunks that it completes count as copied.
func (p *prewarming) write(buf []byte, offset int64, first, chunks uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return errStopped
	}
	if _, err := p.dst.WriteAt(buf, offset); err != nil {
		return err
	}
	for c := first; c < first+chunks; c++ {
		p.copied.set(c)
	}
	if p.unsaved += len(buf); p.unsaved < prewarmSaved {
		return nil
	}
	return p.save()
}

// save notes what was copied. The SSD has it before the note says so.
func (p *prewarming) save() error {
	p.unsaved = 0
	if err := p.dst.Sync(); err != nil {
		return err
	}
	faultPrewarmSynced.Hit()
	if err := durable.WriteFile(p.file, encodeCopied(p.tracking, p.copied)); err != nil {
		return err
	}
	faultPrewarmCopied.Hit()
	return nil
}

// stop ends the copy. On return nothing will be written any more.
func (p *prewarming) stop() error {
	p.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	p.stopped = true
	return errors.Join(p.save(), p.dst.Close())
}

// copyRun are neighbouring chunks that are copied together.
type copyRun struct{ first, chunks uint64 }

// copyRuns lists what of a map is to be copied, hottest first. A run is no longer
// than a piece, unless one chunk is.
func copyRuns(m cachemap.Map, blocks uint64, copied bitmap) []copyRun {
	entries := slices.Clone(m.Entries)
	slices.SortStableFunc(entries, func(a, b cachemap.Entry) int {
		return cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(a.Cache, b.Cache))
	})
	most := max(prewarmPiece/(m.ChunkSectors*sectorSize), 1)
	var out []copyRun
	for _, e := range entries {
		if e.Cache >= blocks || copied.has(e.Cache) {
			continue
		}
		if n := len(out); n > 0 && out[n-1].first+out[n-1].chunks == e.Cache && out[n-1].chunks < most {
			out[n-1].chunks++
			continue
		}
		out = append(out, copyRun{first: e.Cache, chunks: 1})
	}
	return out
}

// copyJob is what one copy needs to know.
type copyJob struct {
	entry *state.Entry
	// source is the peer's device, limit the bandwidth in bytes per second.
	source string
	limit  func() int64
	runs   []copyRun
	// done are the bytes that were copied before.
	done int64
}

// copyPrewarm copies until everything is there, ctx or the deadline ends, or something
// fails.
func (a *Attacher) copyPrewarm(ctx context.Context, p *prewarming, j copyJob) error {
	src, err := blockdev.OpenDirect(j.source)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	pw := j.entry.Prewarm
	chunk := int64(pw.ChunkSectors) * sectorSize
	buf := blockdev.AlignedBuffer(prewarmPiece)
	left := int64(0)
	for _, r := range j.runs {
		left += int64(r.chunks) * chunk
	}
	m := meter{a: a, move: pw.Move, total: j.done + left, done: j.done, base: j.done, began: a.Now(), limit: j.limit}
	for _, r := range j.runs {
		start, length := int64(r.first)*chunk, int64(r.chunks)*chunk
		for at := int64(0); at < length; at += prewarmPiece {
			if !pw.Deadline.IsZero() && a.Now().After(pw.Deadline) {
				return errors.New("the time of the lease is over")
			}
			n := min(length-at, prewarmPiece)
			if _, err := src.ReadAt(buf[:n], int64(pw.PeerOffset)*sectorSize+start+at); err != nil {
				return err
			}
			done := uint64(0)
			if at+n == length {
				done = r.chunks
			}
			if err := p.write(buf[:n], start+at, r.first, done); err != nil {
				return err
			}
			if err := m.copied(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// meter keeps a copy within its bandwidth and reports it.
type meter struct {
	a                 *Attacher
	move              volume.MoveID
	limit             func() int64
	total, done, base int64
	began, due        time.Time
	reported          time.Time
}

func (m *meter) copied(ctx context.Context, n int64) error {
	m.done += n
	now := time.Now()
	if m.due.Before(now) {
		m.due = now
	}
	if limit := m.limit(); limit > 0 {
		m.due = m.due.Add(time.Duration(float64(n) / float64(limit) * float64(time.Second)))
	}
	m.report(ctx)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(m.due)):
	}
	return nil
}

// report writes progress that is news; nobody's data wait for it.
func (m *meter) report(ctx context.Context) {
	now := m.a.Now()
	if now.Sub(m.reported) < hydration.ReportEvery && m.done < m.total {
		return
	}
	m.reported = now
	p := volume.MoveProgress{TotalBytes: m.total, HydratedBytes: m.done, From: volume.FromPeer}
	if d := now.Sub(m.began); d > 0 {
		p.Rate = int64(float64(m.done-m.base) / d.Seconds())
	}
	p.Estimate()
	if err := m.a.Moves.Progress(ctx, m.move, p); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Progress of a copy could not be reported", "move", m.move.Name)
	}
}

// openTarget opens the logical volume for the copy.
func openTarget(path string) (*os.File, error) {
	f, err := blockdev.Open(path, unix.O_RDWR|unix.O_DIRECT)
	if err != nil {
		return nil, fmt.Errorf("prewarm: %w", err)
	}
	return f, nil
}
