package cachestream

import (
	"bufio"
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// wireBytes is how much is read from and written to a connection at once. A record of TLS and a
// frame of HTTP/2 have 16 KiB each: one by one they would cost more in system calls than
// everything else together.
const wireBytes = 128 << 10

// wired are credentials over connections that are read and written in large pieces.
type wired struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (c wired) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	w := newWire(raw)
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, w)
	return w.below(conn), info, err
}

// ServerHandshake implements credentials.TransportCredentials.
func (c wired) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	w := newWire(raw)
	conn, info, err := c.TransportCredentials.ServerHandshake(w)
	return w.below(conn), info, err
}

// Clone implements credentials.TransportCredentials.
func (c wired) Clone() credentials.TransportCredentials { return wired{c.TransportCredentials.Clone()} }

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

// below returns the connection of TLS above w, of which each write is one write of w; nil of nil.
func (w *wire) below(conn net.Conn) net.Conn {
	if conn == nil {
		return nil
	}
	return &record{Conn: conn, wire: w}
}

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
	_, err := w.Conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// record is a connection of TLS. It has one writer at a time, as gRPC has it.
type record struct {
	net.Conn
	wire *wire
}

// Write implements net.Conn.
func (r *record) Write(p []byte) (int, error) {
	r.wire.hold()
	n, err := r.Conn.Write(p)
	if werr := r.wire.release(); werr != nil {
		return 0, werr
	}
	return n, err
}

// Close implements net.Conn. As TLS does, it says no farewell behind a write that waits for the
// other side, but ends that.
func (r *record) Close() error {
	if !r.wire.mu.TryLock() {
		return r.wire.Conn.Close()
	}
	r.wire.mu.Unlock()
	return r.Conn.Close()
}

// dialer notices by TCP that the other side is gone, within goneAfter: gRPC's own way looks at
// the clock for each frame.
func dialer() func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: goneAfter / 2, Interval: time.Second, Count: int(goneAfter / 2 / time.Second)},
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if cerr := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(goneAfter.Milliseconds()))
			}); cerr != nil {
				return cerr
			}
			return err
		},
	}
	return func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
}
