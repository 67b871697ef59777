package stream

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nearflash/nearflash/pkg/blockdev"
)

// runBytes is how much is written at once, in bytes, if nothing else is asked for; a larger chunk is
// written by itself.
const runBytes = 1 << 20

// writer writes chunks to the SSD, many at a time, beside whoever brings the next ones.
type writer struct {
	dst blockdev.File
	// run is what was added and is not being written, and parts are its places; other and spare are
	// for the run after it.
	run, other   []byte
	parts, spare []part
	// written has the result of the write under way, nil without one.
	written chan error
}

// part is so much of a run that belongs at a place of the device, in bytes.
type part struct {
	at   int64
	size int
}

func newWriter(dst blockdev.File, chunk, atOnce int) *writer {
	size := max(cmp.Or(atOnce, runBytes)/chunk, 1) * chunk
	return &writer{dst: dst, run: blockdev.AlignedBuffer(size)[:0:size], other: blockdev.AlignedBuffer(size)[:0:size]}
}

// add takes a chunk that belongs at a place. It is written some time before flush returns.
// Errors: that of the write of an earlier one.
func (w *writer) add(ctx context.Context, at int64, b []byte) error {
	if last := len(w.parts) - 1; last >= 0 && at == w.parts[last].at+int64(w.parts[last].size) {
		w.parts[last].size += len(b)
	} else {
		w.parts = append(w.parts, part{at: at, size: len(b)})
	}
	if w.run = append(w.run, b...); len(w.run)+len(b) > cap(w.run) {
		return w.begin(ctx)
	}
	return nil
}

// begin begins to write the run, when the one before it has been written.
func (w *writer) begin(ctx context.Context) error {
	if err := w.wait(); err != nil || len(w.run) == 0 {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	run, parts, written := w.run, w.parts, make(chan error, 1)
	w.run, w.other, w.written = w.other[:0], run, written
	w.parts, w.spare = w.spare[:0], parts
	go func() { written <- writeParts(w.dst, run, parts) }()
	return nil
}

// writeParts writes what lies side by side at once.
func writeParts(dst blockdev.File, run []byte, parts []part) error {
	for _, p := range parts {
		if _, err := dst.WriteAt(run[:p.size], p.at); err != nil {
			return err
		}
		run = run[p.size:]
	}
	return nil
}

// wait waits for the write under way.
func (w *writer) wait() error {
	if w.written == nil {
		return nil
	}
	err := <-w.written
	w.written = nil
	if err != nil {
		return fmt.Errorf("%w: %w", errWrite, err)
	}
	return nil
}

// flush has all that was added on the SSD for sure.
func (w *writer) flush(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	if err := w.wait(); err != nil {
		return err
	}
	if err := w.dst.Sync(); err != nil {
		return fmt.Errorf("%w: %w", errWrite, err)
	}
	return nil
}
