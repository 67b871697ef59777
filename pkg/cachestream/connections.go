package cachestream

import (
	"net"
	"net/netip"
	"sync"
)

// maxConnections bounds the connections of all other machines, and maxPerAddress those of one.
const maxConnections, maxPerAddress = 256, 32

// connections counts those that are open. Whoever has too many is cut off at once, so that
// strangers are in nobody's way for long.
type connections struct {
	mu   sync.Mutex
	open int
	from map[netip.Addr]int
}

func newConnections() *connections { return &connections{from: map[netip.Addr]int{}} }

// add counts a connection from an address, unless there are too many.
func (c *connections) add(at netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= maxConnections || c.from[at] >= maxPerAddress {
		return false
	}
	c.open++
	c.from[at]++
	return true
}

func (c *connections) remove(at netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
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
