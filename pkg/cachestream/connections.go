package cachestream

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/peer"
)

// maxConnections bounds the connections of all other machines, and maxPerAddress those of one.
const maxConnections, maxPerAddress = 256, 32

// connections are those that are open. Whoever has too many is cut off at once, so that
// strangers are in nobody's way for long.
type connections struct {
	mu   sync.Mutex
	open map[string]net.Conn
	from map[netip.Addr]int
}

func newConnections() *connections {
	return &connections{open: map[string]net.Conn{}, from: map[netip.Addr]int{}}
}

// on returns a listener whose connections are counted.
func (c *connections) on(l net.Listener) net.Listener { return &listener{Listener: l, conns: c} }

// cut closes the connection that a call came over.
func (c *connections) cut(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil || p.LocalAddr == nil {
		return
	}
	c.mu.Lock()
	conn := c.open[ends(p.Addr, p.LocalAddr)]
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // that is what is wanted, and the other side hears of it
	}
}

func ends(remote, local net.Addr) string { return remote.String() + " " + local.String() }

func (c *connections) add(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := addressOf(conn.RemoteAddr())
	if len(c.open) >= maxConnections || c.from[at] >= maxPerAddress {
		return false
	}
	c.open[ends(conn.RemoteAddr(), conn.LocalAddr())] = conn
	c.from[at]++
	return true
}

func (c *connections) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, ends(conn.RemoteAddr(), conn.LocalAddr()))
	at := addressOf(conn.RemoteAddr())
	if c.from[at]--; c.from[at] == 0 {
		delete(c.from, at)
	}
}

// addressOf is a machine's address, the zero address if that is not known.
func addressOf(remote net.Addr) netip.Addr {
	if tcp, ok := remote.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

type listener struct {
	net.Listener

	conns *connections
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		counted := &connection{Conn: conn, conns: l.conns}
		if l.conns.add(counted) {
			return counted, nil
		}
		_ = conn.Close() // nothing was said over it
	}
}

type connection struct {
	net.Conn

	conns *connections
	once  sync.Once
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.once.Do(func() { c.conns.remove(c) })
	return c.Conn.Close()
}
