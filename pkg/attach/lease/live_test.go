package lease

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev/blockdevtest"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// newLiveSource is a node on which the cache is in use, and from which node b asks for it.
func newLiveSource(t testing.TB) *source {
	t.Helper()
	s := newSource(t)
	s.entry.State, s.entry.Clean = state.Staged, false
	s.rec.Fence, s.rec.Prewarm = s.entry.Fence, &volume.Prewarm{Node: "b", Request: "r"}
	s.machine.Add("8:2", "/dev/lun", blockdevtest.NewDisk(16*mib))
	lvs, err := s.lvmClient().LVs(t.Context(), "vg")
	s.must(err)
	found, dm := layout.Find(lvs, "v"), s.kernel.Client(nil)
	data, err := dm.Create(t.Context(), layout.Device("v", layout.Data), layout.UUID(s.entry.Fence, layout.Data), devmapper.LinearTable(4*mib/512, found.Data.DevNo()))
	s.must(err)
	_, err = dm.Create(t.Context(), layout.Device("v", layout.Top), layout.UUID(s.entry.Fence, layout.Top), devmapper.Table{{Length: 16 * mib / 512, Target: devmapper.CacheTarget{
		Metadata: found.Meta.DevNo(), Data: data.DevNo(), Origin: "8:2", ChunkSectors: chunkBytes / 512, Mode: devmapper.Writethrough, Policy: devmapper.PolicySMQ,
	}}})
	s.must(err)
	return s
}

func liveRequest() volume.LeaseRequest {
	r := streamRequest()
	r.Purpose, r.Request = volume.PurposePrewarm, "r"
	return r
}

// TestLiveLease: of a cache in use only what the map names is sent, after writes to it are noted;
// nothing is exported for that, and nothing is left when it ends.
func TestLiveLease(t *testing.T) {
	s := newLiveSource(t)
	lease, err := s.Export(t.Context(), liveRequest())
	s.must(err)
	if lease.Tracked == nil || lease.Tracked.ID != s.entry.Track.ID || lease.Tracked.ID == "" || lease.Tracked.Changed != nil || lease.Tracked.AreaBytes%chunkBytes != 0 {
		t.Errorf("lease %+v, record of writes %+v", lease, lease.Tracked)
	}
	if lease.Move != moveToB || lease.ChunkSectors != chunkBytes/512 || lease.DataBytes != 4*mib || s.entry.StreamedTo != "b" || s.entry.State != state.Staged {
		t.Errorf("lease %+v, journal %+v", lease, s.entry)
	}
	s.wantStream()
	if _, exported := s.part(layout.Exported); exported {
		t.Error("there is a device of what is exported")
	}
	again, err := s.Export(t.Context(), liveRequest())
	if err != nil || again.Tracked.ID != lease.Tracked.ID {
		t.Errorf("asked again: %+v, %v: the record of writes is another one", again.Tracked, err)
	}
	s.begin()
	s.wantStream()
	s.must(s.EndLease(t.Context(), "v", moveToB))
	if !slices.Equal(s.ended, []volume.MoveID{moveToB}) || s.entry.Exported != nil || s.entry.StreamedTo != "" || s.entry.Track == nil {
		t.Errorf("ended %v, journal %+v", s.ended, s.entry)
	}
	if _, err := s.OpenStream(t.Context(), "v", moveToB, "b"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("after its end: %v, want ErrNotFound", err)
	}
	// Nobody has the device open any more.
	s.must(s.Stack.Remove(t.Context(), "v", layout.Top))
	s.must(s.Stack.Remove(t.Context(), "v", layout.Data))
}

// part is a device of the volume.
func (s *source) part(p layout.Part) (devmapper.Info, bool) {
	s.t.Helper()
	infos, err := s.Stack.Parts(s.t.Context(), "v")
	s.must(err)
	info, found := infos[p]
	return info, found
}

// TestLiveLeaseRefused: by clone, or by a node that sends nothing, a cache in use is not to be had,
// and no record of writes is begun.
func TestLiveLeaseRefused(t *testing.T) {
	cases := map[string]struct {
		change func(s *source, r *volume.LeaseRequest)
		want   error
	}{
		"by clone":               {func(_ *source, r *volume.LeaseRequest) { r.Method = volume.MethodClone }, volume.ErrInvalid},
		"by no method":           {func(_ *source, r *volume.LeaseRequest) { r.Method = "" }, volume.ErrInvalid},
		"nothing is sent here":   {func(s *source, _ *volume.LeaseRequest) { s.Streams = nil }, volume.ErrUnavailable},
		"another node":           {func(_ *source, r *volume.LeaseRequest) { r.To = "c" }, volume.ErrFenced},
		"as if it were retained": {func(_ *source, r *volume.LeaseRequest) { r.Purpose = volume.PurposeMove }, volume.ErrNotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newLiveSource(t)
			r := liveRequest()
			tc.change(s, &r)
			if _, err := s.Export(t.Context(), r); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if s.entry.StreamedTo != "" || s.entry.Exported != nil || s.entry.Track != nil {
				t.Errorf("the journal says %+v", s.entry)
			}
		})
	}
}

// TestLiveDirty: what only the SSD has is not sent.
func TestLiveDirty(t *testing.T) {
	s := newLiveSource(t)
	_, err := s.Export(t.Context(), liveRequest())
	s.must(err)
	read := s.ReadInUse
	var all []uint64
	s.ReadInUse = func(ctx context.Context, device, base string) (cachemap.Map, error) {
		m, err := read(ctx, device, base)
		for _, e := range m.Entries {
			all = append(all, e.Origin)
		}
		m.Dirty, m.DirtyBlocks = 2, []uint64{m.Entries[0].Cache, m.Entries[2].Cache}
		return m, err
	}
	c, err := s.OpenStream(t.Context(), "v", moveToB, "b")
	s.must(err)
	defer func() { s.must(c.Close()) }()
	if got := c.Blocks(); len(got) != len(all)-2 || slices.Contains(got, all[0]) || slices.Contains(got, all[2]) || !slices.Contains(got, all[1]) {
		t.Errorf("sent are blocks %v of %v", got, all)
	}
}

// TestMapsAtOnce: maps of several caches are read at the same time, no more than there is room for.
func TestMapsAtOnce(t *testing.T) {
	var s maps
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var leaves []func()
	for range mapsAtOnce {
		leave, err := s.enter(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := s.enter(short, 100); err == nil {
		t.Error("one too many may be read")
	}
	for _, leave := range leaves {
		leave()
	}
	leave, err := s.enter(t.Context(), 10*volume.MaxExportedChunks)
	if err != nil {
		t.Fatal(err)
	}
	leave()
}

// TestTornMap: the map of a cache in use is read again if it is torn, and not for ever; that of a
// retained one does not change.
func TestTornMap(t *testing.T) {
	torn := errors.New("torn")
	for name, tc := range map[string]struct {
		source    *source
		fails     int
		wantReads int
		wantErr   bool
	}{
		"once":            {newLiveSource(t), 1, 2, false},
		"always":          {newLiveSource(t), 100, mapTries, true},
		"a retained one":  {newSource(t), 1, 1, true},
		"in use, not now": {newLiveSource(t), 0, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, reads := tc.source, 0
			r := liveRequest()
			if s.entry.State == state.Retained {
				r = streamRequest()
			}
			_, err := s.Export(t.Context(), r)
			s.must(err)
			read := s.ReadInUse
			s.ReadInUse = func(ctx context.Context, device, base string) (cachemap.Map, error) {
				if reads++; reads <= tc.fails {
					return cachemap.Map{}, torn
				}
				return read(ctx, device, base)
			}
			c, err := s.OpenStream(t.Context(), "v", moveToB, "b")
			if (err != nil) != tc.wantErr || tc.wantErr && !errors.Is(err, volume.ErrUnavailable) || reads != tc.wantReads {
				t.Errorf("%v after %d reads, want %d", err, reads, tc.wantReads)
			}
			if err == nil {
				s.must(c.Close())
			}
		})
	}
}

func TestSendable(t *testing.T) {
	m := func(at ...uint64) cachemap.Map {
		out := cachemap.Map{ChunkSectors: 64}
		for i, place := range at {
			out.Entries = append(out.Entries, cachemap.Entry{Cache: place, Origin: uint64(i)})
		}
		return out
	}
	dirty := m(0)
	dirty.Dirty = 1
	cases := map[string]struct {
		m     cachemap.Map
		chunk uint64
		data  int64
		live  bool
		want  bool
	}{
		"a map":               {m(0, 31), 64, 1 << 20, false, true},
		"an empty one":        {m(), 64, 1 << 20, true, true},
		"other chunks":        {m(0), 128, 1 << 20, false, false},
		"behind the data":     {m(0, 32), 64, 1 << 20, true, false},
		"dirty":               {dirty, 64, 1 << 20, false, false},
		"dirty, in use":       {dirty, 64, 1 << 20, true, true},
		"as many as are sent": {m(volume.MaxExportedChunks - 1), 64, 1 << 40, true, true},
		"more than are sent":  {m(volume.MaxExportedChunks), 64, 1 << 40, true, false},
	}
	for name, tc := range cases {
		if err := sendable(tc.m, tc.chunk, tc.data, tc.live); (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// newReadSource is a node that reads a volume with node b, which asks for its cache.
func newReadSource(t testing.TB) *source {
	t.Helper()
	s := newLiveSource(t)
	s.entry.ReadOnly = true
	s.rec.ReadOnly, s.rec.Prewarm, s.rec.Readers = true, nil, []string{s.Node, "b", "c"}
	return s
}

func readRequest() volume.LeaseRequest {
	r := streamRequest()
	r.Purpose = volume.PurposeRead
	return r
}

// TestReadLease: of a cache by which a volume is read with others the blocks are sent as pods read them,
// to one node at a time; nothing is noted, and nothing is taken away.
func TestReadLease(t *testing.T) {
	s := newReadSource(t)
	lease, err := s.Export(t.Context(), readRequest())
	s.must(err)
	if lease.Tracked != nil || lease.Move != moveToB || lease.ChunkSectors != chunkBytes/512 || s.entry.StreamedTo != "b" || s.entry.Track != nil || s.entry.State != state.Staged {
		t.Errorf("lease %+v, journal %+v", lease, s.entry)
	}
	again, err := s.Export(t.Context(), readRequest())
	if err != nil || again.Move != lease.Move {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	s.wantStream()
	c, err := s.OpenStream(t.Context(), "v", moveToB, "b")
	s.must(err)
	top, _ := s.part(layout.Top)
	d, err := s.machine.Device(top.DevPath())
	s.must(err)
	buf := make([]byte, chunkBytes)
	for block := range int64(64) { // as many as the cache has places
		_, err := d.ReadAt(buf, (100+block)*chunkBytes)
		s.must(err)
	}
	for i, block := range c.Blocks() { // which the cache does not hold any more
		if n, err := c.ReadChunks(t.Context(), i, buf); err != nil || n != 1 || !bytes.Equal(buf, make([]byte, chunkBytes)) {
			t.Errorf("block %d: %d chunks, %.20q (%v), want what the storage server has", block, n, buf, err)
		}
	}
	s.must(c.Close())
	other := readRequest()
	other.Move, other.To = volume.MoveID{Name: "v-5-read-c", UID: "m9"}, "c"
	if _, err := s.Export(t.Context(), other); !errors.Is(err, volume.ErrUnavailable) || *s.entry.Exported != moveToB {
		t.Errorf("another node: %v, want ErrUnavailable; the lease is %+v", err, s.entry.Exported)
	}
	anew := readRequest()
	anew.Move.UID = "m2"
	_, err = s.Export(t.Context(), anew)
	s.must(err)
	if !slices.Equal(s.ended, []volume.MoveID{moveToB}) || *s.entry.Exported != anew.Move {
		t.Errorf("the same node again: ended %v, the lease is %+v", s.ended, s.entry.Exported)
	}
	s.must(s.Release(t.Context(), "v", anew.Move))
	if s.entry == nil || s.entry.State != state.Staged || s.entry.Exported != nil {
		t.Errorf("after its end: %+v", s.entry)
	}
	_, err = s.Export(t.Context(), other)
	s.must(err)
}

// TestReadLeaseRefused: who does not read the volume under this generation, and what is not whole here, is
// refused, and nothing is journalled.
func TestReadLeaseRefused(t *testing.T) {
	cases := map[string]struct {
		change func(s *source, r *volume.LeaseRequest)
		want   error
	}{
		"by clone":              {func(_ *source, r *volume.LeaseRequest) { r.Method = volume.MethodClone }, volume.ErrInvalid},
		"for another purpose":   {func(_ *source, r *volume.LeaseRequest) { r.Purpose = "Gossip" }, volume.ErrInvalid},
		"to who does not read":  {func(_ *source, r *volume.LeaseRequest) { r.To = "z" }, volume.ErrFenced},
		"to itself":             {func(s *source, r *volume.LeaseRequest) { r.To = s.Node }, volume.ErrFenced},
		"an earlier generation": {func(_ *source, r *volume.LeaseRequest) { r.Generation-- }, volume.ErrNotFound},
		"another volume":        {func(_ *source, r *volume.LeaseRequest) { r.UID = "u9" }, volume.ErrNotFound},
		"read no more":          {func(s *source, _ *volume.LeaseRequest) { s.rec.Published = false }, volume.ErrFenced},
		"written since":         {func(s *source, _ *volume.LeaseRequest) { s.rec.Fence.Generation++ }, volume.ErrFenced},
		"written now":           {func(s *source, _ *volume.LeaseRequest) { s.rec.ReadOnly = false }, volume.ErrFenced},
		"a writer's cache":      {func(s *source, _ *volume.LeaseRequest) { s.entry.ReadOnly = false }, volume.ErrNotFound},
		"no cache any more":     {func(s *source, _ *volume.LeaseRequest) { s.entry.Deny() }, volume.ErrNotFound},
		"of an earlier boot":    {func(s *source, _ *volume.LeaseRequest) { s.entry.Boot = "earlier" }, volume.ErrNotFound},
		"being filled":          {func(s *source, _ *volume.LeaseRequest) { s.entry.Hydration = &state.Hydration{} }, volume.ErrUnavailable},
		"nothing is sent here":  {func(s *source, _ *volume.LeaseRequest) { s.Streams = nil }, volume.ErrUnavailable},
		"somebody works on it":  {func(s *source, _ *volume.LeaseRequest) { s.busy = true }, volume.ErrBusy},
		"staged here now too":   {func(s *source, _ *volume.LeaseRequest) { s.busy, s.entry.State = true, state.Staging }, volume.ErrNotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newReadSource(t)
			r := readRequest()
			tc.change(s, &r)
			if _, err := s.Export(t.Context(), r); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if s.entry.StreamedTo != "" || s.entry.Exported != nil {
				t.Errorf("the journal says %+v", s.entry)
			}
		})
	}
}
