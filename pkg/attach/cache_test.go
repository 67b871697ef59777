package attach

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// newJournal is an empty one.
func newJournal(t *testing.T) *journal.Store[state.Entry] {
	t.Helper()
	entries, err := journal.Open[state.Entry](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// TestPlanGeometryOfTheMost: what is asked for is cut down to the maximum, and to the volume.
func TestPlanGeometryOfTheMost(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		size       volume.Size
		most, want int64
	}{
		{volume.Size{Percent: 50}, 64 * mib, 64 * mib},
		{volume.Size{Percent: 50}, 1024 * mib, 512 * mib},
		{volume.Size{Bytes: 128 * mib}, 64 * mib, 64 * mib},
		{volume.Size{Bytes: 128 * mib}, 0, 128 * mib},
		{volume.Size{Bytes: 2048 * mib}, 4096 * mib, 1024 * mib},
	} {
		g, err := planGeometry(volume.Spec{Cache: tc.size, MaxCacheBytes: tc.most}, 1<<30, 4*mib)
		if err != nil || g.dataBytes != tc.want {
			t.Errorf("%s of a volume of 1 GiB, at most %d bytes: %d bytes, want %d (%v)", tc.size, tc.most, g.dataBytes, tc.want, err)
		}
	}
}

func TestPlanGeometry(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		view       pool.View
		want       int64
		data, meta int64 // in extents
	}{
		"one SSD":            {view: pool.View{Stripes: 1}, want: 68 * mib, data: 17, meta: 3},
		"two SSDs":           {view: pool.View{Stripes: 2}, want: 68 * mib, data: 18, meta: 4},
		"three SSDs":         {view: pool.View{Stripes: 3}, want: 68 * mib, data: 18, meta: 3},
		"three, a whole row": {view: pool.View{Stripes: 3}, want: 72 * mib, data: 18, meta: 3},
		"a mirror of two":    {view: pool.View{Stripes: 2, Mirror: true}, want: 68 * mib, data: 17, meta: 3},
		"an unknown pool":    {want: 68 * mib, data: 17, meta: 3},
	} {
		t.Run(name, func(t *testing.T) {
			tc.view.ExtentBytes = 4 * mib
			g, err := planGeometry(volume.Spec{Cache: volume.Size{Bytes: tc.want}}, 1<<30, allocationUnit(tc.view))
			if err != nil {
				t.Fatal(err)
			}
			if g.dataBytes != tc.data*4*mib || g.metaBytes != tc.meta*4*mib {
				t.Errorf("%d and %d extents, want %d and %d", g.dataBytes/(4*mib), g.metaBytes/(4*mib), tc.data, tc.meta)
			}
		})
	}
}

// TestPlanGeometryOfAMillion: a cache of as many blocks as are allowed is not refused
// because LVM's extents are larger than a block.
func TestPlanGeometryOfAMillion(t *testing.T) {
	const extent, origin = 4 << 20, 1 << 50
	for _, chunk := range []int64{0, 32 << 10, 96 << 10, 1 << 20} {
		asked := devmapper.MaxCacheBlocks * max(chunk, 32<<10)
		g, err := planGeometry(volume.Spec{Cache: volume.Size{Bytes: asked}, ChunkBytes: chunk}, origin, extent)
		if err != nil {
			t.Errorf("chunks of %d bytes: %v", chunk, err)
			continue
		}
		if n := g.dataBytes / int64(g.chunkSectors) / sectorSize; n > devmapper.MaxCacheBlocks || g.dataBytes < asked-extent || g.dataBytes%extent != 0 {
			t.Errorf("chunks of %d bytes: %d blocks, %d bytes where %d were asked for", chunk, n, g.dataBytes, asked)
		}
	}
	if _, err := planGeometry(volume.Spec{Cache: volume.Size{Bytes: (devmapper.MaxCacheBlocks + 1) << 20}, ChunkBytes: 1 << 20}, origin, extent); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("one block too many: %v", err)
	}
}

func TestGeometryFits(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		planned, offered int64
		want             bool
	}{
		{64 * mib, 64 * mib, true},
		{64 * mib, 32 * mib, true},
		{64 * mib, 72 * mib, true},
		{64 * mib, 76 * mib, false},
		{10 << 30, 10<<30 + 64*mib, true},
		{10 << 30, 10<<30 + 68*mib, false},
	} {
		if got := (geometry{dataBytes: tc.planned}).fits(tc.offered); got != tc.want {
			t.Errorf("%d bytes where %d are planned: %t", tc.offered, tc.planned, got)
		}
	}
}

// swaps is a device mapper with one cache in cleaner mode, or a part of another volume of
// the same name. Other calls than those below are not expected.
type swaps struct {
	devmapper.Client
	info  devmapper.Info
	more  []devmapper.Info
	calls []string
}

func (s *swaps) Await(context.Context, ...string) error { return nil }

func (s *swaps) Info(context.Context, string) (map[string]devmapper.Info, error) {
	infos := map[string]devmapper.Info{s.info.Name: s.info}
	for _, i := range s.more {
		infos[i.Name] = i
	}
	return infos, nil
}

func (s *swaps) Message(_ context.Context, name string, _ uint64, args ...string) error {
	s.calls = append(s.calls, "message "+name)
	return nil
}

func (s *swaps) Table(context.Context, string) (devmapper.Table, error) {
	return devmapper.Table{{Length: 8, Target: devmapper.CacheTarget{Mode: devmapper.Writethrough, Policy: devmapper.PolicyCleaner}}}, nil
}

func (s *swaps) Load(context.Context, string, devmapper.Table) error {
	s.calls = append(s.calls, "load")
	return nil
}

func (s *swaps) Resume(context.Context, string) error {
	s.calls = append(s.calls, "resume")
	return nil
}

func (s *swaps) Status(context.Context, string) (devmapper.CacheStatus, bool, error) {
	return devmapper.CacheStatus{}, true, nil
}

func (s *swaps) StatsCreate(context.Context, string) error { return nil }

func (s *swaps) Remove(_ context.Context, name string) error {
	s.calls = append(s.calls, "remove "+name)
	return nil
}

func (s *swaps) Create(context.Context, string, string, devmapper.Table) (devmapper.Info, error) {
	return devmapper.Info{}, devmapper.ErrExist
}

func swapping(t *testing.T, info devmapper.Info) (*Attacher, *swaps) {
	t.Helper()
	entries := newJournal(t)
	dm := &swaps{info: info}
	return New(Config{}, Deps{Now: time.Now, Pool: withoutPool{}, DM: dm, Journal: entries}), dm
}

// TestSwapAgain: a cache whose table is as wanted, but not in use, or about to change, is
// given its table again. What it says of dirty blocks proves nothing until then (I2).
func TestSwapAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*devmapper.Info)
		want   string
	}{
		"in use":          {change: func(*devmapper.Info) {}},
		"suspended":       {change: func(i *devmapper.Info) { i.Suspended = true }, want: "load resume"},
		"about to change": {change: func(i *devmapper.Info) { i.HasInactive = true }, want: "load resume"},
	} {
		t.Run(name, func(t *testing.T) {
			info := devmapper.Info{Name: "nf-v", UUID: "NEARFLASH-uid-top", HasLive: true}
			tc.change(&info)
			a, dm := swapping(t, info)
			if err := a.swapPolicy(t.Context(), &state.Entry{ID: "v", Mode: volume.ModeWriteback, State: state.Flushing}, true); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(dm.calls, " "); got != tc.want {
				t.Errorf("calls %q, want %q", got, tc.want)
			}
		})
	}
}

// TestShapeUnknown: a cache whose shape is not known, because the journal was lost, is not
// judged.
func TestShapeUnknown(t *testing.T) {
	if needsNewCache(changeFacts{Entry: &state.Entry{ID: "v", Mode: volume.ModeWriteback}, Want: geometry{chunkSectors: 64, dataBytes: 1 << 20}}) {
		t.Error("it is to be replaced")
	}
}
