package checker

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// memory is a device that fails when it is told to.
type memory struct {
	mu      sync.Mutex
	data    []byte
	failing bool
	flushes int
}

var errMemory = errors.New("input/output error")

func (m *memory) access(p, q []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing {
		return 0, errMemory
	}
	return copy(p, q), nil
}

func (m *memory) ReadAt(p []byte, at int64) (int, error)  { return m.access(p, m.data[at:]) }
func (m *memory) WriteAt(p []byte, at int64) (int, error) { return m.access(m.data[at:], p) }

func (m *memory) Flush() error {
	m.flushes++
	_, err := m.access(nil, nil)
	return err
}

func (m *memory) fail(failing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = failing
}

func begin(h *History, d device) *Session {
	in, toServe := io.Pipe()
	fromServe, out := io.Pipe()
	go func() {
		err := serve(Options{Volume: h.Volume()}, d, in, out)
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.CloseWithError(err)
	}()
	return Start(h, toServe, fromServe)
}

func judged(t *testing.T, h *History, s *Session, l Loss) Report {
	t.Helper()
	read, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.Judge(l, read)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSession(t *testing.T) {
	const blocks = 100
	d := &memory{data: make([]byte, blocks*BlockSize)}
	h := NewHistory(testVolume, blocks, Writeback)
	s := begin(h, d)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Run(ctx, Load{Rand: rand.New(rand.NewPCG(1, 1)), FlushEvery: 3, Hot: 30, Pause: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if acked, failed := s.Counts(); acked == 0 || failed != 0 || d.flushes == 0 {
		t.Errorf("%d acknowledged, %d failed, %d flushes", acked, failed, d.flushes)
	}
	if r := judged(t, h, s, LossNothing); r.Err() != nil || r.Verdicts[Acknowledged] != blocks {
		t.Errorf("%s: %v", r, r.Err())
	}
	clear(d.data[:BlockSize]) // a lost write
	if r := judged(t, h, s, LossNode); len(r.Violations) != 1 || r.Violations[0].Verdict != Stale {
		t.Errorf("%s: %v", r, r.Err())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestSessionFails(t *testing.T) {
	const blocks = 16
	d := &memory{data: make([]byte, blocks*BlockSize)}
	h := NewHistory(testVolume, blocks, Writethrough)
	s := begin(h, d)
	if err := errors.Join(s.Write(1, 2, 3), s.Flush()); err != nil {
		t.Fatal(err)
	}
	d.fail(true)
	if err := errors.Join(s.Write(2, 3, 4), s.Flush()); err != nil {
		t.Fatal(err)
	}
	if acked, failed := s.Counts(); acked != 3 || failed != 4 {
		t.Errorf("%d acknowledged, %d failed", acked, failed)
	}
	if r := judged(t, h, s, LossNothing); len(r.Violations) != blocks || r.Violations[0].Verdict != Failed {
		t.Errorf("%s: %v", r, r.Err())
	}
	d.fail(false)
	// A failed write may be there, and it may go away again.
	Encode(d.data[2*BlockSize:3*BlockSize], testVolume, 2, 4)
	if r := judged(t, h, s, LossNothing); r.Err() != nil || r.Verdicts[InFlight] != 1 {
		t.Errorf("%s: %v", r, r.Err())
	}
	Encode(d.data[2*BlockSize:3*BlockSize], testVolume, 2, 2)
	if r := judged(t, h, s, LossNothing); r.Err() != nil {
		t.Errorf("%s: %v", r, r.Err())
	}
	s.Dying()
	d.fail(true)
	if err := s.Write(5); err != nil {
		t.Fatal(err)
	}
	d.fail(false)
	if r := judged(t, h, s, LossNode); r.Err() != nil {
		t.Errorf("%s: %v", r, r.Err())
	}
	Encode(d.data[5*BlockSize:6*BlockSize], testVolume, 5, 7)
	if r := judged(t, h, s, LossNothing); len(r.Violations) != 1 || r.Violations[0].Verdict != Resurrected {
		t.Errorf("a write that was gone has come back: %s", r)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestSessionEnds(t *testing.T) {
	h := NewHistory(testVolume, 4, None)
	in, toServe := io.Pipe()
	fromServe, out := io.Pipe()
	s := Start(h, toServe, fromServe)
	go func() { _, _ = in.Read(make([]byte, 100)); _ = out.Close() }()
	if err := s.Write(1); !errors.Is(err, ErrEnded) {
		t.Errorf("write to a machine that died: %v", err)
	}
}

// TestServeFile works on a real file past the page cache.
func TestServeFile(t *testing.T) {
	h := NewHistory(testVolume, 128, None)
	in, toServe := io.Pipe()
	fromServe, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Serve(Options{Volume: testVolume, Path: filepath.Join(t.TempDir(), "blocks"), Create: true, Blocks: h.Blocks()}, in, out)
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.CloseWithError(err)
		done <- err
	}()
	s := Start(h, toServe, fromServe)
	if err := errors.Join(s.Write(0, 77, 127), s.Flush()); err != nil {
		t.Fatal(err)
	}
	if r := judged(t, h, s, LossNothing); r.Err() != nil || r.Verdicts[Acknowledged] != 128 {
		t.Errorf("%s: %v", r, r.Err())
	}
	if err := errors.Join(s.Close(), <-done); err != nil {
		t.Error(err)
	}
}
