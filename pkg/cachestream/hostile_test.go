package cachestream

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"hash/crc32"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

// answer is a message with chunks, and what follows it.
type answer struct {
	*streampb.ChunksReply
	data []byte
}

// liar is a source node that has the right key, and says what it likes.
type liar struct {
	list   func(send func(*streampb.MapReply) error) error
	chunks func(from uint32, send func(answer) error) error
}

func (l *liar) start(t *testing.T) volume.StreamSource {
	t.Helper()
	cert, key, err := newIdentity("")
	if err != nil {
		t.Fatal(err)
	}
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			raw, err := at.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { l.answer(t, raw, cert) })
		}
	})
	t.Cleanup(func() {
		_ = at.Close()
		serving.Wait()
	})
	return volume.StreamSource{Addresses: []string{at.Addr().String()}, PublicKey: key}
}

func (l *liar) answer(t *testing.T, raw net.Conn, cert tls.Certificate) {
	w := newWire(raw)
	conn := &secured{Conn: tls.Server(w, serverTLS(cert)), wire: w}
	defer func() { _ = conn.Close() }()
	call, _, err := hear(context.Background(), conn, handshake)
	if err != nil {
		t.Error(err)
		return
	}
	if call.GetMap() != nil {
		err = l.list(func(m *streampb.MapReply) error { return conn.message(m) })
	} else {
		err = l.chunks(call.GetChunks().GetFrom(), func(a answer) error { return conn.message(a.ChunksReply, a.data) })
	}
	if err == nil {
		_ = conn.message(&streampb.MapReply{End: endOf(nil)})
	}
}

func geometry(sectors uint64, chunks uint32) *streampb.Geometry {
	return &streampb.Geometry{ChunkSectors: sectors, Chunks: chunks}
}

func TestLyingList(t *testing.T) {
	const sectors = chunk / sectorSize
	first := func(g *streampb.Geometry, blocks ...uint64) *streampb.MapReply {
		r := &streampb.MapReply{Geometry: g, Blocks: blocks}
		for _, b := range blocks {
			r.Places = append(r.Places, uint32(b%1000))
		}
		return r
	}
	at := func(places ...uint32) *streampb.MapReply {
		return &streampb.MapReply{Geometry: geometry(sectors, 2), Blocks: []uint64{1, 2}, Places: places}
	}
	cases := map[string][]*streampb.MapReply{
		"nothing":                 {},
		"no geometry":             {first(nil, 1, 2)},
		"no sectors":              {first(geometry(0, 2), 1, 2)},
		"odd sectors":             {first(geometry(65, 2), 1, 2)},
		"chunks too large":        {first(geometry(MaxChunkBytes/sectorSize+64, 2), 1, 2)},
		"as large as can be":      {first(geometry(1<<63, 2), 1, 2)},
		"too many announced":      {first(geometry(sectors, volume.MaxExportedChunks+1), 1, 2)},
		"too few":                 {first(geometry(sectors, 3), 1, 2)},
		"too many":                {first(geometry(sectors, 1), 1, 2)},
		"too many later":          {first(geometry(sectors, 3), 1, 2), first(nil, 3, 4)},
		"one twice":               {first(geometry(sectors, 3), 1, 2), first(nil, 1)},
		"beyond every device":     {first(geometry(sectors, 2), 1, 1<<63)},
		"geometry twice":          {first(geometry(sectors, 3), 1, 2), first(geometry(sectors, 3), 3)},
		"no places":               {at()},
		"a place is missing":      {at(1)},
		"a place too many":        {at(1, 2, 3)},
		"a place twice":           {at(1, 1)},
		"a place twice, in parts": {first(geometry(sectors, 3), 1, 2), {Blocks: []uint64{3}, Places: []uint32{2}}},
		"a place beyond a cache":  {at(1, volume.MaxExportedChunks)},
		"places without blocks":   {first(geometry(sectors, 1), 1), {Places: []uint32{2}}},
		"an empty part":           {first(geometry(sectors, 2), 1), first(nil), first(nil, 2)},
		"blocks after its end":    {first(geometry(sectors, 0)), first(nil, 2)},
		"a message too large":     {first(geometry(sectors, 1<<18), make([]uint64, 1<<18)...)},
		"an unknown large field":  {withUnknown(first(geometry(sectors, 1), 1), 2<<20)},
	}
	for name, replies := range cases {
		t.Run(name, func(t *testing.T) {
			src := (&liar{list: func(send func(*streampb.MapReply) error) error {
				for _, r := range replies {
					if err := send(r); err != nil {
						return err
					}
				}
				return nil
			}}).start(t)
			l, err := client(t, "node-b").Map(t.Context(), src, id, move)
			wantErr(t, err, ErrBroken)
			if l.Blocks != nil || l.Places != nil {
				t.Errorf("got %d blocks", len(l.Blocks))
			}
		})
	}
}

func withUnknown[M proto.Message](m M, n int) M {
	// Field 100, of bytes.
	raw := append([]byte{0xa2, 0x06, byte(n&0x7f | 0x80), byte(n>>7&0x7f | 0x80), byte(n>>14&0x7f | 0x80), byte(n >> 21)}, make([]byte, n)...)
	m.ProtoReflect().SetUnknown(raw)
	return m
}

// whole is a right chunk of block 7*number; change makes it another.
func whole(number uint32, change func(*streampb.Chunks)) answer {
	data := content(uint64(number)*7, chunk)
	c := &streampb.Chunks{Numbers: []uint32{number}, Blocks: []uint64{uint64(number) * 7}, CachePlaces: []uint32{0}, Crc32C: []uint32{crc32.Checksum(data, castagnoli)}}
	if change != nil {
		change(c)
	}
	return answer{&streampb.ChunksReply{Chunks: c}, data}
}

// together is one message with the chunks of several.
func together(answers ...answer) answer {
	c, data := &streampb.Chunks{}, []byte(nil)
	for _, a := range answers {
		one := a.GetChunks()
		c.Numbers, c.Blocks, c.CachePlaces = append(c.Numbers, one.GetNumbers()...), append(c.Blocks, one.GetBlocks()...), append(c.CachePlaces, one.GetCachePlaces()...)
		c.Crc32C, data = append(c.Crc32C, one.GetCrc32C()...), append(data, a.data...)
	}
	return answer{&streampb.ChunksReply{Chunks: c}, data}
}

// changed is an answer of which something is changed.
func changed(a answer, change func(*streampb.Chunks)) answer {
	change(a.GetChunks())
	return a
}

// begins is what comes before chunks.
func begins(sectors uint64, chunks uint32) answer {
	return answer{&streampb.ChunksReply{Geometry: geometry(sectors, chunks)}, nil}
}

func TestLyingChunks(t *testing.T) {
	const sectors = chunk / sectorSize
	begin := begins(sectors, 2)
	right := func(number uint32) answer { return whole(number, nil) }
	both := func() answer { return together(right(0), right(1)) }
	message := func(r *streampb.ChunksReply) answer { return answer{r, nil} }
	cases := map[string]struct {
		replies []answer
		// got is how many chunks may be believed.
		got int
	}{
		"nothing":                 {nil, 0},
		"no geometry":             {[]answer{right(0), right(1)}, 0},
		"geometry and chunks":     {[]answer{{&streampb.ChunksReply{Geometry: begin.GetGeometry(), Chunks: right(0).GetChunks()}, right(0).data}, right(1)}, 0},
		"geometry beside chunks":  {[]answer{begin, {&streampb.ChunksReply{Geometry: begin.GetGeometry(), Chunks: right(0).GetChunks()}, right(0).data}, right(1)}, 0},
		"geometry twice":          {[]answer{begin, begin}, 0},
		"another chunk size":      {[]answer{begins(2*sectors, 2)}, 0},
		"too many announced":      {[]answer{begins(sectors, volume.MaxExportedChunks+1)}, 0},
		"an empty message":        {[]answer{begin, right(0), message(&streampb.ChunksReply{}), right(1)}, 1},
		"wrong checksum":          {[]answer{begin, right(0), whole(1, func(c *streampb.Chunks) { c.Crc32C[0]++ })}, 1},
		"wrong data":              {[]answer{begin, {right(0).ChunksReply, content(9, chunk)}}, 0},
		"more data":               {[]answer{begin, {right(0).ChunksReply, append(right(0).data, make([]byte, chunk)...)}, right(1)}, 1},
		"wrong order":             {[]answer{begin, right(1), right(0)}, 0},
		"too many together":       {[]answer{begin, together(right(0), right(1), right(2))}, 2},
		"wrong order together":    {[]answer{begin, together(right(1), right(0))}, 0},
		"nothing together":        {[]answer{begin, together()}, 0},
		"a sum is missing":        {[]answer{begin, changed(both(), func(c *streampb.Chunks) { c.Crc32C = c.Crc32C[:1] })}, 0},
		"a place is missing":      {[]answer{begin, changed(both(), func(c *streampb.Chunks) { c.CachePlaces = c.CachePlaces[:1] })}, 0},
		"a block is missing":      {[]answer{begin, changed(both(), func(c *streampb.Chunks) { c.Blocks = c.Blocks[:1] })}, 0},
		"wrong sum together":      {[]answer{begin, changed(both(), func(c *streampb.Chunks) { c.Crc32C[1]++ })}, 1},
		"numbers without data":    {[]answer{begin, message(&streampb.ChunksReply{Chunks: &streampb.Chunks{Numbers: make([]uint32, 1<<18)}})}, 0},
		"more than a message has": {[]answer{begin, together(slices.Repeat([]answer{right(0)}, MaxPieceBytes/chunk+1)...)}, 0},
		"a chunk twice":           {[]answer{begin, right(0), right(0)}, 1},
		"too many":                {[]answer{begin, right(0), right(1), right(2)}, 2},
		"too few":                 {[]answer{begin, right(0)}, 1},
		"an end too early":        {[]answer{begin, right(0), message(&streampb.ChunksReply{End: endOf(nil)}), right(1)}, 1},
		"an end of nothing":       {[]answer{begin, right(0), message(&streampb.ChunksReply{End: &streampb.End{}})}, 1},
		"an end of its own":       {[]answer{begin, right(0), message(&streampb.ChunksReply{End: &streampb.End{Code: 99, Text: "come again"}})}, 1},
		"an unknown large field":  {[]answer{begin, {withUnknown(right(0).ChunksReply, 2<<20), nil}}, 0},
		"numbers as large as can": {[]answer{begin, whole(0, func(c *streampb.Chunks) { c.Numbers[0] = 1<<32 - 1 })}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			src := (&liar{chunks: replying(tc.replies)}).start(t)
			// A second address is not asked: the same node is there.
			src.Addresses = append(src.Addresses, src.Addresses[0])
			got := 0
			err := client(t, "node-b").Chunks(t.Context(), src, id, move, volume.Wanted{From: 0}, 0, chunk, func(i int, block uint64, data []byte) error {
				if i != got || block != uint64(i)*7 || !slices.Equal(data, content(block, chunk)) {
					t.Errorf("chunk %d of block %d", i, block)
				}
				got++
				return nil
			})
			wantErr(t, err, ErrBroken)
			if got != tc.got {
				t.Errorf("%d chunks were believed, want %d", got, tc.got)
			}
		})
	}
}

// TestCutData: what breaks off in the middle is not believed, and nothing that a node says.
func TestCutData(t *testing.T) {
	cut := errors.New("cut")
	l := &liar{chunks: func(_ uint32, send func(answer) error) error {
		for _, a := range []answer{begins(chunk/sectorSize, 2), whole(0, nil), {whole(1, nil).ChunksReply, content(7, chunk/2)}} {
			if err := send(a); err != nil {
				return err
			}
		}
		return cut
	}}
	src, got := l.start(t), 0
	err := client(t, "node-b").Chunks(t.Context(), src, id, move, volume.Wanted{}, 0, chunk, func(int, uint64, []byte) error { got++; return nil })
	wantErr(t, err, volume.ErrUnavailable)
	if got != 1 || errors.Is(err, ErrBroken) {
		t.Errorf("%d chunks were believed; %v", got, err)
	}
}

// TestEndless: who sends without an end is given up at what it has announced, and who sends
// nothing after a while. What is held in memory does not grow.
func TestEndless(t *testing.T) {
	ended := make(chan struct{}, 4)
	forever := func(send func() error) error {
		defer func() { ended <- struct{}{} }()
		for {
			if err := send(); err != nil {
				return err
			}
		}
	}
	l := &liar{
		list: func(send func(*streampb.MapReply) error) error {
			first := true
			return forever(func() error {
				r := &streampb.MapReply{Blocks: make([]uint64, blocksPerReply), Places: make([]uint32, blocksPerReply)}
				if first {
					r.Geometry, first = geometry(chunk/sectorSize, volume.MaxExportedChunks), false
				}
				return send(r)
			})
		},
		chunks: func(_ uint32, send func(answer) error) error {
			if err := send(begins(chunk/sectorSize, volume.MaxExportedChunks)); err != nil {
				return err
			}
			return forever(func() error { return send(whole(0, nil)) })
		},
	}
	src, cl := l.start(t), client(t, "node-b")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, err := cl.Map(t.Context(), src, id, move)
	wantErr(t, err, ErrBroken)
	<-ended
	err = cl.Chunks(t.Context(), src, id, move, volume.Wanted{From: 0}, 0, chunk, func(int, uint64, []byte) error { return nil })
	wantErr(t, err, ErrBroken)
	<-ended
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("%d bytes are still held", grown)
	}
}

func TestSilent(t *testing.T) {
	wait := make(chan struct{})
	l := &liar{
		list: func(func(*streampb.MapReply) error) error { <-wait; return nil },
		chunks: func(_ uint32, send func(answer) error) error {
			if err := send(begins(chunk/sectorSize, 2)); err != nil {
				return err
			}
			if err := send(whole(0, nil)); err != nil {
				return err
			}
			<-wait
			return nil
		},
	}
	src, cl := l.start(t), client(t, "node-b")
	t.Cleanup(func() { close(wait) }) // before the server is stopped
	cl.silence = 300 * time.Millisecond
	_, err := cl.Map(t.Context(), src, id, move)
	wantErr(t, err, volume.ErrUnavailable, errSilent)
	err = cl.Chunks(t.Context(), src, id, move, volume.Wanted{From: 0}, 0, chunk, func(int, uint64, []byte) error {
		time.Sleep(3 * cl.silence) // does not count
		return nil
	})
	wantErr(t, err, volume.ErrUnavailable, errSilent)
}

// TestPanic: what goes wrong in one call ends that call alone, and says nothing of the inside.
func TestPanic(t *testing.T) {
	c := newCache(chunk, 3)
	c.read = func(context.Context, int) error { panic("inside") }
	n := startNode(t, c, nil)
	err := client(t, "node-b").Chunks(t.Context(), n.Source(), id, move, volume.Wanted{From: 0}, 0, chunk, func(int, uint64, []byte) error { return nil })
	wantErr(t, err, ErrBroken)
	if c.closed.Load() != 1 || n.InUse(move) {
		t.Error("the cache is still open")
	}
	if _, err := client(t, "node-b").Map(t.Context(), n.Source(), id, move); err != nil {
		t.Error(err)
	}
}

// FuzzReplies reads what a source node may send. Whatever it is, no more is held than a chunk and
// the list that it is allowed, and nothing is believed that is not right.
func FuzzReplies(f *testing.F) {
	add := func(messages ...any) {
		p := &pipe{}
		w := newWire(p)
		conn := &secured{Conn: w, wire: w}
		for _, m := range messages {
			var err error
			if a, ok := m.(answer); ok {
				err = conn.message(a.ChunksReply, a.data)
			} else {
				err = conn.message(m.(proto.Message))
			}
			if err != nil {
				f.Fatal(err)
			}
		}
		f.Add(bytes.Join(p.writes, nil))
	}
	end := &streampb.MapReply{End: endOf(nil)}
	add(&streampb.MapReply{Geometry: geometry(64, 3), Blocks: []uint64{7, 3, 9}, Places: []uint32{0, 2, 1}}, end)
	add(&streampb.MapReply{Geometry: geometry(64, 2), Blocks: []uint64{7, 3}, Places: []uint32{1 << 31}}, end)
	add(begins(chunk/sectorSize, 2), whole(0, nil), whole(1, nil), end)
	add(begins(chunk/sectorSize, 2), together(whole(0, nil), whole(1, nil)), end)
	add(&streampb.MapReply{Geometry: geometry(1<<63, 1<<32-1), Blocks: []uint64{1 << 63}}, &streampb.MapReply{})
	f.Fuzz(func(t *testing.T, all []byte) {
		from := func() *inbound { return &inbound{from: bytes.NewReader(all), heard: func() {}} }
		l := &list{}
		err := receive(from(), func() *streampb.MapReply { return &streampb.MapReply{} }, func(r *streampb.MapReply) error {
			err := l.add(r)
			if err == nil && (len(l.blocks) > min(l.count, volume.MaxExportedChunks) || len(l.places) != len(l.blocks)) {
				t.Fatalf("%d blocks are held, of %d", len(l.blocks), l.count)
			}
			return err
		})
		if err == nil && l.end() == nil {
			if err := errors.Join(checkGeometry(l.chunkSectors, uint64(len(l.blocks))), checkPlaces(l.places)); err != nil {
				t.Fatal(err)
			}
		}
		a, in, given := &assembly{buf: make([]byte, chunk)}, from(), 0
		a.begin()
		err = receive(in, func() *streampb.ChunksReply { return &streampb.ChunksReply{} }, func(r *streampb.ChunksReply) error {
			return a.take(r, in, func(i int, _ uint64) error {
				k := slices.Index(r.GetChunks().GetNumbers(), uint32(i))
				if i >= a.count || i != given || k < 0 || r.GetChunks().GetCrc32C()[k] != crc32.Checksum(a.buf, castagnoli) {
					t.Fatalf("chunk %d of %d, after %d", i, a.count, given)
				}
				given++
				return nil
			})
		})
		if err == nil && a.end() == nil && given != a.count {
			t.Fatalf("%d chunks of %d", given, a.count)
		}
	})
}

// replying sends answers, whatever is asked for.
func replying(answers []answer) func(uint32, func(answer) error) error {
	return func(_ uint32, send func(answer) error) error {
		for _, a := range answers {
			if err := send(a); err != nil {
				return err
			}
		}
		return nil
	}
}
