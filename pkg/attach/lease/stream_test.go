package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/cachetools"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/lvm/lvmtest"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	mib        = 1 << 20
	chunkBytes = 64 << 10
)

// source is a node with the retained cache of a volume that has gone to node b.
type source struct {
	*Lessor
	t       testing.TB
	machine *blockdevtest.Machine
	kernel  *devmappertest.Kernel
	lvs     *lvmtest.LVM
	m       cachemap.Map
	entry   *state.Entry
	rec     volume.Volume
	// mapsRead counts how often the map was read.
	mapsRead int
	// busy tells that somebody works on the volume.
	busy  bool
	ended []volume.MoveID
}

var moveToB = volume.MoveID{Name: "v-5", UID: "m1"}

func streamRequest() volume.LeaseRequest {
	return volume.LeaseRequest{Move: moveToB, Volume: "v", UID: "u", Generation: 4, To: "b", Method: volume.MethodStream}
}

func newSource(t testing.TB) *source {
	t.Helper()
	s := &source{t: t, machine: blockdevtest.New()}
	s.kernel, s.lvs = devmappertest.New(s.machine), lvmtest.New(s.machine)
	s.machine.Add("259:0", "/dev/nvme0n1", blockdevtest.NewDisk(64*mib))
	fence := volume.Fence{UID: "u", Generation: 4, Node: "a"}
	s.entry = &state.Entry{
		ID: "v", Fence: fence, State: state.Retained, Mode: volume.ModeWritethrough, Activated: true, Clean: true, Boot: "boot",
		ChunkSectors: chunkBytes / 512, DataBytes: 4 * mib, MetaBytes: 4 * mib,
	}
	s.rec = volume.Volume{ID: "v", Fence: volume.Fence{UID: "u", Generation: 5, Node: "b"}, Published: true}
	c := s.lvmClient()
	s.must(c.CreateVG(t.Context(), "vg", []string{"/dev/nvme0n1"}))
	for _, name := range []string{layout.DataLV("v"), layout.MetaLV("v")} {
		s.must(c.CreateLV(t.Context(), lvm.CreateSpec{VG: "vg", Name: name, SizeBytes: 4 * mib, Tags: append(layout.Tags(fence, volume.ModeWritethrough), layout.StopTag)}))
	}
	lvs, err := c.LVs(t.Context(), "vg")
	s.must(err)
	found := layout.Find(lvs, "v")
	s.m = cachemap.Map{ChunkSectors: chunkBytes / 512, CacheBlocks: 64, Entries: []cachemap.Entry{{Cache: 2, Origin: 70}, {Cache: 5, Origin: 30}, {Cache: 9, Origin: 11}, {Cache: 40, Origin: 52}}}
	file := filepath.Join(t.TempDir(), "map")
	s.must(cachetools.WriteFile(file, s.m))
	s.must(devmappertest.Tools{Machine: s.machine}.Restore(t.Context(), file, found.Meta.DevPath()))
	data, err := s.machine.Device(found.Data.DevPath())
	s.must(err)
	for block := range int64(64) {
		_, err := data.WriteAt(held(uint64(block)), block*chunkBytes)
		s.must(err)
	}
	s.begin()
	return s
}

func (s *source) lvmClient() lvm.Client {
	c := s.lvs.Client(nil)
	c.SetDevices([]string{"/dev/nvme0n1"})
	return c
}

// begin begins a process of the plugin.
func (s *source) begin() {
	dm, blocks := s.kernel.Client(nil), s.machine.Blocks(nil)
	st := stack.New(stack.Config{DM: dm, Blocks: blocks})
	tools := devmappertest.Tools{Machine: s.machine, InUse: true}
	s.Lessor = &Lessor{
		Host: s, Devices: dm, Stack: st, SSD: ssd.New(ssd.Config{LVM: s.lvmClient(), Pool: s, Blocks: blocks, Stack: st}),
		Streams: sends{s}, Open: blocks.Open, Discard: blocks.Discard, Dump: devmappertest.Tools{Machine: s.machine}.Dump, Node: "a", Boot: "boot", Dir: s.t.TempDir(),
		ReadInUse: func(ctx context.Context, device, base string) (cachemap.Map, error) {
			s.mapsRead++
			if err := tools.Dump(ctx, device, base); err != nil {
				return cachemap.Map{}, err
			}
			m, err := cachetools.ReadFile(base)
			if err != nil {
				return cachemap.Map{}, err
			}
			for i := range m.Entries { // hotter towards the end
				m.Entries[i].Level = uint32(10 * i)
			}
			return *m, nil
		},
	}
}

// held is what a block of the cache has.
func held(block uint64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "cached at %05d.", block), chunkBytes/16+1)[:chunkBytes]
}

func (s *source) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// wantStream opens the stream and compares what it sends with the cache.
func (s *source) wantStream() {
	s.t.Helper()
	c, err := s.OpenStream(s.t.Context(), "v", moveToB, "b")
	s.must(err)
	if c.ChunkSectors() != chunkBytes/512 || !slices.Equal(c.Blocks(), []uint64{52, 11, 30, 70}) || !slices.Equal(c.Places(), []uint32{40, 9, 5, 2}) {
		s.t.Errorf("blocks %v in chunks of %d sectors, want the hottest first", c.Blocks(), c.ChunkSectors())
	}
	buf := make([]byte, chunkBytes)
	for i, at := range []uint64{40, 9, 5, 2} {
		if n, err := c.ReadChunks(s.t.Context(), i, buf); err != nil || n != 1 || !bytes.Equal(buf, held(at)) {
			s.t.Errorf("%d chunks from %d on: %.20q (%v), want what is cached at %d", n, i, buf, err, at)
		}
	}
	for _, i := range []int{-1, 4} {
		if _, err := c.ReadChunks(s.t.Context(), i, buf); !errors.Is(err, volume.ErrInvalid) {
			s.t.Errorf("chunk %d: %v, want ErrInvalid", i, err)
		}
	}
	s.must(c.Close())
}

// TestStreamLease: a cache is streamed to the node that the record names, in that move, for as long
// as the lease lasts, also by another process of the plugin.
func TestStreamLease(t *testing.T) {
	s := newSource(t)
	lease, err := s.Export(t.Context(), streamRequest())
	s.must(err)
	if lease.Move != moveToB || lease.ChunkSectors != chunkBytes/512 || lease.DataBytes != 4*mib || s.entry.StreamedTo != "b" || lease.Source.IQN != "" {
		t.Errorf("lease %+v, streamed to %q", lease, s.entry.StreamedTo)
	}
	s.wantStream()
	s.wantStream()
	if s.mapsRead != 1 {
		t.Errorf("the map was read %d times", s.mapsRead)
	}
	s.begin()
	s.wantStream() // in the same order
	if s.mapsRead != 2 {
		t.Errorf("the map was read %d times, want once by each process", s.mapsRead)
	}
	again, err := s.Export(t.Context(), streamRequest())
	if err != nil || again.Move != lease.Move || again.DataBytes != lease.DataBytes {
		t.Errorf("asked again: %+v, %v", again, err)
	}

	if used, err := s.InUse(t.Context(), "v"); err != nil || used {
		t.Errorf("in use %t, %v: no pod waits for a stream", used, err)
	}

	s.must(s.EndLease(t.Context(), "v", volume.MoveID{Name: "v-5", UID: "m0"})) // another one's
	s.wantStream()
	s.must(s.EndLease(t.Context(), "v", moveToB))
	if !slices.Equal(s.ended, []volume.MoveID{moveToB}) || s.entry.Exported != nil || s.entry.StreamedTo != "" {
		t.Errorf("ended %v, journal %+v", s.ended, s.entry)
	}
	if _, err := s.OpenStream(t.Context(), "v", moveToB, "b"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("after its end: %v, want ErrNotFound", err)
	}
	if len(s.maps.m)+len(s.maps.ended) > 0 {
		t.Errorf("what has ended is remembered: %v, %v", s.maps.m, s.maps.ended)
	}
}

// TestOpenStreamRefuses: what the journal does not say is streamed to a node in a move is not.
func TestOpenStreamRefuses(t *testing.T) {
	cases := map[string]struct {
		move   volume.MoveID
		to     string
		change func(s *source)
		want   error
	}{
		"another node":                {moveToB, "c", nil, volume.ErrFenced},
		"nobody":                      {moveToB, "", nil, volume.ErrFenced},
		"another move":                {volume.MoveID{Name: "v-6", UID: "m1"}, "b", nil, volume.ErrNotFound},
		"an earlier object":           {volume.MoveID{Name: "v-5", UID: "m0"}, "b", nil, volume.ErrNotFound},
		"no move":                     {volume.MoveID{}, "b", nil, volume.ErrNotFound},
		"exported over iSCSI":         {moveToB, "b", func(s *source) { s.entry.StreamedTo = "" }, volume.ErrFenced},
		"exported over iSCSI, nobody": {moveToB, "", func(s *source) { s.entry.StreamedTo = "" }, volume.ErrFenced},
		"of an earlier boot":          {moveToB, "b", func(s *source) { s.entry.Boot = "earlier" }, volume.ErrNotFound},
		"of a cache that is gone":     {moveToB, "b", func(s *source) { s.entry = nil }, volume.ErrNotFound},
		"not exported":                {moveToB, "b", func(s *source) { s.entry.Exported, s.entry.StreamedTo = nil, "" }, volume.ErrNotFound},
		"its device is gone": {moveToB, "b", func(s *source) {
			s.must(s.Stack.Remove(s.t.Context(), "v", layout.Exported))
		}, volume.ErrNotFound},
		"its end has begun": {moveToB, "b", func(s *source) { s.maps.end(moveToB) }, volume.ErrNotFound},
		"half of it is gone": {moveToB, "b", func(s *source) {
			s.must(s.Stack.Remove(s.t.Context(), "v", layout.Exported))
			s.must(s.lvmClient().RemoveLVs(s.t.Context(), "vg", layout.DataLV("v")))
		}, volume.ErrUnavailable},
		"its map cannot be read": {moveToB, "b", func(s *source) {
			s.ReadInUse = func(context.Context, string, string) (cachemap.Map, error) { return cachemap.Map{}, os.ErrPermission }
		}, volume.ErrUnavailable},
		"its map has dirty chunks": {moveToB, "b", func(s *source) {
			s.ReadInUse = func(context.Context, string, string) (cachemap.Map, error) {
				return cachemap.Map{ChunkSectors: chunkBytes / 512, Dirty: 1}, nil
			}
		}, volume.ErrUnavailable},
		"its map has other chunks": {moveToB, "b", func(s *source) { s.entry.ChunkSectors = 64 }, volume.ErrUnavailable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSource(t)
			if _, err := s.Export(t.Context(), streamRequest()); err != nil {
				t.Fatal(err)
			}
			if tc.change != nil {
				tc.change(s)
			}
			if c, err := s.OpenStream(t.Context(), "v", tc.move, tc.to); !errors.Is(err, tc.want) {
				t.Errorf("got %+v, %v, want %v", c, err, tc.want)
			}
		})
	}
}

// TestExportByStream: what is no request for a stream of a retained cache is refused, and changes
// nothing.
func TestExportByStream(t *testing.T) {
	cases := map[string]struct {
		change func(s *source, r *volume.LeaseRequest)
		want   error
	}{
		"an unknown method":      {func(_ *source, r *volume.LeaseRequest) { r.Method = "carrier pigeon" }, volume.ErrInvalid},
		"from the hot set":       {func(_ *source, r *volume.LeaseRequest) { r.Method = volume.MethodHotSet }, volume.ErrInvalid},
		"prewarm":                {func(_ *source, r *volume.LeaseRequest) { r.Purpose, r.Request = volume.PurposePrewarm, "r" }, volume.ErrNotFound},
		"nothing is sent here":   {func(s *source, _ *volume.LeaseRequest) { s.Streams = nil }, volume.ErrUnavailable},
		"to another node":        {func(_ *source, r *volume.LeaseRequest) { r.To = "c" }, volume.ErrFenced},
		"of another generation":  {func(_ *source, r *volume.LeaseRequest) { r.Generation = 3 }, volume.ErrNotFound},
		"by clone, no exporter":  {func(_ *source, r *volume.LeaseRequest) { r.Method = volume.MethodClone }, volume.ErrUnavailable},
		"no method, no exporter": {func(_ *source, r *volume.LeaseRequest) { r.Method = "" }, volume.ErrUnavailable},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSource(t)
			r := streamRequest()
			tc.change(s, &r)
			if _, err := s.Export(t.Context(), r); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if s.entry.StreamedTo != "" {
				t.Errorf("the journal says that it is streamed to %q", s.entry.StreamedTo)
			}
		})
	}
}

// TestStreamOfAnotherMove: a lease that replaces another one ends what is sent in that.
func TestStreamOfAnotherMove(t *testing.T) {
	s := newSource(t)
	_, err := s.Export(t.Context(), streamRequest())
	s.must(err)
	r := streamRequest()
	r.Move.UID = "m2"
	_, err = s.Export(t.Context(), r)
	s.must(err)
	if !slices.Equal(s.ended, []volume.MoveID{moveToB}) || *s.entry.Exported != r.Move || s.entry.StreamedTo != "b" {
		t.Errorf("ended %v, journal %+v", s.ended, s.entry)
	}
	if _, err := s.OpenStream(t.Context(), "v", moveToB, "b"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the move before: %v, want ErrNotFound", err)
	}
	c, err := s.OpenStream(t.Context(), "v", r.Move, "b")
	s.must(err)
	s.must(c.Close())
}

// sends is what the node sends.
type sends struct{ s *source }

// End implements Streams. Nothing of the move may be opened from here on.
func (x sends) End(_ context.Context, m volume.MoveID) error {
	if c, err := x.s.OpenStream(x.s.t.Context(), "v", m, "b"); !errors.Is(err, volume.ErrNotFound) {
		x.s.t.Errorf("while the lease ends: %+v, %v, want ErrNotFound", c, err)
	}
	x.s.ended = append(x.s.ended, m)
	return nil
}

// View implements ssd.PoolView.
func (*source) View() pool.View {
	return pool.View{Ready: true, VG: "vg", Devices: []string{"/dev/nvme0n1"}, ExtentBytes: 4 * mib, LogicalBlock: 512, Copies: 1, Stripes: 1, CapacityBytes: 60 * mib}
}

// Entries implements state.Journal.
func (s *source) Entries() ([]state.Entry, error) { return []state.Entry{*s.entry}, nil }

// Entry implements state.Journal.
func (s *source) Entry(volume.ID) (*state.Entry, error) {
	if s.entry == nil {
		return nil, nil
	}
	e := *s.entry
	return &e, nil
}

// Save implements state.Journal.
func (s *source) Save(_ context.Context, e *state.Entry, st state.State) error {
	saved := *e
	saved.State = st
	s.entry = &saved
	return saved.Validate()
}

// TryLock implements Host.
func (s *source) TryLock(volume.ID) (unlock func(), ok bool) { return func() {}, !s.busy }

// Settled implements Host.
func (s *source) Settled(_ context.Context, id volume.ID) (*state.Entry, error) { return s.Entry(id) }

// Record implements Host.
func (s *source) Record(context.Context, volume.ID) (volume.Volume, error) { return s.rec, nil }

// Wipe implements Host.
func (*source) Wipe(context.Context, volume.ID, *state.Entry) error { return nil }

// ReportWiped implements Host.
func (*source) ReportWiped(context.Context, *state.Entry) error { return nil }

// places is a device of which each chunk has its number.
type places struct {
	blockdev.File
	reads int
	// fails is the end of a read behind its first chunk.
	fails error
}

func (p *places) ReadAt(b []byte, off int64) (int, error) {
	p.reads++
	if p.fails != nil {
		return chunkBytes, p.fails
	}
	for i := range b {
		b[i] = byte((off + int64(i)) / chunkBytes)
	}
	return len(b), nil
}

// TestReadChunks: what lies side by side in the cache is read at once, as much as there is room for.
func TestReadChunks(t *testing.T) {
	dev := &places{}
	s := &Streamed{chunkSectors: chunkBytes / 512, dev: dev, offset: 7 * chunkBytes, list: list{cache: []uint32{3, 4, 5, 6, 9, 8, 2, 3}}}
	var got []int
	for i := 0; i < len(s.list.cache); {
		buf := make([]byte, 3*chunkBytes+1)
		n, err := s.ReadChunks(t.Context(), i, buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, n)
		for k := range n {
			if want := byte(7 + s.list.cache[i+k]); buf[k*chunkBytes] != want || buf[(k+1)*chunkBytes-1] != want {
				t.Errorf("chunk %d is %d, want %d", i+k, buf[k*chunkBytes], want)
			}
		}
		i += n
	}
	if want := []int{3, 1, 1, 1, 2}; !slices.Equal(got, want) || dev.reads != len(want) {
		t.Errorf("read %v at a time, want %v", got, want)
	}
	dev.fails = errors.New("a bad sector")
	if n, err := s.ReadChunks(t.Context(), 0, make([]byte, 3*chunkBytes)); n != 0 || !errors.Is(err, dev.fails) {
		t.Errorf("%d chunks, %v: want none of a read that has failed", n, err)
	}
}
