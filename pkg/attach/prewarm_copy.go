package attach

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/hydration"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// prewarmTries is how often an owner is asked in vain before the copy ends: with a pause of a
	// second between, long enough for a plugin that is replaced.
	prewarmTries = 30
	// prewarmSaved is how much is copied between two notes of it.
	prewarmSaved = 64 << 20
	// copiedMagic begins a file of chunks that were copied.
	copiedMagic = "NFC\x01"
)

var (
	// errStopped: the copy may not write any more.
	errStopped = errors.New("the copy was stopped")
	// errSSD: nothing can be written here.
	errSSD = errors.New("the SSD takes no writes")
	// errDeadline: the owner need not serve any more.
	errDeadline = errors.New("the time of the lease is over")
)

// copiedFile holds which chunks were prewarmed.
func (a *Attacher) copiedFile(id volume.ID) string {
	return filepath.Join(a.Warm.Dir, string(id)+".copied")
}

// encodeCopied is the form of that file: what it is, a checksum, the record of writes
// that the copy began under, and one bit for each chunk.
func encodeCopied(tracking string, copied volume.Bits) []byte {
	body := append(append([]byte(tracking), '\n'), copied...)
	out := binary.BigEndian.AppendUint32([]byte(copiedMagic), crc32.ChecksumIEEE(body))
	return append(out, body...)
}

// decodeCopied is the inverse. A file that is not whole, or of another record, says
// nothing: no chunk was copied.
func decodeCopied(b []byte, tracking string) volume.Bits {
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
func (a *Attacher) readCopied(id volume.ID, tracking string) volume.Bits {
	b, err := os.ReadFile(a.copiedFile(id))
	if err != nil {
		return nil
	}
	return decodeCopied(b, tracking)
}

// prewarming is a copy under way. Once stopped it never writes again, whatever still comes.
type prewarming struct {
	state.Prewarm

	a    *Attacher
	id   volume.ID
	file string
	// places is how many chunks the owner's cache has room for.
	places uint64
	cancel context.CancelFunc

	mu      sync.Mutex
	stopped bool
	dst     blockdev.File
	copied  volume.Bits
	unsaved int
}

// write puts a chunk where the owner's cache has it. Then it counts as copied.
func (p *prewarming) write(buf []byte, place uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return errStopped
	}
	if _, err := p.dst.WriteAt(buf, int64(place)*int64(len(buf))); err != nil {
		return fmt.Errorf("%w: %w", errSSD, err)
	}
	p.copied.Set(uint64(place))
	if p.unsaved += len(buf); p.unsaved < prewarmSaved {
		return nil
	}
	return p.save()
}

// save notes what was copied. The SSD has it before the note says so.
func (p *prewarming) save() error {
	p.unsaved = 0
	if err := p.dst.Sync(); err != nil {
		return fmt.Errorf("%w: %w", errSSD, err)
	}
	faultPrewarmSynced.Hit()
	if err := durable.WriteFile(p.file, encodeCopied(p.Tracking, p.copied)); err != nil {
		return fmt.Errorf("%w: %w", errSSD, err)
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

// run copies until everything is there, ctx or the deadline ends, the owner serves no more, or the
// SSD takes no writes.
func (p *prewarming) run(ctx context.Context) error {
	if !p.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.Deadline.Sub(p.a.Now()), errDeadline)
		defer cancel()
	}
	for vain := 1; ; vain++ {
		n, err := p.pull(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case n > 0:
			vain = 1
		}
		if vain == prewarmTries || errors.Is(err, errSSD) || errors.Is(err, errStopped) || !errors.Is(err, volume.ErrUnavailable) {
			return err
		}
		klog.FromContext(ctx).V(2).Info("The owner is asked for its cache again", "volume", p.id, "reason", err.Error())
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(p.a.Warm.PullPause):
		}
	}
}

// pull asks the owner for its list, and copies what of it is not here. n is how many chunks came.
func (p *prewarming) pull(ctx context.Context) (n int, err error) {
	l, err := p.a.Stream.Map(ctx, *p.Source, p.id, p.Move)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	w, err := missing(l, p.ChunkSectors, p.places, p.copied)
	p.mu.Unlock()
	if err != nil {
		return 0, err
	}
	chunk := int64(l.ChunkSectors) * sectorSize
	m := meter{a: p.a, move: p.Move, total: int64(len(l.Blocks)) * chunk, began: p.a.Now(), limit: func() int64 { return p.a.prewarmLimit(p.Bandwidth) }}
	for i := range l.Blocks {
		if w.Skip.Has(uint64(i)) {
			m.done += chunk
		}
	}
	m.base = m.done
	err = p.a.Stream.Chunks(ctx, *p.Source, p.id, p.Move, w, m.limit(), int(chunk), func(i int, block uint64, data []byte) error {
		if i >= len(l.Blocks) || block != l.Blocks[i] {
			return fmt.Errorf("%w: chunk %d of block %d is not the list's", volume.ErrUnavailable, i, block)
		}
		if err := p.write(data, l.Places[i]); err != nil {
			return err
		}
		n++
		return m.copied(ctx, chunk)
	})
	return n, err
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
