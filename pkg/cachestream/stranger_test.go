package cachestream

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stranger is a connection of somebody who has a key.
func stranger(t *testing.T, n *node, protocols ...string) *secured {
	t.Helper()
	raw, err := net.Dial("tcp", n.Source().Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(raw)
	conn := &secured{Conn: tls.Client(w, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{identityOf("node-b").cert}, NextProtos: protocols}), wire: w}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// shake makes the handshake of a connection: what is sent before it would wait for more.
func shake(c *secured) error { return c.Conn.(*tls.Conn).HandshakeContext(context.Background()) }

// shaken makes it, and says something behind it.
func shaken(says func(*secured) error) func(*secured) error {
	return func(c *secured) error {
		if err := shake(c); err != nil {
			return err
		}
		return says(c)
	}
}

// wantClosed reads until the other side has closed the connection, and returns what it has said.
func wantClosed(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	said, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
	return said
}

// TestStrangers: who shows nothing is cut off without an answer, and who shows too much at once.
func TestStrangers(t *testing.T) {
	patient := startNode(t, newCache(chunk, 3), nil)
	hasty := startNode(t, newCache(chunk, 3), func(cfg *ServerConfig) { cfg.hearing = 300 * time.Millisecond })
	cases := map[string]struct {
		n    *node
		says func(*secured) error
	}{
		"a handshake":       {hasty, shake},
		"half a call":       {hasty, shaken(func(c *secured) error { return c.send([]byte{100, 1, 2, 3}) })},
		"a call too large":  {patient, shaken(func(c *secured) error { return c.message(&streampb.Call{Token: strings.Repeat("x", maxCall)}) })},
		"no call":           {patient, shaken(func(c *secured) error { return c.send([]byte("GET / HTTP/1.1\r\n" + strings.Repeat("X", 200))) })},
		"a length of bytes": {patient, shaken(func(c *secured) error { return c.send([]byte(strings.Repeat("\xff", 20))) })},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := stranger(t, tc.n, protocol)
			if tc.n == patient { // sooner than for want of a call
				if err := conn.SetDeadline(time.Now().Add(handshake / 2)); err != nil {
					t.Fatal(err)
				}
			}
			_ = tc.says(conn) // it may be cut off before it has said all
			if said := wantClosed(t, conn); len(said) > 0 {
				t.Errorf("it is answered %q", said)
			}
		})
	}
	raw, err := net.Dial("tcp", hasty.Source().Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	if err := raw.SetDeadline(time.Now().Add(handshake / 2)); err != nil {
		t.Fatal(err)
	}
	if said := wantClosed(t, raw); len(said) > 0 {
		t.Errorf("who says nothing is answered %q", said)
	}
}

// watched counts who wants to hear of a context's end.
type watched struct {
	context.Context
	watches atomic.Int32
}

// AfterFunc is what context.AfterFunc calls.
func (w *watched) AfterFunc(f func()) func() bool {
	w.watches.Add(1)
	stop := context.AfterFunc(w.Context, f)
	return func() bool {
		w.watches.Add(-1)
		return stop()
	}
}

// TestNothingKept: of a connection that is over a server keeps nothing, however many there were.
func TestNothingKept(t *testing.T) {
	n, err := NewServer(ServerConfig{Account: account, Reviewer: &tokens{}, Keys: noKeys})
	if err != nil {
		t.Fatal(err)
	}
	ctx := &watched{Context: t.Context()}
	here, there := net.Pipe()
	_ = there.Close()
	(&service{Server: n, conf: serverTLS(n.cert)}).answer(ctx, here, netip.Addr{})
	if left := ctx.watches.Load(); left != 0 {
		t.Errorf("%d watches of the server's end are left", left)
	}
}

// TestHearing: the time for a call ends with it.
func TestHearing(t *testing.T) {
	c := newCache(chunk, 5)
	n := startNode(t, c, func(cfg *ServerConfig) { cfg.hearing = time.Second })
	got := &received{}
	err := client(t, "node-b").Chunks(t.Context(), n.Source(), id, move, volume.Wanted{}, 160<<10, chunk, got.verify(t, c))
	if err != nil {
		t.Error(err)
	}
	got.wantPlaces(t, 0, 5)
}

// TestLoud: a stranger does not fill the log, and a node's plugin no more than a line with it.
func TestLoud(t *testing.T) {
	api := &tokens{}
	for name, tc := range map[string]struct {
		token  string
		errors int
	}{"a stranger": {"x", 0}, "a node": {tokenOf("node-b"), 1}} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, newCache(chunk, 3), func(cfg *ServerConfig) {
				if tc.errors == 0 {
					cfg.Reviewer = api
				}
			})
			conn := stranger(t, n, protocol)
			if err := shake(conn); err != nil {
				t.Fatal(err)
			}
			if err := conn.message(&streampb.Call{Token: tc.token, Move: &streampb.Move{VolumeId: strings.Repeat("x", 120<<10), Name: "m", Uid: "u"}, Wanted: &streampb.Call_Map{}}); err != nil {
				t.Fatal(err)
			}
			wantClosed(t, conn)
			n.stop()
			<-n.done
			n.done <- nil
			log := n.log.String()
			if len(log) > 4<<10 || strings.Count("\n"+log, "\nE") != tc.errors {
				t.Errorf("%d bytes of log: %.2000s", len(log), log)
			}
		})
	}
}

// TestTalkative: who says more than a call is let go.
func TestTalkative(t *testing.T) {
	c := newCache(chunk, 3)
	c.read = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	n := startNode(t, c, nil)
	conn := stranger(t, n, protocol)
	call := &streampb.Call{Token: tokenOf("node-b"), Move: moveMessage(id, move), Wanted: &streampb.Call_Chunks{Chunks: &streampb.ChunksRequest{}}}
	if err := errors.Join(shake(conn), conn.message(call)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream is open", func() bool { return n.InUse(move) })
	if err := conn.send([]byte("and more")); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, conn)
	eventually(t, "the cache is closed", func() bool { return c.closed.Load() == 1 && !n.InUse(move) })
}

// TestProtocol: neither side takes another protocol, or none, for its own.
func TestProtocol(t *testing.T) {
	n := startNode(t, newCache(chunk, 3), nil)
	for _, protocols := range [][]string{nil, {"h2"}, {"nearflash-stream/1"}} {
		conn := stranger(t, n, protocols...)
		if shake(conn) == nil { // in TLS 1.3 the server's word comes after it
			_ = conn.message(&streampb.Call{})
		}
		if said := wantClosed(t, conn); len(said) > 0 {
			t.Errorf("%q: it is answered %q", protocols, said)
		}
		conf := serverTLS(n.cert)
		conf.NextProtos, conf.VerifyConnection = protocols, nil
		l, err := tls.Listen("tcp", "127.0.0.1:0", conf)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			if conn, err := l.Accept(); err == nil {
				_ = conn.(*tls.Conn).HandshakeContext(context.Background())
				_ = conn.Close()
			}
		}()
		_, err = client(t, "node-b").Map(t.Context(), volume.StreamSource{Addresses: []string{l.Addr().String()}, PublicKey: n.PublicKey()}, id, move)
		wantErr(t, err, volume.ErrUnavailable)
		if !strings.Contains(err.Error(), "protocol") && !strings.Contains(err.Error(), protocol) {
			t.Errorf("%q: %v", protocols, err)
		}
	}
}

// TestGivesUp: TCP ends a connection whose other side is gone, on both sides; what is accepted has it
// from its listener.
func TestGivesUp(t *testing.T) {
	l, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	out, err := dialer().DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	for conn, want := range map[net.Conn]time.Duration{out: goneAfter, in: stuckAfter} {
		c, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Control(func(fd uintptr) {
			if ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); err != nil || ms != int(want.Milliseconds()) {
				t.Errorf("it gives up after %d ms, want %s (%v)", ms, want, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// listener is one of which the first Accept fails.
type listener struct {
	net.Listener
	fails chan error
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case err := <-l.fails:
		return nil, err
	default:
		return l.Listener.Accept()
	}
}

// TestAccept: a node that has no file descriptor to spare for a moment waits, and goes on listening; what is
// wrong with the listener ends it.
func TestAccept(t *testing.T) {
	accept := func(t *testing.T, errs ...error) (n *Server, l *listener, end context.CancelFunc, ended chan error) {
		real, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l = &listener{real, make(chan error, len(errs))}
		for _, err := range errs {
			l.fails <- err
		}
		if n, err = NewServer(ServerConfig{Account: account, Reviewer: &tokens{}, Keys: noKeys}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		serving := &sync.WaitGroup{}
		ended = make(chan error, 1)
		go func() {
			err := (&service{Server: n, conf: serverTLS(n.cert)}).accept(ctx, l, serving)
			serving.Wait()
			if _, err := real.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the listener is open: %v", err)
			}
			ended <- err
		}()
		t.Cleanup(cancel)
		return n, l, cancel, ended
	}
	t.Run("goes on", func(t *testing.T) {
		n, l, end, ended := accept(t, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)})
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a connection is taken", func() bool {
			n.conns.mu.Lock()
			defer n.conns.mu.Unlock()
			return n.conns.open == 1
		})
		_ = conn.Close()
		end()
		<-ended
	})
	t.Run("waits", func(t *testing.T) {
		many := slices.Repeat([]error{unix.ENFILE}, 1000)
		_, l, end, ended := accept(t, many...)
		eventually(t, "the first one has failed", func() bool { return len(l.fails) < len(many) })
		time.Sleep(50 * time.Millisecond)
		if tried := len(many) - len(l.fails); tried > 50 {
			t.Errorf("tried %d times at once", tried)
		}
		end()
		<-ended
	})
	t.Run("ends", func(t *testing.T) {
		_, _, _, ended := accept(t, unix.EINVAL)
		wantErr(t, <-ended, unix.EINVAL)
	})
	for _, err := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED} {
		if !exhausted(&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}) {
			t.Errorf("%v ends the listener", err)
		}
	}
}

// TestFormat: the bytes that nodes of one protocol exchange.
func TestFormat(t *testing.T) {
	p := &pipe{}
	w := newWire(p)
	conn := &secured{Conn: w, wire: w}
	for _, tc := range []struct {
		m    proto.Message
		data string
		want string
	}{
		{&streampb.Call{Token: "t", Move: &streampb.Move{VolumeId: "v", Name: "m", Uid: "u"}, Wanted: &streampb.Call_Map{Map: &streampb.MapRequest{}}}, "", "100a0174120" + "90a01761201" + "6d1a0175" + "1a00"},
		{&streampb.Call{Wanted: &streampb.Call_Chunks{Chunks: &streampb.ChunksRequest{From: 1, Bandwidth: 2, Skip: []byte{3}}}}, "", "0922070801100" + "21a0103"},
		{&streampb.MapReply{Geometry: geometry(64, 1), Blocks: []uint64{7}, Places: []uint32{2}}, "", "160a0408401001" + "12080700000000000000" + "1a0402000000"},
		{&streampb.ChunksReply{Chunks: &streampb.Chunks{Numbers: []uint32{1}, Blocks: []uint64{7}, CachePlaces: []uint32{2}, Crc32C: []uint32{3}}}, "data", "1e121c" + "0a0401000000" + "12080700000000000000" + "1a0402000000" + "220403000000" + "64617461"},
	} {
		p.writes = nil
		if err := conn.message(tc.m, []byte(tc.data)); err != nil || len(p.writes) != 1 {
			t.Fatalf("%d writes, %v", len(p.writes), err)
		}
		if got := hex.EncodeToString(p.writes[0]); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.m, got, tc.want)
		}
	}
	// An End is the same in both kinds of reply.
	raw, err := proto.Marshal(&streampb.MapReply{End: endOf(errEnded)})
	if err != nil {
		t.Fatal(err)
	}
	var r streampb.ChunksReply
	if err := proto.Unmarshal(raw, &r); err != nil || r.GetEnd().GetCode() != streampb.Code_CODE_NOT_FOUND {
		t.Errorf("%v, %v", r.GetEnd(), err)
	}
}
