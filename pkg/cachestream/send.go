package cachestream

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

// blocksPerReply is how much of the list one message has.
const blocksPerReply = 32 << 10

// castagnoli is the polynomial of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// service answers calls.
type service struct {
	streampb.UnimplementedCacheStreamServer
	*Server

	caches Caches
	log    klog.Logger
}

var _ streampb.CacheStreamServer = (*service)(nil)

// intercept turns errors and panics into answers, and logs the former once.
func (s *Server) intercept(log logr.Logger) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() {
			if p := recover(); p != nil {
				log.Error(nil, "Stream panicked", "panic", p, "stack", string(debug.Stack()))
				err = statusFor(errors.New("panic"))
			}
		}()
		err = handler(srv, ss)
		switch {
		case err == nil, errors.Is(err, errEnded), errors.Is(err, errToken), ss.Context().Err() != nil:
			// Also of a stranger: nobody is to fill the log.
			log.V(2).Info("Stream ended", "method", info.FullMethod, "reason", err)
		default:
			log.Error(err, "Stream failed", "method", info.FullMethod)
		}
		return statusFor(err)
	}
}

// Map implements streampb.CacheStreamServer.
func (s *service) Map(req *streampb.MapRequest, stream grpc.ServerStreamingServer[streampb.MapReply]) error {
	return s.with(stream.Context(), req.GetMove(), func(_ context.Context, c Cache) error {
		blocks, places := c.Blocks(), c.Places()
		g, err := geometryOf(c)
		for first := true; err == nil && (first || len(blocks) > 0); first = false {
			n := min(len(blocks), blocksPerReply)
			r := &streampb.MapReply{Blocks: blocks[:n], Places: places[:n]}
			if first {
				r.Geometry = g
			}
			blocks, places, err = blocks[n:], places[n:], stream.Send(r)
		}
		return err
	})
}

// Chunks implements streampb.CacheStreamServer.
func (s *service) Chunks(req *streampb.ChunksRequest, stream grpc.ServerStreamingServer[streampb.ChunksReply]) error {
	return s.with(stream.Context(), req.GetMove(), func(ctx context.Context, c Cache) error {
		g, err := geometryOf(c)
		if err != nil {
			return err
		}
		from := req.GetFrom()
		if from > g.GetChunks() {
			return fmt.Errorf("%w: chunk %d is asked for, there are %d", volume.ErrInvalid, from, g.GetChunks())
		}
		skip := volume.Bits(req.GetSkip())
		if len(skip) > len(volume.NewBits(uint64(g.GetChunks()))) {
			return fmt.Errorf("%w: %d bytes of chunks that are not wanted, there are %d chunks", volume.ErrInvalid, len(skip), g.GetChunks())
		}
		size := int(g.GetChunkSectors()) * sectorSize
		room := max(runBytes/size, 1) * size
		if !s.buffers.TryAcquire(2 * int64(room)) {
			return fmt.Errorf("%w: this node has no memory for another stream", volume.ErrUnavailable)
		}
		defer s.buffers.Release(2 * int64(room))
		if err := stream.Send(&streampb.ChunksReply{Geometry: g}); err != nil {
			return err
		}
		bandwidth := int64(min(req.GetBandwidth(), 1<<62))
		p := &sender{stream: stream, blocks: c.Blocks(), places: c.Places(), size: size, piece: pieceBytes(bandwidth), together: req.GetTogether()}
		p.limits = []*rate.Limiter{limiter(bandwidth, p.piece), s.limit}
		r := newReader(c, int(from), skip, size, room)
		// Before the cache is closed.
		defer r.end()
		return p.send(ctx, r.begin(ctx))
	})
}

// with opens the cache of a move for a call, and closes it. The context that use receives ends
// with the call and with the lease.
func (s *service) with(ctx context.Context, m *streampb.Move, use func(ctx context.Context, c Cache) error) (err error) {
	id, move, err := moveOf(m)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, s.log.WithValues("volume", id, "move", move.Name))
	node, err := s.gate.node(ctx)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	st := &stream{move: move, node: node, end: end, done: make(chan struct{})}
	// Before the lease is looked at: either that, or End, has the last word.
	if err := s.streams.add(st); err != nil {
		return err
	}
	defer s.streams.remove(st)
	defer s.cutWhenStuck(ctx)()
	c, err := s.caches.OpenLease(ctx, id, move, node)
	if err != nil {
		return fmt.Errorf("cache of volume %s for node %s: %w", id, node, ended(ctx, err))
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	s.streams.opened(st)
	klog.FromContext(ctx).V(2).Info("Stream begins", "to", node)
	if err := use(ctx, c); err != nil {
		return fmt.Errorf("cache of volume %s for node %s: %w", id, node, ended(ctx, err))
	}
	return nil
}

// cutWhenStuck cuts the connection of a call that does not end by itself after ctx: who does not
// read would keep it for ever. The result ends the watch.
func (s *Server) cutWhenStuck(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(patience):
			s.conns.cut(ctx)
		}
	})
	return func() { close(done) }
}

// ended is the reason why ctx has ended, if it has, else err.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// geometryOf checks what a Cache says of itself.
func geometryOf(c Cache) (*streampb.Geometry, error) {
	sectors, n := c.ChunkSectors(), len(c.Blocks())
	if n != len(c.Places()) {
		return nil, fmt.Errorf("%w: %d blocks at %d places", volume.ErrNotFound, n, len(c.Places()))
	}
	if err := checkGeometry(sectors, uint64(n)); err != nil {
		return nil, fmt.Errorf("%w: %w", volume.ErrNotFound, err)
	}
	return &streampb.Geometry{ChunkSectors: sectors, Chunks: uint32(n)}, nil
}

// checkGeometry says why a cache cannot be sent, or received.
func checkGeometry(chunkSectors, chunks uint64) error {
	if chunkSectors == 0 || chunkSectors%chunkAlign != 0 || chunkSectors > MaxChunkBytes/sectorSize || chunks > volume.MaxExportedChunks {
		return fmt.Errorf("a cache of %d chunks of %d sectors; sent are at most %d chunks of at most %d sectors",
			chunks, chunkSectors, volume.MaxExportedChunks, MaxChunkBytes/sectorSize)
	}
	return nil
}

// pieceBytes is how much of a chunk is sent at once: less at a low rate, so that it is even.
func pieceBytes(bandwidth int64) int {
	const least = 32 << 10
	if bandwidth <= 0 {
		return MaxPieceBytes
	}
	return int(max(least, min(MaxPieceBytes, bandwidth/burstsPerSecond/least*least)))
}

// sender sends chunks.
type sender struct {
	stream grpc.ServerStreamingServer[streampb.ChunksReply]
	blocks []uint64
	places []uint32
	// size is that of a chunk, and piece of the most that is sent at once, in bytes.
	size, piece int
	// together: a reply may have several chunks.
	together bool
	limits   []*rate.Limiter
}

// send sends what is read, until there is no more.
func (s *sender) send(ctx context.Context, runs <-chan run) error {
	for r := range runs {
		if r.panicked != nil {
			panic(r.panicked)
		}
		if err := errors.Join(s.run(ctx, r), r.err); err != nil {
			return err
		}
		r.sent()
	}
	return ctx.Err()
}

// run sends the chunks of a run, as many at once as a reply has room for.
func (s *sender) run(ctx context.Context, r run) error {
	most := 1
	if s.together {
		most = max(s.piece/s.size, 1)
	}
	for i := 0; i < len(r.numbers); i += most {
		n := min(most, len(r.numbers)-i)
		numbers, data := r.numbers[i:i+n], r.data[i*s.size:(i+n)*s.size]
		var err error
		if n == 1 {
			err = s.chunk(ctx, numbers[0], data)
		} else {
			err = s.whole(ctx, numbers, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whole sends several chunks.
func (s *sender) whole(ctx context.Context, numbers []int, data []byte) error {
	c := &streampb.Chunks{Data: data}
	for k, i := range numbers {
		c.Numbers, c.Blocks, c.CachePlaces = append(c.Numbers, uint32(i)), append(c.Blocks, s.blocks[i]), append(c.CachePlaces, s.places[i])
		c.Crc32C = append(c.Crc32C, crc32.Checksum(data[k*s.size:(k+1)*s.size], castagnoli))
	}
	return s.reply(ctx, &streampb.ChunksReply{Chunks: c}, len(data))
}

// chunk sends the chunk with a number.
func (s *sender) chunk(ctx context.Context, i int, chunk []byte) error {
	for off := 0; off < len(chunk); off += s.piece {
		data := chunk[off:min(off+s.piece, len(chunk))]
		piece := &streampb.Piece{
			Chunk: uint32(i), Block: s.blocks[i], Offset: uint32(off), Data: data, Crc32C: crc32.Checksum(data, castagnoli),
			CachePlace: s.places[i],
		}
		if err := s.reply(ctx, &streampb.ChunksReply{Piece: piece}, len(data)); err != nil {
			return err
		}
	}
	return nil
}

// reply sends a reply with so many bytes of chunks, when its turn has come. gRPC keeps nothing of it.
func (s *sender) reply(ctx context.Context, r *streampb.ChunksReply, size int) error {
	for _, l := range s.limits {
		if l.Limit() == rate.Inf {
			continue
		}
		if err := l.WaitN(ctx, size); err != nil {
			return err
		}
	}
	return s.stream.Send(r)
}
