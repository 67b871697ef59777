package cachestream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestStream(t *testing.T) {
	cases := map[string]struct{ chunkBytes, chunks, run int }{
		"many":               {chunk, 100, 1},
		"many, side by side": {chunk, 100, 1000},
		"some side by side":  {chunk, 100, 3},
		"one":                {chunk, 1, 1},
		"none":               {chunk, 0, 1},
		"smallest chunks":    {32 << 10, 3, 1},
		"several pieces":     {3<<20 + 32<<10, 3, 2},
		"the largest chunk":  {MaxChunkBytes, 1, 1},
		"a list in parts":    {32 << 10, blocksPerReply*2 + 1, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCache(tc.chunkBytes, tc.chunks)
			if c.run = tc.run; tc.run > 1 {
				slices.Sort(c.places)
			}
			n := startNode(t, c, nil)
			cl := client(t, "node-b")
			l, err := cl.Map(t.Context(), n.Source(), id, move)
			if err != nil {
				t.Fatal(err)
			}
			if l.ChunkSectors != c.ChunkSectors() || !slices.Equal(l.Blocks, c.blocks) || !slices.Equal(l.Places, c.places) {
				t.Errorf("got %d blocks at %d places of %d sectors", len(l.Blocks), len(l.Places), l.ChunkSectors)
			}
			from := max(0, tc.chunks-100)
			got := &received{}
			err = cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: from}, 0, tc.chunkBytes, func(i int, block uint64, data []byte) error {
				if uintptr(unsafe.Pointer(&data[0]))%4096 != 0 {
					t.Error("the buffer is not aligned")
				}
				return got.verify(t, c)(i, block, data)
			})
			if err != nil {
				t.Fatal(err)
			}
			got.wantPlaces(t, from, tc.chunks)
			eventually(t, "the cache is closed", func() bool { return c.closed.Load() == c.opened.Load() && !n.InUse(move) })
		})
	}
}

// TestResume: whoever was interrupted goes on where it was, over a new connection.
func TestResume(t *testing.T) {
	c := newCache(chunk, 20)
	n := startNode(t, c, nil)
	cl := client(t, "node-b")
	got, stop := &received{}, errors.New("enough")
	err := cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 3}, 0, chunk, func(i int, block uint64, data []byte) error {
		if i == 9 {
			return fmt.Errorf("%w: %w", stop, volume.ErrUnavailable)
		}
		return got.verify(t, c)(i, block, data)
	})
	wantErr(t, err, stop)
	if err := cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 9}, 0, chunk, got.verify(t, c)); err != nil {
		t.Error(err)
	}
	got.wantPlaces(t, 3, 20)
	if err := cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 20}, 0, chunk, got.verify(t, c)); err != nil {
		t.Errorf("from the end on: %v", err)
	}
	wantErr(t, cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 21}, 0, chunk, got.verify(t, c)), volume.ErrInvalid)
	wantErr(t, cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 0}, 0, 2*chunk, got.verify(t, c)), ErrBroken)
	for name, size := range map[string]int{"nothing": 0, "no number of sectors": chunk + 1, "negative": -chunk, "too large": MaxChunkBytes * 2} {
		if err := cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 0}, 0, size, got.verify(t, c)); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("a chunk that is %s: %v", name, err)
		}
	}
	got.wantPlaces(t, 3, 20)
}

// TestAddresses: one address after the other, also in the middle of the list.
func TestAddresses(t *testing.T) {
	c := newCache(chunk, 30)
	cl := client(t, "node-b")
	both := startNode(t, c, func(cfg *ServerConfig) {
		cfg.Addresses = []netip.AddrPort{netip.MustParseAddrPort("[::1]:0"), netip.MustParseAddrPort("127.0.0.1:0")}
	})
	src := both.Source()
	if len(src.Addresses) != 2 || !strings.HasPrefix(src.Addresses[1], "[::1]:") {
		t.Fatalf("it listens at %v", src.Addresses)
	}
	for _, at := range src.Addresses {
		if _, err := cl.Map(t.Context(), volume.StreamSource{Addresses: []string{at}, PublicKey: src.PublicKey}, id, move); err != nil {
			t.Errorf("at %s: %v", at, err)
		}
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	src.Addresses = []string{nobody.Addr().String(), relay(t, src.Addresses[0], 9*chunk), src.Addresses[1]}
	got := &received{}
	if err := cl.Chunks(t.Context(), src, id, move, volume.Wanted{From: 0}, 0, chunk, got.verify(t, c)); err != nil {
		t.Error(err)
	}
	got.wantPlaces(t, 0, 30)
	if c.opened.Load() != 4 {
		t.Errorf("the cache was opened %d times, want twice for the list, twice for the chunks", c.opened.Load())
	}
	wantErr(t, cl.Chunks(t.Context(), volume.StreamSource{PublicKey: src.PublicKey}, id, move, volume.Wanted{From: 0}, 0, chunk, got.verify(t, c)), volume.ErrUnavailable)
	src.Addresses = []string{"node-a:3263"}
	wantErr(t, cl.Chunks(t.Context(), src, id, move, volume.Wanted{From: 0}, 0, chunk, got.verify(t, c)), ErrBroken)
}

// relay passes connections on, and cuts each after so many bytes to the client.
func relay(t *testing.T, to string, bytes int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				return
			}
			go func() { copyN(out, in, 1<<40) }()
			go func() { copyN(in, out, bytes) }()
		}
	}()
	return l.Addr().String()
}

func copyN(to, from net.Conn, n int64) {
	buf := make([]byte, 4096)
	for n > 0 {
		k, err := from.Read(buf)
		if err != nil {
			break
		}
		if _, err := to.Write(buf[:k]); err != nil {
			break
		}
		n -= int64(k)
	}
	_, _ = to.Close(), from.Close()
}

// TestEnd: the end of a lease ends its streams, and no other, also that of a client which does
// not read and one whose SSD does not answer.
func TestEnd(t *testing.T) {
	waits := func(ctx context.Context, i int) error {
		if i < 5 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	cases := map[string]struct {
		read func(context.Context, int) error
		// hang has the client stop to read.
		hang bool
		// want is ErrNotFound if the client hears that to ask again is of no use.
		want error
	}{
		"in the middle":          {want: volume.ErrNotFound},
		"client does not read":   {hang: true, want: volume.ErrUnavailable},
		"a chunk takes for ever": {read: waits, want: volume.ErrNotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCache(1<<20, 4096)
			var reads atomic.Int32
			c.read = func(ctx context.Context, i int) error {
				reads.Add(1)
				if tc.read != nil {
					return tc.read(ctx, i)
				}
				return nil
			}
			n := startNode(t, c, nil)
			cl := client(t, "node-b")
			begun, goOn, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				var once sync.Once
				result <- cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 0}, 200<<20, 1<<20, func(int, uint64, []byte) error {
					once.Do(func() { close(begun) })
					if tc.hang {
						<-goOn
					}
					return nil
				})
			}()
			<-begun
			if tc.hang || tc.read != nil {
				eventually(t, "nothing moves any more", func() bool {
					before := reads.Load()
					time.Sleep(300 * time.Millisecond)
					return reads.Load() == before
				})
			}
			if !n.InUse(move) || n.InUse(volume.MoveID{Name: move.Name, UID: "other"}) {
				t.Error("InUse is wrong")
			}
			if err := n.End(t.Context(), volume.MoveID{Name: move.Name, UID: "other"}); err != nil {
				t.Error(err)
			}
			if c.closed.Load() != 0 {
				t.Error("another move's end ended it")
			}
			soon, cancel := context.WithTimeout(t.Context(), stuckAfter/4)
			defer cancel()
			if err := n.End(soon, move); err != nil {
				t.Error(err)
			}
			if c.closed.Load() != 1 || n.InUse(move) {
				t.Errorf("after End the cache was closed %d times", c.closed.Load())
			}
			close(goOn)
			wantErr(t, <-result, tc.want)
			if err := n.End(t.Context(), move); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStop: a plugin that ends leaves no cache open.
func TestStop(t *testing.T) {
	c := newCache(1<<20, 4096)
	n := startNode(t, c, nil)
	begun, result := make(chan struct{}, 4096), make(chan error, 1)
	go func() {
		result <- client(t, "node-b").Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 0}, 100<<20, 1<<20, func(int, uint64, []byte) error {
			begun <- struct{}{}
			return nil
		})
	}()
	<-begun
	n.stop()
	if err := <-n.done; err != nil {
		t.Error(err)
	}
	n.done <- nil
	if c.closed.Load() != 1 || n.PublicKey() != "" {
		t.Errorf("closed %d times; key %q", c.closed.Load(), n.PublicKey())
	}
	wantErr(t, <-result, volume.ErrUnavailable)
}

// TestCancel: a client that gives up is let go.
func TestCancel(t *testing.T) {
	c := newCache(1<<20, 4096)
	n := startNode(t, c, nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := client(t, "node-b").Chunks(ctx, n.Source(), id, move, volume.Wanted{From: 0}, 0, 1<<20, func(i int, _ uint64, _ []byte) error {
		if i == 3 {
			cancel()
		}
		return nil
	})
	wantErr(t, err, volume.ErrUnavailable, context.Canceled)
	eventually(t, "the cache is closed", func() bool { return c.closed.Load() == 1 })
}

// TestBandwidth: what a stream asks for, and what the node has for all, are kept. Both are lower
// bounds of a time; how long it takes beyond them is the machine's.
func TestBandwidth(t *testing.T) {
	const chunks, most = 40, 8 << 20
	// A limiter may send what belongs to a twentieth of a second at once.
	least := time.Duration(chunks*chunk-most/burstsPerSecond) * time.Second / most
	run := func(t *testing.T, node, asked int64, streams int) time.Duration {
		c := newCache(chunk, chunks)
		n := startNode(t, c, func(cfg *ServerConfig) { cfg.Bandwidth = node })
		cl := client(t, "node-b")
		started := time.Now()
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				if err := cl.Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 0}, asked, chunk, (&received{}).verify(t, c)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return time.Since(started)
	}
	t.Run("stream", func(t *testing.T) {
		if took := run(t, 0, most, 1); took < least {
			t.Errorf("took %s, want at least %s", took, least)
		}
	})
	t.Run("node", func(t *testing.T) {
		const streams = 4
		want := time.Duration(streams*chunks*chunk-MaxPieceBytes) * time.Second / (2 * most)
		if took := run(t, 2*most, 0, streams); took < want {
			t.Errorf("%d streams took %s, want at least %s", streams, took, want)
		}
	})
}

func TestPieceBytes(t *testing.T) {
	for bandwidth, want := range map[int64]int{0: MaxPieceBytes, 1: 32 << 10, 1 << 20: 32 << 10, 4 << 20: 192 << 10, 1 << 40: MaxPieceBytes} {
		if got := pieceBytes(bandwidth); got != want {
			t.Errorf("at %d bytes per second a piece has %d bytes, want %d", bandwidth, got, want)
		}
	}
}
