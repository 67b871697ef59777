// Package openiscsitest has an iscsid for tests.
package openiscsitest

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// answerSize is that of all versions on machines of 64 bits.
const answerSize = 2464

// Serve answers at a socket as an iscsid whose requests have a size: it reads just that much, one
// connection after the other.
func Serve(t *testing.T, socket string, size int) {
	t.Helper()
	Handle(t, socket, func(conn net.Conn) {
		request := make([]byte, size)
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		answer := make([]byte, answerSize)
		binary.NativeEndian.PutUint32(answer, binary.NativeEndian.Uint32(request))
		copy(answer[8:], "iqn.2026-11.io.example:node")
		_, _ = conn.Write(answer) // whoever asked may be gone
	})
}

// Handle listens at a socket until the test ends, and has one connection after the other handled.
func Handle(t *testing.T, socket string, handle func(net.Conn)) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handle(conn)
			_ = conn.Close()
		}
	}()
}
