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

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// window is HTTP/2's, per stream and connection: what may be on its way, in bytes.
	window = 2 << 20
	// maxHeader bounds the head of a call, and maxRequest its message, in bytes: it has
	// room for a bit of each chunk.
	maxHeader, maxRequest = 32 << 10, maxSkip + 4<<10
	// maxReply has room for a piece or a part of the list, and what is around it.
	maxReply = MaxPieceBytes + 4<<10
	// A connection that says nothing is asked after aliveEvery, and gone after aliveTimeout
	// more; one without a call after idle; one whose handshake takes longer than handshake.
	aliveEvery, aliveTimeout, idle, handshake = 5 * time.Second, 5 * time.Second, time.Minute, 10 * time.Second
	// callsPerConnection bounds the calls of one connection at a time.
	callsPerConnection = 16
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
	// listening are the open listeners, served those of them that were given to gRPC.
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
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
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
	g := grpc.NewServer(
		grpc.Creds(wired{credentials.NewTLS(serverTLS(s.cert))}), grpc.WriteBufferSize(wireBytes),
		grpc.ConnectionTimeout(handshake),
		grpc.MaxConcurrentStreams(callsPerConnection),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxReply), grpc.MaxHeaderListSize(maxHeader),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: aliveEvery, Timeout: aliveTimeout, MaxConnectionIdle: idle}),
		grpc.StreamInterceptor(s.intercept(klog.FromContext(ctx))),
		grpc.WaitForHandlers(true),
	)
	streampb.RegisterCacheStreamServer(g, &service{Server: s, caches: caches, log: klog.FromContext(ctx)})
	group, serving := errgroup.WithContext(ctx)
	group.Go(func() error {
		passes.Repeat(serving, listenEvery, func(ctx context.Context) error {
			err := s.Listen(ctx)
			s.serve(ctx, g, group)
			return err
		}, func(err error) {
			klog.FromContext(ctx).Error(err, "Caches are not sent from every address of this node")
		})
		return nil
	})
	group.Go(func() error {
		<-serving.Done()
		g.Stop() // closes the connections, and waits for the calls
		return nil
	})
	err := group.Wait()
	s.close()
	return err
}

// serve gives gRPC the listeners that it has not.
func (s *Server) serve(ctx context.Context, g *grpc.Server, group *errgroup.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, l := range s.listening {
		if s.served[l] {
			continue
		}
		s.served[l] = true
		klog.FromContext(ctx).Info("Sending caches to other nodes", "address", l.Addr().String())
		group.Go(func() error {
			err := g.Serve(s.conns.on(l))
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.listening, at)
			delete(s.served, l)
			if err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Listening for streams has ended; it is tried again", "address", at.String())
			}
			return nil
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
