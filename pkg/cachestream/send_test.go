package cachestream

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"slices"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
)

// parts are what a sender sends.
type parts struct {
	// numbers are those of each message, and sizes those of all parts.
	numbers [][]uint32
	sums    []uint32
	sizes   []int
	data    []byte
}

func (p *parts) message(m proto.Message, data ...[]byte) error {
	c := m.(*streampb.ChunksReply).GetChunks()
	p.numbers, p.sums = append(p.numbers, c.GetNumbers()), append(p.sums, c.GetCrc32C()...)
	return p.send(data...)
}

func (p *parts) send(data ...[]byte) error {
	for _, d := range data {
		p.sizes, p.data = append(p.sizes, len(d)), append(p.data, d...)
	}
	return nil
}

// TestSender: chunks that were read at once have one message, and their data follow it in parts as
// the rate wants them.
func TestSender(t *testing.T) {
	for name, tc := range map[string]struct {
		size, piece int
		runs        []int
		want        [][]uint32
		sizes       []int
	}{
		"at once":      {chunk, 16 * chunk, []int{4, 2, 1}, [][]uint32{{0, 1, 2, 3}, {4, 5}, {6}}, []int{4 * chunk, 2 * chunk, chunk}},
		"in parts":     {chunk, 3 * chunk / 2, []int{2, 1}, [][]uint32{{0, 1}, {2}}, []int{3 * chunk / 2, chunk / 2, chunk}},
		"large":        {6 * chunk, 4 * chunk, []int{1, 1}, [][]uint32{{0}, {1}}, []int{4 * chunk, 2 * chunk, 4 * chunk, 2 * chunk}},
		"an empty one": {chunk, chunk, []int{1, 0, 1}, [][]uint32{{0}, {1}}, []int{chunk, chunk}},
	} {
		t.Run(name, func(t *testing.T) {
			to := &parts{}
			s := &sender{outbound: to, blocks: make([]uint64, 8), places: make([]uint32, 8), size: tc.size, piece: tc.piece}
			runs := make(chan run, len(tc.runs))
			next := 0
			for _, n := range tc.runs {
				data := make([]byte, n*tc.size)
				// The buffer is somebody else's once it was sent.
				r := run{data: data, sent: func() { clear(data) }}
				for i := range n {
					copy(data[i*tc.size:], content(uint64(next), tc.size))
					r.numbers, next = append(r.numbers, next), next+1
				}
				runs <- r
			}
			close(runs)
			if err := s.all(t.Context(), runs); err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(to.numbers, tc.want, slices.Equal) || !slices.Equal(to.sizes, tc.sizes) {
				t.Errorf("sent %v in parts of %v bytes, want %v and %v", to.numbers, to.sizes, tc.want, tc.sizes)
			}
			for i := range next {
				if got := to.data[i*tc.size : (i+1)*tc.size]; !bytes.Equal(got, content(uint64(i), tc.size)) || crc32.Checksum(got, castagnoli) != to.sums[i] {
					t.Errorf("chunk %d has other data, or another sum", i)
				}
			}
		})
	}
}

// TestSenderEnds: a call that ends in the middle of the data sends what it owes, without a rate: the
// reason can follow that alone.
func TestSenderEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	to := &ending{end: cancel}
	s := &sender{outbound: to, blocks: make([]uint64, 8), places: make([]uint32, 8), size: chunk, piece: chunk / 4, limits: []*rate.Limiter{limiter(1, chunk/4)}}
	runs := make(chan run, 2)
	for i := range 2 {
		runs <- run{data: content(uint64(i), chunk), numbers: []int{i}, sent: func() {}}
	}
	close(runs)
	wantErr(t, s.all(ctx, runs), context.Canceled)
	if !bytes.Equal(to.data, content(0, chunk)) || len(to.numbers) != 1 {
		t.Errorf("%d messages, %d bytes of data, want one and %d", len(to.numbers), len(to.data), chunk)
	}
}

// ending ends something with the first message.
type ending struct {
	parts
	end func()
}

func (e *ending) message(m proto.Message, data ...[]byte) error {
	e.end()
	return e.parts.message(m, data...)
}

// TestEndMidway: who is sent a chunk slowly when the lease ends is sent the rest of it, and hears why.
func TestEndMidway(t *testing.T) {
	const size, first = 1 << 20, 32 << 10
	c := newCache(size, 3)
	n := startNode(t, c, nil)
	conn := stranger(t, n, protocol)
	call := &streampb.Call{Token: tokenOf("node-b"), Move: moveMessage(id, move), Wanted: &streampb.Call_Chunks{Chunks: &streampb.ChunksRequest{Bandwidth: 1}}}
	if err := errors.Join(shake(conn), conn.message(call)); err != nil {
		t.Fatal(err)
	}
	in, r, data := &inbound{from: conn, heard: func() {}}, &streampb.ChunksReply{}, make([]byte, size)
	if err := errors.Join(in.message(r, maxReply), in.message(r, maxReply), in.whole(data[:first])); err != nil {
		t.Fatal(err)
	}
	if err := n.End(t.Context(), move); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.whole(data[first:]), in.message(r, maxReply)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, content(c.blocks[0], size)) || r.GetEnd().GetCode() != streampb.Code_CODE_NOT_FOUND {
		t.Errorf("it ends with %v, or the data are others", r.GetEnd())
	}
}
