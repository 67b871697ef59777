package cachestream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	account = "system:serviceaccount:storage:nearflash-node"
	id      = volume.ID("pvc-1")
	// chunk is the size of most tests' chunks in bytes.
	chunk = 64 << 10
)

var move = volume.MoveID{Name: "pvc-1-3", UID: "move-uid"}

// cache is what a node leases.
type cache struct {
	chunkBytes int
	blocks     []uint64
	places     []uint32
	// to is whom it is leased to, and read is called before each chunk is read.
	to   string
	read func(ctx context.Context, i int) error
	// run is how many chunks are read at once, 0 is one.
	run int
	// reads counts the chunks that were read.
	reads  atomic.Int32
	opened atomic.Int32
	closed atomic.Int32
}

func newCache(chunkBytes, chunks int) *cache {
	c := &cache{chunkBytes: chunkBytes, to: "node-b"}
	for i := range chunks {
		c.blocks, c.places = append(c.blocks, uint64((chunks-i)*7)), append(c.places, uint32(chunks-1-i))
	}
	return c
}

func (c *cache) OpenLease(_ context.Context, of volume.ID, m volume.MoveID, to string) (Cache, error) {
	switch {
	case of != id || m != move:
		return nil, fmt.Errorf("%w: no such lease", volume.ErrNotFound)
	case to != c.to:
		return nil, fmt.Errorf("%w: it is for node %s", volume.ErrFenced, c.to)
	}
	c.opened.Add(1)
	return c, nil
}

func (c *cache) ChunkSectors() uint64 { return uint64(c.chunkBytes / sectorSize) }
func (c *cache) Blocks() []uint64     { return c.blocks }
func (c *cache) Places() []uint32     { return c.places }

func (c *cache) ReadChunks(ctx context.Context, i int, buf []byte) (int, error) {
	n := 0
	for off := 0; off+c.chunkBytes <= len(buf) && i+n < len(c.blocks) && n < max(c.run, 1); off += c.chunkBytes {
		if c.read != nil {
			if err := c.read(ctx, i+n); err != nil {
				clear(buf) // who believes that it has n+1 chunks sends this
				return n + 1, err
			}
		}
		copy(buf[off:], content(c.blocks[i+n], c.chunkBytes))
		c.reads.Add(1)
		n++
	}
	return n, nil
}

func (c *cache) Close() error {
	c.closed.Add(1)
	return nil
}

// content is what a block of the origin holds.
func content(block uint64, size int) []byte {
	word := binary.LittleEndian.AppendUint64(nil, block*0x9e3779b97f4a7c15+1)
	return bytes.Repeat(word, size/len(word))
}

// tokens is an API server that knows some tokens.
type tokens struct {
	known   map[string]authenticationv1.TokenReviewStatus
	fail    error
	reviews atomic.Int32
}

func (r *tokens) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	r.reviews.Add(1)
	if r.fail != nil {
		return nil, fmt.Errorf("%w: %s", r.fail, review.Spec.Token)
	}
	answer := review.DeepCopy()
	answer.Status = r.known[review.Spec.Token]
	if !slices.Equal(review.Spec.Audiences, []string{Audience}) {
		answer.Status = authenticationv1.TokenReviewStatus{Error: "another audience is asked for"}
	}
	return answer, nil
}

// tokenOf is the text of a token in tests.
func tokenOf(who string) string { return "secret-token-of-" + who }

// status is what an API server says of a good token; change makes it another one.
func reviewed(node string, change func(*authenticationv1.TokenReviewStatus)) authenticationv1.TokenReviewStatus {
	st := authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{Audience}}
	st.User = authenticationv1.UserInfo{Username: account, Extra: map[string]authenticationv1.ExtraValue{nodeName: {node}}}
	if change != nil {
		change(&st)
	}
	return st
}

// buffer is a log for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *buffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *buffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// node is one that sends its caches.
type node struct {
	*Server

	log  *buffer
	stop context.CancelFunc
	done chan error
}

// startNode starts a server at some loopback addresses.
func startNode(t *testing.T, caches Caches, change func(*ServerConfig)) *node {
	t.Helper()
	cfg := ServerConfig{
		Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}, Account: account,
		Reviewer: &tokens{known: map[string]authenticationv1.TokenReviewStatus{
			tokenOf("node-b"): reviewed("node-b", nil), tokenOf("node-c"): reviewed("node-c", nil),
		}},
		Keys: func(_ context.Context, node string) (string, error) { return identityOf(node).key, nil },
	}
	if change != nil {
		change(&cfg)
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if s.PublicKey() != "" {
		t.Error("it has a key before it listens")
	}
	n := &node{Server: s, log: &buffer{}, done: make(chan error, 1)}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(n.log), textlogger.Verbosity(10)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	n.stop = cancel
	if err := s.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { n.done <- s.Run(ctx, caches) }()
	t.Cleanup(func() {
		cancel()
		if err, ok := <-n.done; ok && err != nil {
			t.Errorf("Run: %v", err)
		}
		close(n.done)
	})
	return n
}

// identity is a node's certificate, and the name of its key.
type identity struct {
	cert tls.Certificate
	key  string
}

var identities sync.Map

// identityOf is that of a node, the same in all tests.
func identityOf(node string) identity {
	if known, ok := identities.Load(node); ok {
		return known.(identity)
	}
	cert, key, err := newIdentity("")
	if err != nil {
		panic(err)
	}
	made, _ := identities.LoadOrStore(node, identity{cert, key})
	return made.(identity)
}

// clientOf is one that has the key of a node, and a token in a file.
func clientOf(node, tokenFilePath string) *Client {
	return &Client{token: tokenFile(tokenFilePath), cert: identityOf(node).cert, silence: Silence}
}

// client is one whose token and key are those of somebody.
func client(t *testing.T, who string) *Client {
	t.Helper()
	return clientOf(who, tokenFileOf(t, who))
}

// tokenFileOf is a file with the token of somebody.
func tokenFileOf(t *testing.T, who string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(tokenOf(who)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// received are chunks that a client was given.
type received struct{ places []int }

// verify returns the function that Chunks calls; it verifies each chunk.
func (r *received) verify(t *testing.T, c *cache) func(int, uint64, []byte) error {
	return func(i int, block uint64, data []byte) error {
		if i >= len(c.blocks) || block != c.blocks[i] || !bytes.Equal(data, content(block, c.chunkBytes)) {
			t.Errorf("chunk %d of block %d is not what was sent", i, block)
		}
		r.places = append(r.places, i)
		return nil
	}
}

// wantPlaces wants all places from one on, each once.
func (r *received) wantPlaces(t *testing.T, from, to int) {
	t.Helper()
	var want []int
	for i := from; i < to; i++ {
		want = append(want, i)
	}
	if !slices.Equal(r.places, want) {
		t.Errorf("received %v, want %d to %d", r.places, from, to)
	}
}

func wantErr(t *testing.T, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("got %v, want %v", err, kind)
		}
	}
}

// eventually waits for what another goroutine does.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	t.Fatalf("not within 30 s: %s", what)
}
