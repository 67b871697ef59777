// Package loopback is for tests of programs that listen by themselves: addresses for them, and what
// they answer.
package loopback

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
)

// addresses counts what FreeAddress has given.
var addresses atomic.Uint32

// FreeAddress is an address that nobody takes before it is listened on: it has an IP
// of the loopback network of its own, which no connection begins at.
func FreeAddress(t testing.TB) string {
	t.Helper()
	own := uint32(os.Getpid())<<8 + addresses.Add(1)
	ip := net.IPv4(127, byte(own>>16)|1, byte(own>>8), byte(own))
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(ip.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Answer returns status and body, or 0 and an error's text.
func Answer(t testing.TB, client *http.Client, req *http.Request) (code int, body string) {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
