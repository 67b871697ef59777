package cachestream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// connectTimeout is how long one address may take to answer.
	connectTimeout = 5 * time.Second
	// goneAfter is how long a machine may not answer at all.
	goneAfter = 15 * time.Second
	// Silence is how long a source node may send nothing. It is longer than what the node's
	// bandwidth, shared by all its streams, makes one of them wait.
	Silence = time.Minute
)

// errSilent is why a stream is given up that brings nothing.
var errSilent = fmt.Errorf("%w: the source node has sent nothing for too long", volume.ErrUnavailable)

// Client receives the chunks of other nodes' caches. It is safe for concurrent use; each call
// has a connection of its own.
type Client struct {
	token   tokenFile
	cert    tls.Certificate
	silence time.Duration
}

// Client returns a Client that proves itself by this node's key, and by a token for Audience, which
// is in a file. The file is read for each call.
func (s *Server) Client(tokenFilePath string) *Client {
	return &Client{token: tokenFile(tokenFilePath), cert: s.cert, silence: Silence}
}

// Map returns what a source node has to send: at most volume.MaxExportedChunks, at places below
// that. Whether the blocks are of the volume at all, and the places of the cache, is for the caller
// to say.
//
// Errors: volume.ErrNotFound, volume.ErrFenced, volume.ErrUnavailable (with ErrKey, if another
// key answers), ErrBroken.
func (c *Client) Map(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID) (volume.ChunkList, error) {
	var l *list
	call := func() *streampb.Call {
		return &streampb.Call{Move: moveMessage(id, m), Wanted: &streampb.Call_Map{Map: &streampb.MapRequest{}}}
	}
	err := c.try(ctx, src, call, func(in *inbound, _ *silence) error {
		l = &list{}
		if err := receive(in, func() *streampb.MapReply { return &streampb.MapReply{} }, l.add); err != nil {
			return err
		}
		return l.end()
	})
	if err != nil {
		return volume.ChunkList{}, fmt.Errorf("list of the cache of volume %s: %w", id, err)
	}
	return volume.ChunkList{ChunkSectors: l.chunkSectors, Blocks: l.blocks, Places: l.places}, nil
}

// Chunks receives the wanted chunks of the list that Map returns, in order, at most
// bandwidth bytes per second (0 is no limit), and gives each to each, with its place, its block
// of the origin as the source node has it now, and its content. The caller compares place and
// block with the list that it began with: a source that begins anew could have another.
// data is chunkBytes long and aligned for O_DIRECT, and belongs to Chunks again when each returns.
//
// nil means that the list has been received to its end. The addresses of the source are tried one
// after another, each once; after an error the caller may go on at the place after the last that
// each was given. Errors: that of each; those of Map; volume.ErrInvalid if there is no such place;
// volume.ErrUnavailable if a chunk comes from another place of the cache than is wanted.
func (c *Client) Chunks(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID, w volume.Wanted, bandwidth int64, chunkBytes int,
	each func(i int, block uint64, data []byte) error,
) error {
	if err := checkGeometry(uint64(max(0, chunkBytes))/sectorSize, 0); err != nil || chunkBytes%sectorSize != 0 || w.From < 0 || w.From > volume.MaxExportedChunks || len(w.Skip) > maxSkip || bandwidth < 0 {
		return fmt.Errorf("%w: chunks of %d bytes from number %d on, at %d bytes per second", volume.ErrInvalid, chunkBytes, w.From, bandwidth)
	}
	a := &assembly{buf: blockdev.AlignedBuffer(chunkBytes), wanted: w, next: wantedFrom(w.Skip, w.From)}
	call := func() *streampb.Call { // at each address from the chunk on that comes next
		wanted := &streampb.ChunksRequest{From: uint32(a.next), Bandwidth: uint64(bandwidth), Skip: w.Skip}
		return &streampb.Call{Move: moveMessage(id, m), Wanted: &streampb.Call_Chunks{Chunks: wanted}}
	}
	err := c.try(ctx, src, call, func(in *inbound, s *silence) error {
		a.begin()
		err := receive(in, func() *streampb.ChunksReply { return &streampb.ChunksReply{} }, func(r *streampb.ChunksReply) error {
			return a.take(r, in, func(i int, block uint64) error {
				s.pause() // the time that each takes is not the source's
				if err := each(i, block, a.buf); err != nil {
					return callerError{err}
				}
				s.heard()
				return nil
			})
		})
		if err != nil {
			return err
		}
		return a.end()
	})
	var own callerError
	if errors.As(err, &own) {
		return own.error
	}
	if err != nil {
		return fmt.Errorf("chunk %d of the cache of volume %s: %w", a.next, id, err)
	}
	return nil
}

// silence ends a call that hears nothing.
type silence struct {
	// heardOf counts what was heard; paused tells that nothing needs to be.
	heardOf atomic.Uint64
	paused  atomic.Bool
}

// newSilence calls end when nothing has been heard for a bound, until ctx ends. It looks now and then,
// so that what is heard costs nothing: end may be late by a part of the bound.
func newSilence(ctx context.Context, bound time.Duration, end func()) *silence {
	s := &silence{}
	go func() {
		const looks = 8
		ticker := time.NewTicker(bound / looks)
		defer ticker.Stop()
		last, silent := uint64(0), 0
		for silent <= looks {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now := s.heardOf.Load(); now != last || s.paused.Load() {
				last, silent = now, 0
			} else {
				silent++
			}
		}
		end()
	}()
	return s
}

func (s *silence) heard() { s.heardOf.Add(1); s.paused.Store(false) }
func (s *silence) pause() { s.paused.Store(true) }

// reply is what ends with an End.
type reply interface {
	proto.Message
	GetEnd() *streampb.End
}

// receive gives each reply to add, until the last one.
func receive[R reply](in *inbound, empty func() R, add func(R) error) error {
	for {
		r := empty()
		if err := in.message(r, maxReply); err != nil {
			return err
		}
		if end := r.GetEnd(); end != nil {
			return errorOf(end)
		}
		if err := add(r); err != nil {
			return err
		}
	}
}

// callerError is an error of a caller's own function.
type callerError struct{ error }

// Unwrap returns it.
func (e callerError) Unwrap() error { return e.error }

func moveMessage(id volume.ID, m volume.MoveID) *streampb.Move {
	return &streampb.Move{VolumeId: string(id), Name: m.Name, Uid: m.UID}
}

// try makes the call that call returns at one address after the other, as long as they cannot be reached.
// take takes what is answered.
func (c *Client) try(ctx context.Context, src volume.StreamSource, call func() *streampb.Call, take func(*inbound, *silence) error) error {
	if len(src.Addresses) == 0 {
		return fmt.Errorf("%w: the source node has no address", volume.ErrUnavailable)
	}
	var errs []error
	for _, at := range src.Addresses {
		err := c.callAt(ctx, at, src.PublicKey, call(), take)
		var own callerError
		switch {
		case err == nil, errors.As(err, &own):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", volume.ErrUnavailable, context.Cause(ctx))
		}
		errs = append(errs, fmt.Errorf("%.64s: %w", at, err))
		if !errors.Is(err, volume.ErrUnavailable) {
			return errs[len(errs)-1]
		}
	}
	return errors.Join(errs...)
}

// callAt makes a call at an address. The call is given up when it hears nothing for too long.
func (c *Client) callAt(ctx context.Context, address, key string, call *streampb.Call, take func(*inbound, *silence) error) (err error) {
	token, err := c.token.read()
	if err != nil {
		return fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	conn, err := c.connect(ctx, address, key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // which closes the connection: everything was said
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	s := newSilence(ctx, c.silence, func() { cancel(errSilent) })
	call.Token = token
	if err = conn.message(call); err == nil {
		err = take(&inbound{from: conn, heard: s.heard}, s)
	}
	var lost lostError
	switch {
	case !errors.As(err, &lost): // whether it hears something or not
		return err
	case errors.Is(context.Cause(ctx), errSilent):
		return errSilent
	}
	return fmt.Errorf("%w: %w", volume.ErrUnavailable, lost.error)
}

// connect connects to the node that has a key. Errors: ErrBroken if there can be none,
// volume.ErrUnavailable, with ErrKey if another key answers.
func (c *Client) connect(ctx context.Context, address, key string) (*secured, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || at.Addr().Zone() != "" {
		return nil, fmt.Errorf("%w: %.64q is no address and port", ErrBroken, address)
	}
	refused := false
	conf, err := clientTLS(c.cert, key, func() { refused = true })
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	raw, err := dialer().DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	w := newWire(raw)
	conn := tls.Client(w, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // nothing was said
		if refused {
			return nil, fmt.Errorf("%w: %w", volume.ErrUnavailable, ErrKey)
		}
		return nil, fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
	}
	return &secured{Conn: conn, wire: w}, nil
}
