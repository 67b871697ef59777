package checker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Load says how a session writes.
type Load struct {
	// Rand decides which blocks are written.
	Rand *rand.Rand
	// Batch is the number of writes at the same time, 16 if it is 0.
	Batch int
	// FlushEvery is the number of batches between two flushes; 0 is never.
	FlushEvery int
	// Hot is the number of blocks, from the first, that most writes go to.
	Hot int64
	// Pause is between two batches: a machine may need time for its other work.
	Pause time.Duration
}

// Session drives one Serve and notes in the history what it answers.
type Session struct {
	h   *History
	in  io.WriteCloser
	end chan struct{} // closed when the output has ended

	mu       sync.Mutex
	dying    bool
	flushes  uint64
	failures int
	acked    int
	read     []Content
	answered chan string // F, E and R, and one token for each write
	err      error
}

// Start begins a session with a Serve whose standard input and output these are.
func Start(h *History, in io.WriteCloser, out io.Reader) *Session {
	s := &Session{h: h, in: in, end: make(chan struct{}), answered: make(chan string, 1024)}
	go s.listen(out)
	return s
}

// ErrEnded is returned when the other side has gone away.
var ErrEnded = errors.New("the session has ended")

func (s *Session) listen(out io.Reader) {
	defer close(s.end)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if err := s.hear(lines.Text()); err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
			return
		}
	}
}

func (s *Session) hear(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	number, detail, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return fmt.Errorf("answer %q: %w", line, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch word {
	case "a":
		s.acked++
		err = s.h.Ack(n)
	case "e":
		s.failures++
		if !s.dying {
			// Of a machine that is dying, what has failed was never answered.
			err = s.h.Fail(n)
		}
	case "F":
		s.h.Flushed()
	case "E":
		s.failures++
	case "v":
		var c Content
		if c, err = parseContent(detail); err == nil && n != uint64(len(s.read)) {
			err = fmt.Errorf("block %d was read after %d others", n, len(s.read))
		}
		s.read = append(s.read, c)
		return err
	case "R":
	default:
		return fmt.Errorf("answer %q", line)
	}
	select {
	case s.answered <- word:
	default:
		return errors.New("more answers than questions")
	}
	return err
}

// Run writes until ctx ends, and returns when everything was answered.
func (s *Session) Run(ctx context.Context, l Load) error {
	for i := 1; ctx.Err() == nil; i++ {
		if err := s.Write(l.pick(s.h.Blocks())...); err != nil {
			return err
		}
		if l.FlushEvery > 0 && i%l.FlushEvery == 0 {
			if err := s.Flush(); err != nil {
				return err
			}
		}
		if l.Pause > 0 {
			time.Sleep(l.Pause)
		}
	}
	return nil
}

// pick chooses the blocks of one batch, none twice.
func (l Load) pick(blocks int64) []int64 {
	n := l.Batch
	if n == 0 {
		n = 16
	}
	seen := map[int64]bool{}
	var out []int64
	for len(out) < n {
		at := l.Rand.Int64N(blocks)
		if l.Hot > 0 && l.Rand.IntN(5) > 0 {
			at = l.Rand.Int64N(min(l.Hot, blocks))
		}
		if !seen[at] {
			seen[at] = true
			out = append(out, at)
		}
	}
	return out
}

// Write writes blocks at the same time and waits for the answers. None may be named
// twice. A write that fails is noted and no error.
func (s *Session) Write(at ...int64) error {
	return s.ask(s.h.order(at), len(at))
}

// Order is one batch of a load for a Serve that nobody talks to: the writes count as
// under way until somebody notes their answers.
func (h *History) Order(l Load) string { return h.order(l.pick(h.Blocks())) }

func (h *History) order(at []int64) string {
	var b strings.Builder
	b.WriteString("w")
	for _, n := range at {
		fmt.Fprintf(&b, " %d:%d", h.Issue(n), n)
	}
	return b.String()
}

// Flush makes everything acknowledged durable. One that fails is noted and no error.
func (s *Session) Flush() error {
	s.flushes++
	return s.ask(fmt.Sprintf("f %d", s.flushes), 1)
}

// Read reads every block.
func (s *Session) Read() ([]Content, error) {
	s.mu.Lock()
	s.read = nil
	s.mu.Unlock()
	if err := s.ask(fmt.Sprintf("r 0 %d", s.h.Blocks()), 1); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read, nil
}

func (s *Session) ask(line string, answers int) error {
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	for range answers {
		select {
		case <-s.answered:
		case <-s.end:
			s.mu.Lock()
			defer s.mu.Unlock()
			return fmt.Errorf("%w: %w", ErrEnded, errors.Join(io.EOF, s.err))
		}
	}
	return nil
}

// Dying says that the machine of the other side is about to be ended. What fails from
// now on counts as never answered.
func (s *Session) Dying() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dying = true
}

// Counts returns how many writes were acknowledged, and how many writes and flushes
// failed.
func (s *Session) Counts() (acked, failed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked, s.failures
}

// Close ends the other side's input and waits for its end.
func (s *Session) Close() error {
	err := s.in.Close()
	<-s.end
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(err, s.err)
}
