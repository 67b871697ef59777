package attach_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach"
	"github.com/nearflash/nearflash/pkg/attach/stream"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// sending is what a node sends of a move now.
type sending struct {
	mu    sync.Mutex
	ended map[volume.MoveID]bool
}

// streams are what a node sends, as its lessor sees it.
type streams struct{ h *host }

// End implements lease.Streams.
func (s streams) End(_ context.Context, m volume.MoveID) error {
	s.h.sends.mu.Lock()
	if s.h.sends.ended == nil {
		s.h.sends.ended = map[volume.MoveID]bool{}
	}
	s.h.sends.ended[m] = true
	s.h.sends.mu.Unlock()
	return nil
}

func (s *sending) over(m volume.MoveID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[m]
}

// puller reads what another node streams.
type puller struct {
	h    *host
	gate *gate
}

func (p puller) open(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID) (c interface {
	ChunkSectors() uint64
	Blocks() []uint64
	Places() []uint32
	ReadChunks(ctx context.Context, i int, buf []byte) (int, error)
	Close() error
}, from *host, err error) {
	p.h.w.mu.Lock()
	from = p.h.w.hosts[src.Addresses[0]]
	p.h.w.mu.Unlock()
	other := from.plugin
	ended, err := other.run(func() (err error) {
		c, err = other.Lessor().OpenStream(ctx, id, m, p.h.name)
		return err
	})
	if ended != "" {
		return nil, from, fmt.Errorf("%w: node %s does not answer", volume.ErrUnavailable, from.name)
	}
	return c, from, err
}

// Map implements attach.Puller.
func (p puller) Map(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID) (l volume.ChunkList, err error) {
	if err := blockdevtest.Step(p.gate.step).Query(ctx, "the other node's map"); err != nil {
		return l, err
	}
	p.h.asked.Add(1)
	if p.h.silent != nil {
		select {
		case p.h.silent <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return l, ctx.Err()
	}
	c, _, err := p.open(ctx, src, id, m)
	if err != nil {
		return l, err
	}
	if p.h.listed != nil {
		defer close(p.h.listed)
	}
	return volume.ChunkList{ChunkSectors: c.ChunkSectors(), Blocks: c.Blocks(), Places: c.Places()}, c.Close()
}

// Chunks implements attach.Puller.
func (p puller) Chunks(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID, w volume.Wanted, _ int64, chunkBytes int, each func(i int, block uint64, b []byte) error) error {
	c, from, err := p.open(ctx, src, id, m)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	buf := blockdev.AlignedBuffer(chunkBytes)
	for i := w.From; i < len(c.Blocks()); i++ {
		if w.Skip.Has(uint64(i)) {
			continue
		}
		if w.Places != nil && w.Places[i] != c.Places()[i] {
			return fmt.Errorf("%w: another place", volume.ErrUnavailable)
		}
		p.h.got.Add(1)
		if from.sends.over(m) {
			return fmt.Errorf("%w: the lease has ended", volume.ErrNotFound)
		}
		if _, err := c.ReadChunks(ctx, i, buf); err != nil {
			return fmt.Errorf("%w: %w", volume.ErrUnavailable, err)
		}
		// A process that ends leaves its connection, and the other node lets the device go.
		got := make(chan error, 1)
		go func() { got <- each(i, c.Blocks()[i], buf) }()
		select {
		case err := <-got:
			if err != nil {
				return err
			}
		case <-p.gate.dead:
			_ = c.Close()
			select {}
		}
		if do := p.h.meanwhile; do != nil {
			p.h.meanwhile = nil
			do()
		}
	}
	return nil
}

// levelTools writes maps, or takes longer for those of levels, and by clone for all, than anybody
// waits.
type levelTools struct {
	attach.MetadataTools
	h *host
}

// Restore implements attach.MetadataTools.
func (t levelTools) Restore(ctx context.Context, file, device string) error {
	if t.h.lateLevels.Load() && (t.h.w.method == volume.MethodClone || strings.Contains(file, ".hotmeta.") || strings.Contains(file, ".restmeta.")) {
		<-ctx.Done()
		return ctx.Err()
	}
	return t.MetadataTools.Restore(ctx, file, device)
}

// maps reads maps in use, or takes longer than anybody waits.
func (h *host) maps(read func(context.Context, string, string) (cachemap.Map, error)) func(context.Context, string, string) (cachemap.Map, error) {
	return func(ctx context.Context, device, base string) (cachemap.Map, error) {
		if h.lateMaps.Load() {
			<-ctx.Done()
			return cachemap.Map{}, ctx.Err()
		}
		return read(ctx, device, base)
	}
}

// readInUse reads the map of metadata in use: there is no page cache here that a copy would have
// to get past.
func readInUse(tools attach.MetadataTools) func(ctx context.Context, device, base string) (cachemap.Map, error) {
	return func(ctx context.Context, device, base string) (cachemap.Map, error) {
		defer func() { _ = os.Remove(base) }()
		if err := tools.Dump(ctx, device, base); err != nil {
			return cachemap.Map{}, err
		}
		m, err := cachetools.ReadFile(base)
		if err != nil {
			return cachemap.Map{}, err
		}
		return *m, nil
	}
}

// streams has a node take the next step of its stream, and waits for what is copied by that.
func (l *life) streams(p *plugin) {
	p.Streams().Turn(l.ctx)
	copies := func(s stream.State) bool { return s.Copying }
	for range 60_000 {
		if !slices.ContainsFunc(p.Streams().States(), copies) {
			return
		}
		select {
		case <-p.gate.dead:
			select {} // its copy stays where it was, and nobody waits for this answer
		case <-time.After(time.Millisecond):
		}
	}
	panic("the copy does not end")
}

// newStreamLife is a life whose cache follows the volume by stream.
func newStreamLife(t testing.TB, mode volume.CacheMode, victim string, d ...disaster) *life {
	w := newWorldOf(t, mode, 256<<10)
	w.method = volume.MethodStream
	l := newWarmLifeIn(w, mode, victim, mode == volume.ModeWriteback, d...)
	l.prepared = true // otherwise what comes first, the map or the end of the stage, is chance
	return l
}

// streamed has a cache follow the volume by stream, with the pod writing at every step, and
// back, where it is left in the middle.
func (l *life) streamed() {
	l.t.Helper()
	l.stay(l.a, 1, 0, 1, 2, 3, 4, 5)
	l.arrive(l.b)
	l.b.podWrites(2, 1, 12)
	for i := range wholeHydration {
		if e := l.b.entry(); e == nil || e.Hydration == nil {
			break
		}
		l.hydration(l.b, l.a, 1)
		l.podReads(l.b)
		l.b.podWrites(uint64(3+i), int64(2+i%3), 13)
		l.podReads(l.b)
	}
	l.podReads(l.b)
	l.leave(l.b)
	l.givenBack(l.a)
	l.arrive(l.a)
	l.a.podWrites(400, 3, 14)
	l.hydration(l.a, l.b, 2)
	l.podReads(l.a)
	l.leave(l.a)
	l.givenBack(l.b)
	l.stay(l.a, 500, 4)
}

// TestStream: a cache follows its volume without a clone, and nothing that was written comes
// from the stream.
func TestStream(t *testing.T) {
	for _, mode := range cacheModes[1:] {
		t.Run(string(mode), func(t *testing.T) { newStreamLife(t, mode, "").streamed() })
		t.Run(string(mode)+", the other node is lost", func(t *testing.T) { newStreamLife(t, mode, "").losePeer() })
		t.Run(string(mode)+", prepared", func(t *testing.T) { newStreamLife(t, mode, "").prepare() })
	}
	t.Run("written to while it is copied", func(t *testing.T) {
		l := newStreamLife(t, volume.ModeWritethrough, "")
		l.stay(l.a, 1, 0, 1, 2, 3, 4, 5)
		l.arrive(l.b)
		if e := l.b.entry(); !e.Streams() || e.Hydration.Stream.Chunks == 0 {
			t.Fatalf("no stream: %+v", e)
		}
		l.b.meanwhile = func() { l.b.podWrites(2, 0, 1, 2, 3) }
		l.hydration(l.b, l.a, wholeHydration)
		if st, found, err := l.b.kernel.Client(nil).Status(l.ctx, "nf-pvc-1"); err != nil || !found || st.CacheUsed < 2 || st.Policy != devmapper.PolicySMQ {
			t.Errorf("what was streamed does not serve: %+v (%v)", st, err)
		}
		l.podReads(l.b)
		l.leave(l.b)
		l.givenBack(l.a)
	})
}

// TestKillStream ends the plugin of either node, or the node, before and after everything that
// it changes while a cache follows its volume by stream.
func TestKillStream(t *testing.T) {
	for j, victim := range []string{"node-a", "node-b"} {
		for k, power := range []bool{false, true} {
			if os.Getenv("MATRIX") != "whole" && j == 0 && power {
				continue
			}
			mode := cacheModes[1:][(j+k)%2]
			t.Run(fmt.Sprintf("%s/%s/power=%t", mode, victim, power), func(t *testing.T) {
				t.Parallel()
				begin := func(d ...disaster) *life { return newStreamLife(t, mode, victim, d...) }
				var matter []string
				if victim == "node-b" {
					matter = []string{"after create nf-pvc-1.hot", "after resume nf-pvc-1.hot"}
				}
				killEachOf(t, begin, power, (*life).streamed, nil, matter...)
			})
		}
	}
}
