//go:build kernel

package kernel

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/nearflash/nearflash/e2e/checker"
	"github.com/nearflash/nearflash/pkg/volume"
)

func init() {
	disasters["nodes cut apart during a stream"] = (*campaign).cutStream
}

// wire lies between a node that sends streams and those that receive them. Cut, nothing comes
// through either way, and nobody is told: a connection that is there hangs, a new one too.
type wire struct {
	to string
	l  net.Listener

	mu sync.Mutex
	// whole is closed as long as the wire is not cut.
	whole chan struct{}
	// left is how many bytes come through until it is cut, if they are more than none.
	left int
	// cut is closed when it is cut for the first time.
	cut   chan struct{}
	conns []net.Conn
}

// newWire lays a wire to a server, which is cut after some bytes that the server sent.
func newWire(ctx context.Context, to string, bytes int) (*wire, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{to: to, l: l, whole: make(chan struct{}), left: bytes, cut: make(chan struct{})}
	close(w.whole)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.connect(ctx, c)
		}
	}()
	return w, nil
}

func (w *wire) connect(ctx context.Context, near net.Conn) {
	far, err := new(net.Dialer).DialContext(ctx, "tcp", w.to)
	if err != nil {
		_ = near.Close() // refused
		return
	}
	w.mu.Lock()
	w.conns = append(w.conns, near, far)
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.carry(far, near, func(int) {}) })
	both.Go(func() { w.carry(near, far, w.sent) })
	both.Wait()
}

// carry takes what one end says to the other one, and its end.
func (w *wire) carry(to, from net.Conn, sent func(int)) {
	defer func() { _ = errors.Join(to.Close(), from.Close()) }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		sent(n)
		w.mu.Lock()
		whole := w.whole
		w.mu.Unlock()
		<-whole
		if _, writeErr := to.Write(buf[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// sent counts what comes from the server.
func (w *wire) sent(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left <= 0 {
		return
	}
	if w.left -= n; w.left <= 0 {
		w.whole = make(chan struct{})
		close(w.cut)
	}
}

// heal mends the wire for good.
func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = 0
	select {
	case <-w.whole:
	default:
		close(w.whole)
	}
}

// close takes the wire away.
func (w *wire) close() {
	w.heal()
	_ = w.l.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
}

// cutStream: the nodes are cut apart in the middle of a stream under load, for less time than the
// source node's server waits for an answer, or for more. The stream goes on after that.
func (c *campaign) cutStream() {
	c.leave()
	source := c.n.streams
	source.wire, source.cutAfter = nil, 128<<10+c.r.IntN(1<<20)
	defer func() { source.cutAfter = 0 }()
	c.streamTo()
	w := source.wire
	if w == nil {
		return // the cache was not worth a stream
	}
	defer w.close()
	end := c.begin(c.load(c.r))
	stop := c.n.runHydrations(c.t.Context())
	select {
	case <-w.cut:
	case <-time.After(20 * time.Second): // it had less to send
		c.counts[c.kind].streamed--
	}
	time.Sleep(time.Duration(c.r.IntN(15_000)) * time.Millisecond)
	w.heal()
	stop()
	c.wantHydrated()
	end()
	c.must(checker.LossNothing)
	c.release()
}

// wired is a source behind a new wire.
func (s *streamServer) wired(src volume.StreamSource) (volume.StreamSource, error) {
	w, err := newWire(s.ctx, src.Addresses[0], s.cutAfter)
	if err != nil {
		return src, err
	}
	s.wire, src.Addresses = w, []string{w.l.Addr().String()}
	return src, nil
}
