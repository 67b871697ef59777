package cachestream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// pipe notes each write.
type pipe struct {
	net.Conn
	writes [][]byte
	fails  error
}

func (p *pipe) Write(b []byte) (int, error) {
	p.writes = append(p.writes, bytes.Clone(b))
	return len(b), p.fails
}

// pieces writes in pieces of 3 bytes, as TLS does with records.
type pieces struct{ net.Conn }

func (p pieces) Write(b []byte) (int, error) {
	for off := 0; off < len(b); off += 3 {
		if _, err := p.Conn.Write(b[off:min(off+3, len(b))]); err != nil {
			return off, err
		}
	}
	return len(b), nil
}

// TestWire: what is sent at once is one write, in order, unless it is much; what TLS says by itself
// goes at once; an error reaches the sender.
func TestWire(t *testing.T) {
	p := &pipe{}
	w := newWire(p)
	conn := &secured{Conn: pieces{w}, wire: w}
	for _, parts := range [][][]byte{{[]byte("hello, "), []byte("world")}, {[]byte("again")}} {
		if err := conn.send(parts...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write([]byte("own")); err != nil {
		t.Fatal(err)
	}
	if got := string(bytes.Join(p.writes, []byte("|"))); got != "hello, world|again|own" {
		t.Errorf("written %q", got)
	}
	p.writes = nil
	much := content(1, 3*wireBytes)
	if err := conn.send(much); err != nil || !bytes.Equal(bytes.Join(p.writes, nil), much) || len(p.writes) < 3 || len(p.writes) > 4 {
		t.Errorf("%d writes, %v", len(p.writes), err)
	}
	p.fails = errors.New("gone")
	var lost lostError
	if err := conn.send([]byte("more")); !errors.Is(err, p.fails) || !errors.As(err, &lost) {
		t.Errorf("%v, want the error", err)
	}
	if err := conn.send(much); !errors.Is(err, p.fails) {
		t.Errorf("%v, want the error", err)
	}
}

// TestWireClose: a connection whose other side does not read is closed at once, and so ends the write.
func TestWireClose(t *testing.T) {
	here, _ := net.Pipe()
	w := newWire(here)
	conn := &secured{Conn: farewell{pieces{w}, w}, wire: w}
	written := make(chan error, 1)
	go func() { written <- conn.send([]byte("nobody reads this")) }()
	eventually(t, "the write waits", func() bool {
		if w.mu.TryLock() {
			w.mu.Unlock()
			return false
		}
		return true
	})
	closed := make(chan error, 1)
	go func() { closed <- conn.Close() }()
	for range 2 {
		select {
		case err := <-closed:
			if err != nil {
				t.Error(err)
			}
		case err := <-written:
			if !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%v, want the end of the connection", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("it waits for who does not read")
		}
	}
}

// farewell says something before it closes, as TLS does.
type farewell struct {
	net.Conn
	w *wire
}

func (f farewell) Close() error {
	if _, err := io.WriteString(f.w, "bye"); err != nil {
		return err
	}
	return f.Conn.Close()
}
