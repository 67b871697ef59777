package checker

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// readAhead is how many blocks are read at once.
const readAhead = 64

// Options say what Serve works on.
type Options struct {
	// Volume is the name in the blocks, Path the device or file.
	Volume, Path string
	// Create makes Path a file of Blocks blocks of zeros first, if it does not exist.
	Create bool
	Blocks int64
}

// Serve does what it is told on standard input and answers on standard output, line
// by line, one command after the other:
//
//	w SEQ:BLOCK...   writes the blocks at the same time: "a SEQ" for each that was
//	                 acknowledged, "e SEQ TEXT" for each that failed
//	f N              flushes (fdatasync): "F N", or "E N TEXT"
//	r FIRST COUNT    reads blocks past the page cache: "v BLOCK CONTENT" for each,
//	                 "R FIRST" at the end
//
// Everything is written and read past the page cache. It returns when the input ends.
func Serve(o Options, in io.Reader, out io.Writer) error {
	if o.Create {
		if err := create(o); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(o.Path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return serve(o, disk{f}, in, out)
}

// device is what is written to and read from.
type device interface {
	io.ReaderAt
	io.WriterAt
	Flush() error
}

type disk struct{ *os.File }

// Flush implements device.
func (d disk) Flush() error { return unix.Fdatasync(int(d.Fd())) }

func serve(o Options, d device, in io.Reader, out io.Writer) error {
	s := &server{Options: o, device: d, out: out}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if err := s.do(lines.Text()); err != nil {
			return err
		}
	}
	return lines.Err()
}

func create(o Options) error {
	f, err := os.OpenFile(o.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if os.IsExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	zeros := make([]byte, BlockSize)
	for range o.Blocks {
		if _, err := f.Write(zeros); err != nil {
			return err
		}
	}
	return f.Sync()
}

type server struct {
	Options
	device device

	mu  sync.Mutex
	out io.Writer
}

func (s *server) say(format string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := fmt.Fprintf(s.out, format+"\n", args...)
	return err
}

func (s *server) do(line string) error {
	f := strings.Fields(line)
	if len(f) < 2 {
		return fmt.Errorf("command %q", line)
	}
	switch f[0] {
	case "w":
		return s.write(f[1:])
	case "f":
		if err := s.device.Flush(); err != nil {
			return s.say("E %s %s", f[1], oneLine(err))
		}
		return s.say("F %s", f[1])
	case "r":
		var first, count int64
		if _, err := fmt.Sscan(strings.Join(f[1:], " "), &first, &count); err != nil {
			return fmt.Errorf("command %q: %w", line, err)
		}
		return s.read(first, count)
	}
	return fmt.Errorf("command %q", line)
}

func (s *server) write(what []string) error {
	errs := make([]error, len(what))
	var wg sync.WaitGroup
	for i, w := range what {
		var seq uint64
		var at int64
		if _, err := fmt.Sscanf(w, "%d:%d", &seq, &at); err != nil {
			return fmt.Errorf("write %q: %w", w, err)
		}
		wg.Go(func() { errs[i] = s.writeOne(seq, at) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // nobody listens any more
		}
	}
	return nil
}

func (s *server) writeOne(seq uint64, at int64) error {
	buf := aligned(BlockSize)
	Encode(buf, s.Volume, at, seq)
	if _, err := s.device.WriteAt(buf, at*BlockSize); err != nil {
		return s.say("e %d %s", seq, oneLine(err))
	}
	return s.say("a %d", seq)
}

func (s *server) read(first, count int64) error {
	for at := first; at < first+count; at += readAhead {
		n := min(readAhead, first+count-at)
		buf := aligned(int(n) * BlockSize)
		_, err := s.device.ReadAt(buf, at*BlockSize)
		for i := range n {
			c := s.content(buf[i*BlockSize:(i+1)*BlockSize], at+i, err)
			if err := s.say("v %d %s", at+i, c); err != nil {
				return err
			}
		}
	}
	return s.say("R %d", first)
}

// content judges one block of a read. If that failed, the block is read by itself.
func (s *server) content(buf []byte, at int64, failed error) Content {
	if failed != nil {
		buf = aligned(BlockSize)
		if _, err := s.device.ReadAt(buf, at*BlockSize); err != nil {
			return Content{Kind: Unreadable, Detail: oneLine(err)}
		}
	}
	return Decode(buf, s.Volume, at)
}

func oneLine(err error) string { return strconv.Quote(err.Error()) }
