//go:build kernel

package kernel

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearflash/nearflash/pkg/attach/lease"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachestream"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// streamAccount is what all plugins are for the server of streams here.
const streamAccount = "system:serviceaccount:storage:nearflash-node"

// streamServer sends the caches of one node, once it was asked to.
type streamServer struct {
	*cachestream.Server
	ctx   context.Context
	token string
	// port is a file with the port at which it listens, as each process of the plugin does.
	port string
	// sent counts the chunks that were read for other nodes.
	sent atomic.Int64
	// twins are the volumes here that other nodes ask for by another name.
	twins map[volume.ID]volume.ID
	// stop cuts all connections, as the loss of the node.
	stop context.CancelFunc

	mu    sync.Mutex
	ended chan struct{}
	// cutAfter lays a wire before whoever is told of the server from now on, which is cut after so
	// many bytes; 0 lays none.
	cutAfter int
	wires    []*wire
}

// streamKeys are those of this process's nodes, by their names.
var streamKeys sync.Map

// newStreamServer makes the server of a node, whose token is its name.
func newStreamServer(ctx context.Context, name, dir string) (*streamServer, error) {
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(name), 0o600); err != nil {
		return nil, err
	}
	at, port := netip.MustParseAddrPort("127.0.0.1:0"), filepath.Join(dir, "port")
	if text, err := os.ReadFile(port); err == nil {
		if was, err := netip.ParseAddrPort(string(text)); err == nil && free(ctx, was) {
			at = was
		}
	}
	s, err := cachestream.NewServer(cachestream.ServerConfig{
		Addresses: []netip.AddrPort{at}, Reviewer: reviewer{}, Account: streamAccount, KeyFile: filepath.Join(dir, "stream.key"),
		Keys: func(_ context.Context, node string) (string, error) {
			key, _ := streamKeys.Load(node)
			return fmt.Sprint(key), nil
		},
	})
	if err != nil {
		return nil, err
	}
	streamKeys.Store(name, s.Key())
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &streamServer{Server: s, ctx: ctx, token: token, port: port, stop: cancel}, nil
}

// free reports whether nobody listens at an address.
func free(ctx context.Context, at netip.AddrPort) bool {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return false
	}
	_ = l.Close() // nobody has connected
	return true
}

// serve begins to serve.
func (s *streamServer) serve(l *lease.Lessor) (volume.StreamSource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		if err := s.Listen(s.ctx); err != nil {
			return volume.StreamSource{}, err
		}
		if err := os.WriteFile(s.port, []byte(s.Source().Addresses[0]), 0o600); err != nil {
			return volume.StreamSource{}, err
		}
		s.ended = make(chan struct{})
		go func() {
			defer close(s.ended)
			_ = s.Run(s.ctx, cachestream.CachesOf(func(ctx context.Context, id volume.ID, m volume.MoveID, to string) (cachestream.Cache, error) {
				c, err := l.OpenStream(ctx, cmp.Or(s.twins[id], id), m, to)
				if err != nil {
					return nil, err
				}
				return counted{c, &s.sent}, nil
			}))
		}()
	}
	if s.cutAfter > 0 {
		return s.wired(s.Source())
	}
	return s.Source(), nil
}

// lose ends the server.
func (s *streamServer) lose() {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		<-s.ended
	}
}

// restartStreams is what becomes of the sending of a node whose plugin is replaced: the next one
// listens where it did.
func (n *node) restartStreams(ctx context.Context, name string) error {
	n.streams.lose()
	s, err := newStreamServer(ctx, name, n.dir)
	if err != nil {
		return err
	}
	n.streams, n.Lessor().Streams = s, s
	_, err = s.serve(n.Lessor())
	return err
}

// counted counts the chunks that are read.
type counted struct {
	cachestream.Cache

	sent *atomic.Int64
}

func (c counted) ReadChunks(ctx context.Context, i int, buf []byte) (int, error) {
	n, err := c.Cache.ReadChunks(ctx, i, buf)
	c.sent.Add(int64(n))
	return n, err
}

// reviewer is an API server for which the name of a node is its token.
type reviewer struct{}

func (reviewer) Create(_ context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: r.Spec.Audiences, User: authenticationv1.UserInfo{
		Username: streamAccount, Extra: map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {r.Spec.Token}},
	}}
	return r, nil
}

// streaming is a volume whose cache follows it by stream.
func streaming(spec volume.Spec) volume.Spec {
	spec.WarmStart.Method = volume.MethodStream
	return spec
}

// arrive stages the volume on its new node; a stream is prepared, as its map is not waited for.
func (v *movers) arrive() {
	t := v.m.t
	t.Helper()
	rec, err := v.rec.Get(t.Context(), v.req.ID)
	mustPass(t, "record", err)
	if rec.Spec.WarmStart.Method == volume.MethodStream {
		v.n.prepare(t.Context(), v.req, false)
	}
	v.stage()
	if e, err := v.n.Journal.Load(string(v.req.ID)); rec.Spec.WarmStart.Method == volume.MethodStream && (err != nil || !e.Streams() || e.State != state.Staged) {
		t.Fatalf("no stream: %+v, %v", e, err)
	}
}

// wantStreamed leads a stream to its end, and wants one ordinary cache then.
func (v *movers) wantStreamed() {
	t := v.m.t
	t.Helper()
	v.wantHydrated()
	st, found, err := v.n.DM.Status(t.Context(), "nf-"+string(v.req.ID))
	mustPass(t, "status", err)
	if !found || st.Policy != devmapper.PolicySMQ || st.Mode() != devmapper.Writethrough || st.CacheUsed == 0 {
		t.Errorf("after the stream: %+v", st)
	}
	infos, err := v.n.DM.Info(t.Context(), "nf-"+string(v.req.ID)+".")
	mustPass(t, "devices", err)
	for name := range infos {
		if name != "nf-"+string(v.req.ID)+".data" && name != "nf-"+string(v.req.ID)+".origin" {
			t.Errorf("device %s is left", name)
		}
	}
}

// TestKernelStream: the cache follows the volume without dm-clone, and what was written on the
// new node never comes from the old one.
func TestKernelStream(t *testing.T) {
	m := newMachine(t)
	for _, mode := range cachingModes() {
		v := newMovers(t, m, "stream-"+string(mode), streaming(cached(mode, 64*mib)))
		v.stage()
		data := v.warmUp(1)
		area := v.area()
		v.readAreas(area, 5, 200)
		v.unstage()

		v.publishTo(v.b, otherName)
		v.wantHottest("retained", volume.LeaseRequest{Generation: v.gen - 1, Move: volume.MoveID{Name: "look", UID: "1"}}, area, 5)
		v.arrive()
		check(t, v.device(), data, 0)
		late := pattern(2, 4*mib)
		write(t, v.device(), late, 6*mib, true)
		copy(data[6*mib:], late)
		check(t, v.device(), data, 0)
		v.wantStreamed()
		check(t, v.device(), data, 0)
		if rate := v.hitRate(1000, 6*mib); rate < 0.95 {
			t.Errorf("%s: hit rate after the stream: %.3f", mode, rate)
		}
		if e, err := v.a.Journal.Load(string(v.req.ID)); err == nil {
			t.Errorf("%s: the old node still knows the volume: %+v", mode, e)
		}
		_, err := v.b.Change(t.Context())
		mustPass(t, "change", err)
		if e, err := v.b.Journal.Load(string(v.req.ID)); err != nil || e.Mode != mode {
			t.Errorf("mode %s, want %s (%v)", e.Mode, mode, err)
		}
		v.unstage()

		// In the middle of a stream the volume goes back.
		v.publishTo(v.a, nodeName)
		v.arrive()
		again := pattern(3, mib)
		write(t, v.device(), again, 2*mib, true)
		copy(data[2*mib:], again)
		v.unstage()
		v.checkUncached(data)
		v.remove()
		mustPass(t, "repair", v.a.Repair(t.Context()))
		mustPass(t, "repair", v.b.Repair(t.Context()))
	}
}

// TestKernelStreamLoad: under a verified load, with the old node to the end, and with its loss in
// the middle, when the origin takes its place.
func TestKernelStreamLoad(t *testing.T) {
	m := newMachine(t)
	for _, lost := range []bool{false, true} {
		name := "load"
		if lost {
			name = "lost"
		}
		v := newMovers(t, m, "stream-"+name, streaming(cached(volume.ModeWritethrough, 64*mib)))
		l := v.movedWarm()
		again := resumeLoad(l, v.device())
		again.moving()
		stop := v.b.runHydrations(t.Context())
		again.moving()
		if lost {
			v.a.streams.lose()
		}
		again.moving()
		v.wantStreamed()
		again.end()
		again.check(v.device())
		stop()
		v.leaveChecked(again)
	}
}

// releaseAll ends what a node still exports, as its deadline or its owner would.
func (n *node) releaseAll(t *testing.T) {
	t.Helper()
	leases, err := n.Lessor().Leases(t.Context())
	mustPass(t, "leases", err)
	for id, move := range leases {
		mustPass(t, "release", n.Lessor().Release(t.Context(), id, move))
	}
}
