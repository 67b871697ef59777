package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/volume"
)

// source is another node. chunk says what comes of a chunk, before it comes.
type source struct {
	blocks []uint64
	asked  []int
	// listed counts who asked for the list, which is list if that is not nil.
	listed int
	list   *volume.ChunkList
	chunk  func(i int) error
	// block is the block that a chunk is said to be of; nil if that is the map's.
	block func(i int) uint64
}

// Map implements Puller.
func (s *source) Map(context.Context, volume.StreamSource, volume.ID, volume.MoveID) (volume.ChunkList, error) {
	s.listed++
	if s.list != nil {
		return *s.list, nil
	}
	return volume.ChunkList{ChunkSectors: chunkSectors, Blocks: s.blocks}, nil
}

// Chunks implements Puller.
func (s *source) Chunks(ctx context.Context, _ volume.StreamSource, _ volume.ID, _ volume.MoveID, w volume.Wanted, _ int64, chunkBytes int, each func(int, uint64, []byte) error) error {
	s.asked = append(s.asked, w.From)
	buf := blockdev.AlignedBuffer(chunkBytes)
	for i := w.From; i < len(s.blocks); i++ {
		if w.Skip.Has(uint64(i)) {
			continue
		}
		if s.chunk != nil {
			if err := s.chunk(i); err != nil {
				return err
			}
		}
		copy(buf, content(s.blocks[i]))
		block := s.blocks[i]
		if s.block != nil {
			block = s.block(i)
		}
		if err := each(i, block, buf); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// pulled is a node that is filled from a source, which has all of its map.
func pulled(t *testing.T) (*node, *source) {
	t.Helper()
	s := &source{}
	n := newNode(t, s)
	s.blocks, _ = n.m.Hottest()
	return n, s
}

// TestMergeGivenUp: what could not be merged again and again is not merged once more, also if the
// volume cannot go on without its cache at once.
func TestMergeGivenUp(t *testing.T) {
	n, _ := pulled(t)
	n.served()
	now := time.Now()
	n.Now = func() time.Time { now = now.Add(retryPause); return now }
	n.refused = 3
	n.turns("the cache is given up", func() bool {
		if a := n.account("v"); a.failures > patientFor && a.failedIn != stepMerge {
			t.Fatalf("given up as step %s after %d failures", a.failedIn, a.failures)
		}
		return n.why() != ""
	})
}

// served has the stream go on until both levels serve, or it has ended.
func (n *node) served() {
	n.t.Helper()
	n.turns("both levels serve", func() bool { return n.why() != "" || n.levels().RestServes })
}

// inVain is where a source node is asked from that has sent something at first, or nothing, and
// then nothing any more.
func inVain(first, then int) []int {
	return append([]int{first}, slices.Repeat([]int{then}, pulls-1)...)
}

// TestCopy: everything comes from the source node, and the same from the origin when the source
// node fails, wherever that is, and however.
func TestCopy(t *testing.T) {
	gone, fenced := fmt.Errorf("%w: the lease has ended", volume.ErrNotFound), fmt.Errorf("%w: not yours", volume.ErrFenced)
	away := fmt.Errorf("%w: no answer", volume.ErrUnavailable)
	cases := map[string]struct {
		// fails is what the source node says from a chunk on.
		fails error
		at    int
		// recovers has it serve again when it has been asked so often.
		recovers int
		change   func(n *node, s *source)
		// wantAsked are the chunks from which it is asked.
		wantAsked []int
		want      volume.ServedFrom
	}{
		"from the source node":           {wantAsked: []int{0}, want: volume.FromPeer},
		"it does not answer":             {fails: away, wantAsked: inVain(0, 0), want: volume.FromOrigin},
		"it fails in the first level":    {fails: away, at: 1, wantAsked: inVain(0, 1), want: volume.FromOrigin},
		"it fails behind it":             {fails: away, at: 7, wantAsked: inVain(0, 7), want: volume.FromOrigin},
		"it fails at the last chunk":     {fails: away, at: chunks - 1, wantAsked: inVain(0, chunks-1), want: volume.FromOrigin},
		"it fails once":                  {fails: away, at: 7, recovers: 2, wantAsked: []int{0, 7}, want: volume.FromPeer},
		"it ends the lease":              {fails: gone, at: 7, wantAsked: []int{0}, want: volume.FromOrigin},
		"it serves another node":         {fails: fenced, at: 7, wantAsked: []int{0}, want: volume.FromOrigin},
		"it sends less than it has said": {change: func(_ *node, s *source) { s.blocks = s.blocks[:9] }, wantAsked: []int{0}, want: volume.FromOrigin},
		"it has more than there is room": {change: func(_ *node, s *source) { s.blocks = append(s.blocks, 98, 99) }, wantAsked: []int{0}, want: volume.FromPeer},
		"the deadline has passed":        {change: func(n *node, _ *source) { n.entry.Hydration.Deadline = time.Now().Add(-time.Second) }, fails: away, wantAsked: []int{0}, want: volume.FromOrigin},
		"there is none":                  {change: func(n *node, _ *source) { n.entry.Hydration.Stream.Source = nil }, want: volume.FromOrigin},
		"nobody can ask it":              {change: func(n *node, _ *source) { n.Puller = nil }, want: volume.FromOrigin},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n, s := pulled(t)
			s.chunk = func(i int) error {
				if i >= tc.at && (tc.recovers == 0 || len(s.asked) < tc.recovers) {
					return tc.fails
				}
				return nil
			}
			if tc.change != nil {
				tc.change(n, s)
			}
			n.served()
			if why := n.why(); why != "" {
				t.Fatalf("the stream has ended: %s", why)
			}
			n.wantCopied(chunks)
			if fmt.Sprint(s.asked) != fmt.Sprint(tc.wantAsked) {
				t.Errorf("the source node was asked from chunks %v, want %v", s.asked, tc.wantAsked)
			}
			if got := n.States()[0]; got.From != tc.want || got.HydratedBytes != chunks*chunkBytes || got.TotalBytes != chunks*chunkBytes {
				t.Errorf("state %+v, want all from %s", got, tc.want)
			}
		})
	}
}

// TestOtherBlock: a chunk of another block than the map says is never written, nor anything that
// comes behind it; the origin has it.
func TestOtherBlock(t *testing.T) {
	for _, at := range []int{0, 1, 7, chunks - 1} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			n, s := pulled(t)
			s.block = func(i int) uint64 {
				if i == at {
					return s.blocks[i] + 1
				}
				return s.blocks[i]
			}
			pulling := atomic.Bool{}
			n.file.write = func(off int64) error {
				if pulling.Load() && off >= int64(at)*chunkBytes {
					t.Errorf("the chunk at %d was written while the source node sent", off/chunkBytes)
				}
				return nil
			}
			s.chunk = func(int) error { pulling.Store(true); return nil }
			n.PullPause = time.Millisecond
			n.Puller = ending{s, func() { pulling.Store(false) }}
			n.served()
			n.wantCopied(chunks)
			if len(s.asked) != pulls {
				t.Errorf("it was asked %d times, want %d", len(s.asked), pulls)
			}
		})
	}
}

// ending is a source of whose answers somebody is told when they end.
type ending struct {
	*source
	end func()
}

func (e ending) Chunks(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID, w volume.Wanted, bandwidth int64, chunkBytes int, each func(int, uint64, []byte) error) error {
	defer e.end()
	return e.source.Chunks(ctx, src, id, m, w, bandwidth, chunkBytes, each)
}

// TestOutOfOrder: a chunk that is not the next one is never written.
func TestOutOfOrder(t *testing.T) {
	for name, send := range map[string]func(each func(int, uint64, []byte) error, blocks []uint64) error{
		"one is left out": func(each func(int, uint64, []byte) error, blocks []uint64) error {
			return each(1, blocks[1], content(7))
		},
		"one comes twice": func(each func(int, uint64, []byte) error, blocks []uint64) error {
			return errors.Join(each(0, blocks[0], content(blocks[0])), each(0, blocks[0], content(7)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, s := pulled(t)
			n.Puller = sending(func(each func(int, uint64, []byte) error) error { return send(each, s.blocks) })
			n.served()
			n.wantCopied(chunks)
		})
	}
}

// sending is a source node that sends what it likes, to who asks from the first chunk.
type sending func(each func(int, uint64, []byte) error) error

func (sending) Map(context.Context, volume.StreamSource, volume.ID, volume.MoveID) (volume.ChunkList, error) {
	return volume.ChunkList{}, volume.ErrNotFound
}

func (s sending) Chunks(_ context.Context, _ volume.StreamSource, _ volume.ID, _ volume.MoveID, w volume.Wanted, _ int64, _ int, each func(int, uint64, []byte) error) error {
	if w.From > 0 {
		return volume.ErrNotFound
	}
	return s(each)
}

// TestServes: a level serves when all of it has been flushed to the SSD, and not before; the copy
// behind the first one goes on meanwhile.
func TestServes(t *testing.T) {
	n, s := pulled(t)
	var synced atomic.Int32
	goOn := make(chan struct{})
	n.file.sync = func() error {
		if l := n.levels(); l.HotServes && synced.Load() == 0 || l.RestServes {
			t.Errorf("after %d flushes the levels are %+v", synced.Load(), l)
		}
		synced.Add(1)
		return nil
	}
	s.chunk = func(i int) error {
		if i == chunks-1 {
			<-goOn
		}
		return nil
	}
	n.turns("the first level serves", func() bool { return n.levels().HotServes })
	if synced.Load() != 1 || n.levels().RestServes || n.States()[0].HydratedBytes == chunks*chunkBytes {
		t.Errorf("after %d flushes: %+v, %+v", synced.Load(), n.levels(), n.States())
	}
	close(goOn)
	n.served()
	if synced.Load() != 2 {
		t.Errorf("%d flushes, want one for each level", synced.Load())
	}
}

// TestBehindFirstLevel: what another process of the plugin has had serve is not copied again.
func TestBehindFirstLevel(t *testing.T) {
	n, s := pulled(t)
	n.must(n.Stack.Serve(t.Context(), &n.entry, "hot", n.levels().Hot))
	n.file.write = func(off int64) error {
		if off < hotChunks*chunkBytes {
			t.Errorf("chunk %d, which serves, was written", off/chunkBytes)
		}
		return nil
	}
	n.served()
	if fmt.Sprint(s.asked) != fmt.Sprint([]int{hotChunks}) {
		t.Errorf("the source node was asked from chunks %v, want %d", s.asked, hotChunks)
	}
}

// TestStop: a copy that was stopped writes nothing any more, whatever it waits for, and is waited
// for; then the stream ends.
func TestStop(t *testing.T) {
	waits := func(n *node, s *source, begun chan<- struct{}) {
		s.chunk = func(i int) error {
			if i == 5 {
				close(begun)
				select {}
			}
			return nil
		}
		n.Puller = patient{s}
	}
	t.Run("it waits for the source node", func(t *testing.T) {
		n, s := pulled(t)
		begun := make(chan struct{})
		waits(n, s, begun)
		n.turns("it waits", func() bool { return closed(begun) })
		n.must(n.Stop(t.Context(), "v"))
		n.wantCopied(5)
		if all := n.States(); len(all) > 0 && all[0].Copying {
			t.Error("it still copies")
		}
	})
	t.Run("a chunk comes afterwards", func(t *testing.T) {
		n, s := pulled(t)
		begun, stopped := make(chan struct{}), make(chan struct{})
		s.chunk = func(i int) error {
			if i == 5 {
				close(begun)
				<-stopped
			}
			return nil
		}
		n.turns("it waits", func() bool { return closed(begun) })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.Stop(ctx, "v"); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		close(stopped)
		n.must(n.Stop(t.Context(), "v"))
		n.wantCopied(5)
	})
	t.Run("the SSD does not answer", func(t *testing.T) {
		n, _ := pulled(t)
		begun, answers := make(chan struct{}), make(chan struct{})
		n.file.write = func(off int64) error {
			if off == 5*chunkBytes {
				close(begun)
				<-answers
			}
			return nil
		}
		n.turns("it hangs", func() bool { return closed(begun) })
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			err := n.Stop(ctx, "v")
			cancel()
			if !errors.Is(err, volume.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
			// Nothing is loaded beside what it may yet write.
			if err := n.Settle(ctx, &n.entry, "the volume leaves"); !errors.Is(err, volume.ErrUnavailable) || n.why() != "" {
				t.Errorf("got %v, ended %q, want ErrUnavailable", err, n.why())
			}
		}
		close(answers)
		n.must(n.Stop(t.Context(), "v"))
		n.wantCopied(6) // what was under way
	})
	t.Run("the volume is not known", func(t *testing.T) {
		n, _ := pulled(t)
		n.must(n.Stop(t.Context(), "w"))
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// patient is a source node for which nobody waits longer than they want to.
type patient struct{ *source }

func (p patient) Chunks(ctx context.Context, src volume.StreamSource, id volume.ID, m volume.MoveID, w volume.Wanted, bandwidth int64, chunkBytes int, each func(int, uint64, []byte) error) error {
	done := make(chan error, 1)
	go func() { done <- p.source.Chunks(ctx, src, id, m, w, bandwidth, chunkBytes, each) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestFailedCopy: what the SSD refuses, and what the origin does not give, ends the stream, and
// says why; no other source is tried for the SSD's sake.
func TestFailedCopy(t *testing.T) {
	refuse := func(at int64) func(int64) error {
		return func(off int64) error {
			if off == at*chunkBytes {
				return errDisk
			}
			return nil
		}
	}
	cases := map[string]struct {
		change    func(n *node, s *source)
		wantAsked int
		wantHot   bool
		want      string
	}{
		"a write in the first level": {func(n *node, _ *source) { n.file.write = refuse(1) }, 1, false, "the SSD takes no writes"},
		"a write behind it":          {func(n *node, _ *source) { n.file.write = refuse(7) }, 1, true, "the SSD takes no writes"},
		"a flush":                    {func(n *node, _ *source) { n.file.sync = func() error { return errDisk } }, 1, false, "the SSD takes no writes"},
		"a write, from the origin": {func(n *node, _ *source) {
			n.entry.Hydration.Stream.Source, n.file.write = nil, refuse(1)
		}, 0, false, "the SSD takes no writes"},
		"the origin cannot be read": {func(n *node, s *source) {
			s.chunk = func(int) error { return volume.ErrNotFound }
			n.file.read = func(int64) error { return errDisk }
		}, 1, false, errDisk.Error()},
		"the origin cannot be read behind it": {func(n *node, _ *source) {
			n.entry.Hydration.Stream.Source = nil
			n.file.read = refuse(int64(n.m.Entries[7].Origin))
		}, 0, true, errDisk.Error()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n, s := pulled(t)
			tc.change(n, s)
			hot := false
			n.turns("the stream ends", func() bool {
				hot = hot || n.why() == "" && n.levels().HotServes
				return n.why() != ""
			})
			if !strings.Contains(n.why(), tc.want) || len(s.asked) != tc.wantAsked {
				t.Errorf("ended with %q after %d questions, want %q and %d", n.why(), len(s.asked), tc.want, tc.wantAsked)
			}
			if hot && !tc.wantHot || n.levels().RestServes {
				t.Errorf("what was not copied serves: %+v", n.levels())
			}
			n.turns("it is forgotten", func() bool { return n.Count() == 0 })
		})
	}
}
