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

// TestWire: one write above TLS is one below, in order; what TLS says by itself goes at once; an error
// reaches the writer.
func TestWire(t *testing.T) {
	p := &pipe{}
	w := newWire(p)
	tls := pieces{w}
	conn := w.below(tls)
	for _, s := range []string{"hello, world", "again"} {
		if n, err := io.WriteString(conn, s); n != len(s) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if _, err := w.Write([]byte("own")); err != nil {
		t.Fatal(err)
	}
	if got := string(bytes.Join(p.writes, []byte("|"))); got != "hello, world|again|own" {
		t.Errorf("written %q", got)
	}
	p.fails = errors.New("gone")
	if n, err := io.WriteString(conn, "more"); n != 0 || !errors.Is(err, p.fails) {
		t.Errorf("%d, %v, want the error", n, err)
	}
	if w.below(nil) != nil {
		t.Error("a connection of a handshake that failed")
	}
}

// TestWireClose: a connection whose other side does not read is closed at once, and so ends the write.
func TestWireClose(t *testing.T) {
	here, _ := net.Pipe()
	w := newWire(here)
	conn := w.below(farewell{pieces{w}, w})
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, "nobody reads this")
		written <- err
	}()
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
