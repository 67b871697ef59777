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
	gone  bool
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
	if !w.keep(near, far) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { w.carry(far, near, func(int) {}) })
	both.Go(func() { w.carry(near, far, w.sent) })
	both.Wait()
}

// keep notes connections, unless the wire is gone.
func (w *wire) keep(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		for _, c := range conns {
			_ = c.Close()
		}
		return false
	}
	w.conns = append(w.conns, conns...)
	return true
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
	w.gone = true
	for _, c := range w.conns {
		_ = c.Close()
	}
}

// wireCut is for how long the nodes are cut apart at most: longer than the new node waits for a source
// that sends nothing (pkg/cachestream, goneAfter), shorter than it asks again in vain.
const wireCut = 40 * time.Second

// cutStream: the nodes are cut apart in the middle of a stream under load, for less time than the
// new node waits for a source that is silent, or for more. The stream goes on after that, from the
// source node.
func (c *campaign) cutStream() {
	c.leave()
	source := c.n.streams
	source.wires, source.cutAfter = nil, 128<<10+c.r.IntN(512<<10)
	defer source.unwire()
	c.streamTo()
	if len(source.wires) == 0 {
		c.must(checker.LossNothing)
		c.release()
		return // the cache was not worth a stream
	}
	w := source.wires[len(source.wires)-1]
	end := c.begin(c.load(c.r))
	stop := c.n.runHydrations(c.t.Context())
	felt := false
	select {
	case <-w.cut:
		felt = true
		time.Sleep(time.Duration(c.r.Int64N(int64(wireCut))))
	case <-time.After(20 * time.Second): // it had less to send
		c.counts[c.kind].streamed = 0
	}
	w.heal()
	mustPass(c.t, "stream", c.n.hydrated(c.t.Context(), c.req.ID))
	stop()
	end()
	if from := c.n.Moves.(*pair).from; felt && from != volume.FromPeer {
		c.t.Errorf("%s: after the nodes were cut apart the rest came from %q", c.mode, from)
	}
	c.must(checker.LossNothing)
	c.release()
}

// unwire takes the wires away, and lays no more.
func (s *streamServer) unwire() {
	s.cutAfter = 0
	for _, w := range s.wires {
		w.close()
	}
}

// wired is a source behind a new wire.
func (s *streamServer) wired(src volume.StreamSource) (volume.StreamSource, error) {
	w, err := newWire(s.ctx, src.Addresses[0], s.cutAfter)
	if err != nil {
		return src, err
	}
	s.wires, src.Addresses = append(s.wires, w), []string{w.l.Addr().String()}
	return src, nil
}
