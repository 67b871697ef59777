package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// A logical volume that takes the place of what was prewarmed is never taken for the
// copy: the journal forgets that before the new one is made, so that a stage that ends there
// and is repeated does not either.
func TestPrewarmReplaced(t *testing.T) {
	const data, chunk = 4 << 20, 64 << 10
	entries := newJournal(t)
	peer := &cachemap.Map{ChunkSectors: chunk / sectorSize, CacheBlocks: data / chunk}
	e := &state.Entry{
		ID: "v", Fence: volume.Fence{UID: "u", Node: "b", Generation: 2}, State: state.Staging, Mode: volume.ModeWritethrough,
		Hydration: &state.Hydration{PeerSectors: data / sectorSize},
		Prewarm:   &state.Prewarm{Request: "r", Tracking: "t", ChunkSectors: chunk / sectorSize, ExportedBytes: data},
	}
	if err := entries.Save("v", *e); err != nil {
		t.Fatal(err)
	}
	l := &fullVolumes{entries: entries, lv: lvm.LV{Name: layout.DataLV("v"), SizeBytes: data, Tags: layout.Tags(e.Fence, e.Mode)}}
	a := New(Config{Node: "b", Warm: WarmConfig{Dir: t.TempDir()}}, Deps{Pool: onePool{}, Journal: entries, LVM: l})
	s := &staging{
		entry: e, req: volume.StageRequest{ID: "v"}, rec: volume.Volume{ID: "v", Spec: volume.Spec{Mode: e.Mode, Cache: volume.Size{Bytes: data}, ChunkBytes: chunk, CapacityBytes: 64 << 20}},
		plan: stagePlan{Cache: planCreate}, origin: stack.Origin{Sectors: (64 << 20) / sectorSize},
		seed: seed{peer: peer, lease: volume.Lease{ChunkSectors: chunk / sectorSize, DataBytes: data, Tracked: &volume.Tracked{ID: "t", AreaBytes: chunk, Changed: make([]byte, data/chunk/8)}}},
	}
	if err := a.prepareCache(t.Context(), s); !errors.Is(err, lvm.ErrNoSpace) {
		t.Fatalf("got %v, want no space", err)
	}
	if want := []string{"kept", "removed", "made, and the journal knows of a copy: false"}; !slices.Equal(l.did, want) {
		t.Errorf("did %q, want %q", l.did, want)
	}
}

type onePool struct{ withoutPool }

func (onePool) View() pool.View {
	return pool.View{Ready: true, VG: "nearflash", ExtentBytes: 4 << 20, LogicalBlock: 512, Copies: 1, Stripes: 1}
}

// fullVolumes is a volume group with the data that were copied, and no room for more.
type fullVolumes struct {
	lvm.Client
	entries *journal.Store[state.Entry]
	lv      lvm.LV
	did     []string
}

func (v *fullVolumes) LVs(context.Context, string) ([]lvm.LV, error) {
	if v.lv.Name == "" {
		return nil, nil
	}
	return []lvm.LV{v.lv}, nil
}

func (v *fullVolumes) Activate(context.Context, string, ...string) error {
	v.did = append(v.did, "kept")
	return lvm.ErrNoSpace
}

func (v *fullVolumes) RemoveLVs(_ context.Context, _ string, names ...string) error {
	if slices.Contains(names, v.lv.Name) {
		v.lv = lvm.LV{}
		v.did = append(v.did, "removed")
	}
	return nil
}

func (v *fullVolumes) CreateLV(context.Context, lvm.CreateSpec) error {
	e, err := v.entries.Load("v")
	if err != nil {
		return err
	}
	v.did = append(v.did, fmt.Sprintf("made, and the journal knows of a copy: %t", e.Prewarm != nil))
	return lvm.ErrNoSpace
}

func (v *fullVolumes) PVs(context.Context, []string) ([]lvm.PV, error) { return nil, lvm.ErrNoSpace }
