package cachestream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// blocksPerReply is how much of the list one message has.
const blocksPerReply = 32 << 10

// castagnoli is the polynomial of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// service answers calls.
type service struct {
	*Server

	caches Caches
	conf   *tls.Config
}

// accept takes the connections of a listener until it ends, or ctx, and closes it.
func (s *service) accept(ctx context.Context, l net.Listener, serving *sync.WaitGroup) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // which ends Accept
	said := ""
	for {
		raw, err := l.Accept()
		first := passes.News(err, &said)
		switch {
		case err == nil:
		case ctx.Err() == nil && exhausted(err):
			if first {
				klog.FromContext(ctx).Error(err, "No connection can be taken; it is tried again", "address", l.Addr().String())
			}
			select {
			case <-ctx.Done():
			case <-time.After(patience):
			}
			continue
		default:
			return errors.Join(err, l.Close())
		}
		from := addressOf(raw.RemoteAddr())
		if !s.conns.add(from) {
			_ = raw.Close() // nothing was said over it
			continue
		}
		serving.Go(func() {
			defer s.conns.remove(from)
			s.answer(ctx, raw, from)
		})
	}
}

// exhausted reports whether a connection could not be taken for want of something that there may be
// again soon (accept(2)): the listener is as it was.
func exhausted(err error) bool {
	for _, no := range []syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// answer answers the call of a connection, and closes that.
func (s *service) answer(ctx context.Context, raw net.Conn, from netip.Addr) {
	defer func() { _ = raw.Close() }() // everything was said
	defer cutWhenStuck(ctx, raw)()
	log := klog.FromContext(ctx).WithValues("from", raw.RemoteAddr().String())
	w := newWire(raw)
	conn := &secured{Conn: tls.Server(w, s.conf), wire: w}
	call, key, err := hear(ctx, conn, cmp.Or(s.cfg.hearing, handshake))
	if err != nil {
		log.V(2).Info("Stream ended", "reason", err) // nobody is to fill the log
		return
	}
	calling, gone := context.WithCancelCause(klog.NewContext(ctx, log))
	defer gone(nil)
	go func() {
		// A caller says nothing more: either it goes, or it is closed here.
		_, err := conn.Read(make([]byte, 1))
		gone(lostError{cmp.Or(err, errors.New("the caller says more than its call"))})
	}()
	err = s.reply(calling, conn, call, caller{token: call.GetToken(), key: key, from: from})
	var lost lostError
	isLost := errors.As(err, &lost)
	switch {
	case err == nil, isLost, errors.Is(err, errEnded), errors.Is(err, errToken), errors.Is(err, errCrowd), ctx.Err() != nil:
		// Also of a stranger: nobody is to fill the log.
		log.V(2).Info("Stream ended", "reason", err)
	default:
		log.Error(err, "Stream failed")
	}
	patient := stuckAfter
	if errors.Is(err, errEnded) {
		patient = patience
	}
	if isLost || conn.SetWriteDeadline(time.Now().Add(patient)) != nil {
		return
	}
	if conn.message(&streampb.MapReply{End: endOf(err)}) == nil {
		_ = conn.Close() // the other side hears that this was all
	}
}

// hear returns the call of a connection, which is there within a time, and the name of the key that it
// was made with.
func hear(ctx context.Context, conn *secured, within time.Duration) (*streampb.Call, string, error) {
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return nil, "", err
	}
	secure := conn.Conn.(*tls.Conn)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, "", err
	}
	call := &streampb.Call{}
	if err := (&inbound{from: conn, heard: func() {}}).message(call, maxCall); err != nil {
		return nil, "", err
	}
	return call, keyOf(secure.ConnectionState().PeerCertificates[0]), conn.SetDeadline(time.Time{})
}

// reply sends what a call wants.
func (s *service) reply(ctx context.Context, conn *secured, call *streampb.Call, c caller) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Stream panicked", "panic", p, "stack", string(debug.Stack()))
			err = errors.New("panic")
		}
	}()
	return s.with(ctx, conn, call.GetMove(), c, func(ctx context.Context, cache Cache) error {
		switch w := call.GetWanted().(type) {
		case *streampb.Call_Map:
			return sendMap(conn, cache)
		case *streampb.Call_Chunks:
			return s.sendChunks(ctx, conn, w.Chunks, cache)
		}
		return fmt.Errorf("%w: the call wants neither the list nor chunks", volume.ErrInvalid)
	})
}

// sendMap lists what there is to send.
func sendMap(conn *secured, c Cache) error {
	blocks, places := c.Blocks(), c.Places()
	g, err := geometryOf(c)
	for first := true; err == nil && (first || len(blocks) > 0); first = false {
		n := min(len(blocks), blocksPerReply)
		r := &streampb.MapReply{Blocks: blocks[:n], Places: places[:n]}
		if first {
			r.Geometry = g
		}
		blocks, places, err = blocks[n:], places[n:], conn.message(r)
	}
	return err
}

// sendChunks sends the chunks that are wanted.
func (s *service) sendChunks(ctx context.Context, conn *secured, req *streampb.ChunksRequest, c Cache) error {
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
	if err := conn.message(&streampb.ChunksReply{Geometry: g}); err != nil {
		return err
	}
	bandwidth := int64(min(req.GetBandwidth(), 1<<62))
	p := &sender{outbound: conn, blocks: c.Blocks(), places: c.Places(), size: size, piece: pieceBytes(bandwidth)}
	p.limits = []*rate.Limiter{limiter(bandwidth, p.piece), s.limit}
	r := newReader(c, int(from), skip, size, room)
	// Before the cache is closed.
	defer r.end()
	return p.all(ctx, r.begin(ctx))
}

// with opens the cache of a move for a call, and closes it. The context that use receives ends
// with the call and with the lease.
func (s *service) with(ctx context.Context, conn *secured, m *streampb.Move, by caller, use func(ctx context.Context, c Cache) error) (err error) {
	node, err := s.gate.node(ctx, by)
	if err != nil {
		return ended(ctx, err)
	}
	id, move, err := moveOf(m)
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("volume", id, "move", move.Name))
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	st := &stream{move: move, node: node, end: end, done: make(chan struct{})}
	// Before the lease is looked at: either that, or End, has the last word.
	if err := s.streams.add(st); err != nil {
		return err
	}
	defer s.streams.remove(st)
	defer cutWhenStuck(ctx, conn.wire.Conn)()
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
// read would keep it for long. The result ends the watch.
func cutWhenStuck(ctx context.Context, raw net.Conn) (stop func()) {
	done := make(chan struct{})
	unwatch := context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(patience):
			_ = raw.Close() // that is what is wanted, and the other side hears of it
		}
	})
	return func() {
		unwatch()
		close(done)
	}
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

// pieceBytes is how much of chunks is sent at once: less at a low rate, so that it is even.
func pieceBytes(bandwidth int64) int {
	const least = 32 << 10
	if bandwidth <= 0 {
		return MaxPieceBytes
	}
	return int(max(least, min(MaxPieceBytes, bandwidth/burstsPerSecond/least*least)))
}

// sender sends chunks.
type sender struct {
	outbound

	blocks []uint64
	places []uint32
	// size is that of a chunk, and piece the most that is sent at once, in bytes.
	size, piece int
	limits      []*rate.Limiter
}

// outbound takes messages, and what follows them.
type outbound interface {
	message(m proto.Message, data ...[]byte) error
	send(data ...[]byte) error
}

// all sends what is read, until there is no more.
func (s *sender) all(ctx context.Context, runs <-chan run) error {
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

// run sends the chunks of a run, when their turn has come.
func (s *sender) run(ctx context.Context, r run) error {
	if len(r.numbers) == 0 {
		return nil
	}
	head := &streampb.Chunks{}
	for k, i := range r.numbers {
		head.Numbers, head.Blocks, head.CachePlaces = append(head.Numbers, uint32(i)), append(head.Blocks, s.blocks[i]), append(head.CachePlaces, s.places[i])
		head.Crc32C = append(head.Crc32C, crc32.Checksum(r.data[k*s.size:(k+1)*s.size], castagnoli))
	}
	for off := 0; off < len(r.data); off += s.piece {
		data := r.data[off:min(off+s.piece, len(r.data))]
		err := s.wait(ctx, len(data))
		switch {
		case off > 0:
			// Only with all its data a message can be followed by the End that says why: once ctx has
			// ended, what is owed goes without a rate.
			err = s.send(data)
		case err == nil:
			err = s.message(&streampb.ChunksReply{Chunks: head}, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wait waits until so many bytes may be sent.
func (s *sender) wait(ctx context.Context, size int) error {
	for _, l := range s.limits {
		if l.Limit() == rate.Inf {
			continue
		}
		if err := l.WaitN(ctx, size); err != nil {
			return err
		}
	}
	return nil
}
