package cachestream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// maxCall bounds a call, in bytes: it has room for a token, and a bit of each chunk.
	maxCall = maxToken + maxSkip + 4<<10
	// maxReply has room for a part of the list, and what is around it, in bytes.
	maxReply = blocksPerReply*12 + 4<<10
	// handshake is how long a caller may take until its call is there.
	handshake = 10 * time.Second
	// stuckAfter is how long a caller may read nothing, or not answer. It is longer than what a caller
	// does between two chunks, which may wait for the API server.
	stuckAfter = 3 * time.Minute
	// maxBuffers bounds the memory of all chunks that are being sent, in bytes.
	maxBuffers = 2 * MaxChunkBytes
	// patience is how long a stream may take to end by itself before its connection is cut.
	patience = time.Second
	// listenEvery is the pause between two tries to listen at an address.
	listenEvery = 10 * time.Second
	// burstsPerSecond: a limiter may fall behind by this part of a second, and catch up.
	burstsPerSecond = 20
)

// ServerConfig are the values of a Server.
type ServerConfig struct {
	// Addresses are where it listens.
	Addresses []netip.AddrPort
	// Reviewer knows tokens, and Account is the service account of the node plugins:
	// system:serviceaccount:NAMESPACE:NAME.
	Reviewer Reviewer
	Account  string
	// Keys returns the key by which the plugin of a node proves itself, as its CachePool has it;
	// empty if that has none.
	Keys func(ctx context.Context, node string) (string, error)
	// Bandwidth bounds all streams together, in bytes per second; 0 is no limit.
	Bandwidth int64
	// KeyFile keeps the server's key from one process to the next; empty is a key of its own for
	// each.
	KeyFile string

	// hearing takes the place of handshake in tests.
	hearing time.Duration
}

// Server sends the chunks of this node's leased caches.
type Server struct {
	cfg     ServerConfig
	cert    tls.Certificate
	key     string
	gate    *gate
	limit   *rate.Limiter
	streams *streams
	conns   *connections
	buffers *semaphore.Weighted

	mu sync.Mutex
	// listening are the open listeners, served those of them that connections are taken from.
	listening map[netip.AddrPort]net.Listener
	served    map[net.Listener]bool
}

// NewServer returns a Server, which neither listens nor serves yet.
func NewServer(c ServerConfig) (*Server, error) {
	if c.Reviewer == nil || c.Account == "" || c.Keys == nil {
		return nil, errors.New("a stream needs to know whose tokens and keys it takes")
	}
	cert, key, err := newIdentity(c.KeyFile)
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg: c, cert: cert, key: key, gate: newGate(c.Reviewer, c.Account, c.Keys, time.Now), limit: limiter(c.Bandwidth, MaxPieceBytes),
		streams: newStreams(), conns: newConnections(), buffers: semaphore.NewWeighted(maxBuffers),
		listening: map[netip.AddrPort]net.Listener{}, served: map[net.Listener]bool{},
	}, nil
}

// limiter bounds a rate in bytes per second, of pieces of at most that size; 0 is no limit.
func limiter(bandwidth int64, piece int) *rate.Limiter {
	if bandwidth <= 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(bandwidth), max(piece, int(min(bandwidth/burstsPerSecond, 1<<30))))
}

// Key is that of Source, also while the server listens nowhere.
func (s *Server) Key() string { return s.key }

// PublicKey is what the server proves itself by, as volume.StreamSource has it; "" while it
// listens nowhere.
func (s *Server) PublicKey() string { return s.Source().PublicKey }

// Source is where the server listens, and its key; empty while it listens nowhere.
func (s *Server) Source() volume.StreamSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	var at []string
	for _, l := range s.listening {
		at = append(at, l.Addr().String())
	}
	if len(at) == 0 {
		return volume.StreamSource{}
	}
	slices.Sort(at)
	return volume.StreamSource{Addresses: at, PublicKey: s.key}
}

// Listen opens what is not open yet. Connections wait until Run. An address that cannot be
// listened at is an error, and does not keep it from the others.
func (s *Server) Listen(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, at := range s.cfg.Addresses {
		if s.listening[at] != nil {
			continue
		}
		l, err := listen(ctx, at.String())
		if err != nil {
			errs = append(errs, fmt.Errorf("listen for streams: %w", err))
			continue
		}
		s.listening[at] = l
	}
	return errors.Join(errs...)
}

// Run serves caches until ctx ends, at the addresses of which Listen has opened some. It goes on
// trying the others. When it returns nobody uses a cache any more.
func (s *Server) Run(ctx context.Context, caches Caches) error {
	svc := &service{Server: s, caches: caches, conf: serverTLS(s.cert)}
	var serving sync.WaitGroup
	passes.Repeat(ctx, listenEvery, func(ctx context.Context) error {
		err := s.Listen(ctx)
		s.serve(ctx, svc, &serving)
		return err
	}, func(err error) {
		klog.FromContext(ctx).Error(err, "Caches are not sent from every address of this node")
	})
	serving.Wait()
	s.close()
	return nil
}

// serve takes connections from the listeners that nobody takes them from.
func (s *Server) serve(ctx context.Context, svc *service, serving *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, l := range s.listening {
		if s.served[l] {
			continue
		}
		s.served[l] = true
		klog.FromContext(ctx).Info("Sending caches to other nodes", "address", l.Addr().String())
		serving.Go(func() {
			err := svc.accept(ctx, l, serving)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.listening, at)
			delete(s.served, l)
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Listening for streams has ended; it is tried again", "address", at.String())
			}
		})
	}
}

// close closes what was never served.
func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, l := range s.listening {
		_ = l.Close() // no connection of it was accepted
		delete(s.listening, at)
	}
}

// End ends the streams of a move and waits until none of them uses the cache. Whoever calls it
// has seen to it that OpenLease refuses the move from now on. Errors: volume.ErrUnavailable if
// one of them has not let go when ctx ends: it reads from an SSD that does not answer.
func (s *Server) End(ctx context.Context, m volume.MoveID) error {
	list := s.streams.of(m)
	for _, st := range list {
		st.end(errEnded)
	}
	for _, st := range list {
		select {
		case <-st.done:
		case <-ctx.Done():
			return fmt.Errorf("%w: the cache of move %s is still being read: %w", volume.ErrUnavailable, m.Name, ctx.Err())
		}
	}
	return nil
}

// InUse reports whether another node is being sent the cache of a move now.
func (s *Server) InUse(m volume.MoveID) bool { return s.streams.inUse(m) }

// moveOf checks what a request names.
func moveOf(m *streampb.Move) (volume.ID, volume.MoveID, error) {
	if n := len(m.GetVolumeId()); n > volume.MaxIDLength {
		return "", volume.MoveID{}, fmt.Errorf("%w: a volume ID of %d bytes: accepted are %d", volume.ErrInvalid, n, volume.MaxIDLength)
	}
	id, err := volume.ParseID(m.GetVolumeId())
	if err != nil {
		return "", volume.MoveID{}, err
	}
	move := volume.MoveID{Name: m.GetName(), UID: m.GetUid()}
	if move.Name == "" || move.UID == "" || len(move.Name)+len(move.UID) > maxText {
		return "", volume.MoveID{}, fmt.Errorf("%w: the request names no move", volume.ErrInvalid)
	}
	return id, move, nil
}
