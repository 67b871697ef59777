package cachestream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

// wireBytes is how much is read from and written to a connection at once. A record of TLS has 16 KiB:
// one by one they would cost more in system calls than everything else together.
const wireBytes = 128 << 10

// wire is the connection below TLS.
type wire struct {
	net.Conn
	in *bufio.Reader

	mu sync.Mutex
	// held tells that what is written waits in out for more.
	held bool
	out  []byte
}

func newWire(raw net.Conn) *wire { return &wire{Conn: raw, in: bufio.NewReaderSize(raw, wireBytes)} }

// Read implements net.Conn.
func (w *wire) Read(p []byte) (int, error) { return w.in.Read(p) }

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.held {
		return w.Conn.Write(p)
	}
	w.out = append(w.out, p...)
	if len(w.out) >= wireBytes {
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = true
}

// release writes what was held.
func (w *wire) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = false
	return w.flush()
}

func (w *wire) flush() error {
	_, err := w.Conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// secured is a connection of TLS above a wire. It has one reader and one writer at a time.
type secured struct {
	net.Conn
	wire *wire
}

// send writes parts one behind another, with as few system calls as they take. Errors: lostError.
func (c *secured) send(parts ...[]byte) error {
	c.wire.hold()
	var err error
	for _, p := range parts {
		if _, err = c.Write(p); err != nil {
			break
		}
	}
	if err = errors.Join(err, c.wire.release()); err != nil {
		return lostError{err}
	}
	return nil
}

// message writes a message, with what follows it. Errors: lostError.
func (c *secured) message(m proto.Message, data ...[]byte) error {
	var head bytes.Buffer
	if _, err := protodelim.MarshalTo(&head, m); err != nil {
		return err
	}
	return c.send(append([][]byte{head.Bytes()}, data...)...)
}

// Close implements net.Conn. As TLS does, it says no farewell behind a write that waits for the
// other side, but ends that.
func (c *secured) Close() error {
	if !c.wire.mu.TryLock() {
		return c.wire.Conn.Close()
	}
	c.wire.mu.Unlock()
	return c.Conn.Close()
}

// inbound is what comes over a connection: messages, and what follows them.
type inbound struct {
	from io.Reader
	// heard is called when something has come.
	heard func()
	// err is why no more comes.
	err error
}

// Read implements io.Reader.
func (in *inbound) Read(p []byte) (int, error) {
	n, err := in.from.Read(p)
	if n > 0 {
		in.heard()
	}
	if err != nil {
		in.err = err
	}
	return n, err
}

// ReadByte implements io.ByteReader.
func (in *inbound) ReadByte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(in, b[:])
	return b[0], err
}

// message reads the next message, which has so many bytes at most. Errors: lostError if the connection
// has ended, else ErrBroken.
func (in *inbound) message(m proto.Message, most int64) error {
	err := protodelim.UnmarshalOptions{MaxSize: most}.UnmarshalFrom(in, m)
	switch {
	case err == nil:
		return nil
	case in.err == nil:
		return broken("%v", err)
	}
	return in.lost()
}

// whole fills b with what follows a message. Errors: lostError.
func (in *inbound) whole(b []byte) error {
	if _, err := io.ReadFull(in, b); err != nil {
		return in.lost()
	}
	return nil
}

// lost is the error of a connection of which no more comes.
func (in *inbound) lost() error {
	if errors.Is(in.err, io.EOF) {
		return lostError{io.ErrUnexpectedEOF}
	}
	return lostError{in.err}
}

// lostError is an error of a connection.
type lostError struct{ error }

// Unwrap returns it.
func (e lostError) Unwrap() error { return e.error }

// dialer notices by TCP that the other side is gone, within goneAfter.
func dialer() *net.Dialer {
	return &net.Dialer{KeepAliveConfig: alive, Control: givesUp(goneAfter)}
}

// alive asks a connection that says nothing whether the other side is still there.
var alive = net.KeepAliveConfig{Enable: true, Idle: goneAfter / 2, Interval: time.Second, Count: int(goneAfter / 2 / time.Second)}

// listen listens at an address. The connections to it end after stuckAfter without an answer, or in
// which the other side has read nothing.
func listen(ctx context.Context, at string) (net.Listener, error) {
	l := &net.ListenConfig{KeepAliveConfig: alive, Control: givesUp(stuckAfter)}
	l.SetMultipathTCP(false) // which has no such time
	return l.Listen(ctx, "tcp", at)
}

// givesUp has TCP end a connection that waits for the other side for so long (tcp(7), TCP_USER_TIMEOUT).
func givesUp(after time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
		}); cerr != nil {
			return cerr
		}
		return err
	}
}
