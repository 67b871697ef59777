package cachestream

import (
	"context"
	"errors"
	"hash/crc32"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

// liar is a source node that has the right key, and says what it likes.
type liar struct {
	streampb.UnimplementedCacheStreamServer

	list   func(send func(*streampb.MapReply) error) error
	chunks func(from uint32, send func(*streampb.ChunksReply) error) error
}

func (l *liar) Map(_ *streampb.MapRequest, s grpc.ServerStreamingServer[streampb.MapReply]) error {
	return l.list(s.Send)
}

func (l *liar) Chunks(r *streampb.ChunksRequest, s grpc.ServerStreamingServer[streampb.ChunksReply]) error {
	return l.chunks(r.GetFrom(), s.Send)
}

func (l *liar) start(t *testing.T) volume.StreamSource {
	t.Helper()
	cert, key, err := newIdentity("")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(serverTLS(cert))))
	streampb.RegisterCacheStreamServer(g, l)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(at) }()
	t.Cleanup(g.Stop)
	return volume.StreamSource{Addresses: []string{at.Addr().String()}, PublicKey: key}
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

// piece is a right one of a chunk of block 7*number; change makes it another.
func piece(number uint32, offset, n int, change func(*streampb.Piece)) *streampb.ChunksReply {
	data := content(uint64(number)*7, chunk)[offset : offset+n]
	p := &streampb.Piece{Chunk: number, Block: uint64(number) * 7, Offset: uint32(offset), Data: data, Crc32C: crc32.Checksum(data, castagnoli)}
	if change != nil {
		change(p)
	}
	return &streampb.ChunksReply{Piece: p}
}

// together is one reply with the whole chunks of several.
func together(replies ...*streampb.ChunksReply) *streampb.ChunksReply {
	c := &streampb.Chunks{}
	for _, r := range replies {
		p := r.GetPiece()
		c.Numbers, c.Blocks, c.CachePlaces = append(c.Numbers, p.GetChunk()), append(c.Blocks, p.GetBlock()), append(c.CachePlaces, p.GetCachePlace())
		c.Crc32C, c.Data = append(c.Crc32C, p.GetCrc32C()), append(c.Data, p.GetData()...)
	}
	return &streampb.ChunksReply{Chunks: c}
}

// changed is a reply with chunks of which something is changed.
func changed(r *streampb.ChunksReply, change func(*streampb.Chunks)) *streampb.ChunksReply {
	change(r.GetChunks())
	return r
}

// small is a whole chunk of 32 KiB.
func small(number uint32) *streampb.ChunksReply { return piece(number, 0, 32<<10, nil) }

func TestLyingChunks(t *testing.T) {
	const sectors = chunk / sectorSize
	begin := &streampb.ChunksReply{Geometry: geometry(sectors, 2)}
	whole := func(number uint32) *streampb.ChunksReply { return piece(number, 0, chunk, nil) }
	cases := map[string]struct {
		replies []*streampb.ChunksReply
		// got is how many chunks may be believed.
		got int
	}{
		"nothing":                 {nil, 0},
		"no geometry":             {[]*streampb.ChunksReply{whole(0), whole(1)}, 0},
		"geometry and piece":      {[]*streampb.ChunksReply{{Geometry: begin.GetGeometry(), Piece: whole(0).GetPiece()}, whole(1)}, 0},
		"geometry twice":          {[]*streampb.ChunksReply{begin, begin}, 0},
		"another chunk size":      {[]*streampb.ChunksReply{{Geometry: geometry(2*sectors, 2)}}, 0},
		"too many announced":      {[]*streampb.ChunksReply{{Geometry: geometry(sectors, volume.MaxExportedChunks+1)}}, 0},
		"an empty message":        {[]*streampb.ChunksReply{begin, whole(0), {}, whole(1)}, 1},
		"wrong checksum":          {[]*streampb.ChunksReply{begin, whole(0), piece(1, 0, chunk, func(p *streampb.Piece) { p.Crc32C++ })}, 1},
		"wrong data":              {[]*streampb.ChunksReply{begin, piece(0, 0, chunk, func(p *streampb.Piece) { p.Data = content(9, chunk) })}, 0},
		"wrong order":             {[]*streampb.ChunksReply{begin, whole(1), whole(0)}, 0},
		"too many together":       {[]*streampb.ChunksReply{begin, together(whole(0), whole(1), whole(2))}, 2},
		"wrong order together":    {[]*streampb.ChunksReply{begin, together(whole(1), whole(0))}, 0},
		"a part together":         {[]*streampb.ChunksReply{begin, together(whole(0), piece(1, 0, 512, nil))}, 0},
		"nothing together":        {[]*streampb.ChunksReply{begin, together()}, 0},
		"behind a part":           {[]*streampb.ChunksReply{begin, piece(0, 0, 512, nil), together(whole(0), whole(1))}, 0},
		"a piece beside":          {[]*streampb.ChunksReply{begin, {Piece: whole(0).GetPiece(), Chunks: together(whole(0), whole(1)).GetChunks()}}, 0},
		"chunks with geometry":    {[]*streampb.ChunksReply{{Geometry: begin.GetGeometry(), Chunks: together(whole(0), whole(1)).GetChunks()}}, 0},
		"a sum is missing":        {[]*streampb.ChunksReply{begin, changed(together(whole(0), whole(1)), func(c *streampb.Chunks) { c.Crc32C = c.Crc32C[:1] })}, 0},
		"a place is missing":      {[]*streampb.ChunksReply{begin, changed(together(whole(0), whole(1)), func(c *streampb.Chunks) { c.CachePlaces = c.CachePlaces[:1] })}, 0},
		"a block is missing":      {[]*streampb.ChunksReply{begin, changed(together(whole(0), whole(1)), func(c *streampb.Chunks) { c.Blocks = c.Blocks[:1] })}, 0},
		"wrong sum together":      {[]*streampb.ChunksReply{begin, changed(together(whole(0), whole(1)), func(c *streampb.Chunks) { c.Crc32C[1]++ })}, 1},
		"numbers without data":    {[]*streampb.ChunksReply{begin, {Chunks: &streampb.Chunks{Numbers: make([]uint32, 1<<18)}}}, 0},
		"more than a message has": {[]*streampb.ChunksReply{begin, together(slices.Repeat([]*streampb.ChunksReply{whole(0)}, MaxPieceBytes/chunk+1)...)}, 0},
		"a chunk twice":           {[]*streampb.ChunksReply{begin, whole(0), whole(0)}, 1},
		"too many":                {[]*streampb.ChunksReply{begin, whole(0), whole(1), whole(2)}, 2},
		"too few":                 {[]*streampb.ChunksReply{begin, whole(0)}, 1},
		"half a chunk":            {[]*streampb.ChunksReply{begin, whole(0), piece(1, 0, chunk/2, nil)}, 1},
		"a hole":                  {[]*streampb.ChunksReply{begin, piece(0, 512, chunk-512, nil)}, 0},
		"a part twice":            {[]*streampb.ChunksReply{begin, piece(0, 0, 512, nil), piece(0, 0, 512, nil)}, 0},
		"a chunk of two blocks":   {[]*streampb.ChunksReply{begin, piece(0, 0, 512, nil), piece(0, 512, chunk-512, func(p *streampb.Piece) { p.Block++ })}, 0},
		"an empty piece":          {[]*streampb.ChunksReply{begin, piece(0, 0, 0, nil)}, 0},
		"no whole sectors":        {[]*streampb.ChunksReply{begin, piece(0, 0, 513, nil)}, 0},
		"more than a chunk":       {[]*streampb.ChunksReply{begin, piece(0, 0, 512, nil), piece(0, 0, chunk, func(p *streampb.Piece) { p.Offset = 512 })}, 0},
		"an unknown large field":  {[]*streampb.ChunksReply{begin, withUnknown(whole(0), 2<<20)}, 0},
		"numbers as large as can": {[]*streampb.ChunksReply{begin, piece(0, 0, chunk, func(p *streampb.Piece) { p.Chunk, p.Offset = 1<<32-1, 1<<32-1 })}, 0},
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
		chunks: func(_ uint32, send func(*streampb.ChunksReply) error) error {
			if err := send(&streampb.ChunksReply{Geometry: geometry(chunk/sectorSize, volume.MaxExportedChunks)}); err != nil {
				return err
			}
			return forever(func() error { return send(piece(0, 0, 512, nil)) })
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
		chunks: func(_ uint32, send func(*streampb.ChunksReply) error) error {
			if err := send(&streampb.ChunksReply{Geometry: geometry(chunk/sectorSize, 2)}); err != nil {
				return err
			}
			if err := send(piece(0, 0, chunk, nil)); err != nil {
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
	add := func(list []proto.Message) {
		var all []byte
		for _, m := range list {
			raw, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			all = append(append(all, byte(len(raw)>>16), byte(len(raw)>>8), byte(len(raw))), raw...)
		}
		f.Add(all)
	}
	add([]proto.Message{&streampb.MapReply{Geometry: geometry(64, 3), Blocks: []uint64{7, 3, 9}, Places: []uint32{0, 2, 1}}})
	add([]proto.Message{&streampb.MapReply{Geometry: geometry(64, 2), Blocks: []uint64{7, 3}, Places: []uint32{1 << 31}}})
	add([]proto.Message{&streampb.ChunksReply{Geometry: geometry(64, 2)}, piece(0, 0, 512, nil), piece(0, 512, 512, nil)})
	add([]proto.Message{&streampb.ChunksReply{Geometry: geometry(64, 2)}, together(small(0), small(1))})
	add([]proto.Message{&streampb.MapReply{Geometry: geometry(1<<63, 1<<32-1), Blocks: []uint64{1 << 63}}, &streampb.MapReply{}})
	f.Fuzz(func(t *testing.T, all []byte) {
		l, a := &list{}, &assembly{buf: make([]byte, 32<<10)}
		a.begin()
		listOK := true
		for len(all) >= 3 {
			n := min(int(all[0])<<16|int(all[1])<<8|int(all[2]), len(all)-3, maxReply)
			raw := all[3 : 3+n]
			all = all[3+n:]
			var m streampb.MapReply
			if listOK = listOK && proto.Unmarshal(raw, &m) == nil && l.add(&m) == nil; listOK && len(l.blocks) > min(l.count, volume.MaxExportedChunks) || listOK && len(l.places) != len(l.blocks) {
				t.Fatalf("%d blocks are held, of %d", len(l.blocks), l.count)
			}
			var c streampb.ChunksReply
			err := proto.Unmarshal(raw, &c)
			if err == nil {
				err = a.take(&c, func() error {
					if a.next >= a.count || a.filled != len(a.buf) {
						t.Fatalf("chunk %d of %d has %d bytes", a.next, a.count, a.filled)
					}
					a.taken()
					return nil
				})
			}
			if err != nil {
				a = &assembly{buf: a.buf} // a caller takes nothing more of such a stream
				a.begin()
			}
		}
		if listOK && l.end() == nil {
			if err := errors.Join(checkGeometry(l.chunkSectors, uint64(len(l.blocks))), checkPlaces(l.places)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// replying sends replies, whatever is asked for.
func replying(replies []*streampb.ChunksReply) func(uint32, func(*streampb.ChunksReply) error) error {
	return func(_ uint32, send func(*streampb.ChunksReply) error) error {
		for _, r := range replies {
			if err := send(r); err != nil {
				return err
			}
		}
		return nil
	}
}
