package hydration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/journal"
	"github.com/nearflash/nearflash/pkg/volume"
)

// A view of the origin that was made for the hydration of before, because the volume was staged
// anew while its table was loaded, never goes live: it has other blocks, or another volume's.
func TestRemapOfBefore(t *testing.T) {
	peer := &volume.ISCSI{IQN: "iqn.x:a"}
	for name, tc := range map[string]struct {
		meanwhile func(*state.Entry, *remapDevices)
		want      error
	}{
		"nothing":                 {func(*state.Entry, *remapDevices) {}, nil},
		"another step":            {func(e *state.Entry, _ *remapDevices) { e.State = state.Flushing }, nil},
		"staged anew":             {func(e *state.Entry, _ *remapDevices) { e.ActivationID = "2" }, volume.ErrUnavailable},
		"another owner":           {func(e *state.Entry, _ *remapDevices) { e.Fence.Generation = 9 }, volume.ErrUnavailable},
		"another hydration":       {func(e *state.Entry, _ *remapDevices) { e.Hydration.Move.UID = "m2" }, volume.ErrUnavailable},
		"it goes on from the map": {func(e *state.Entry, _ *remapDevices) { e.Hydration.Peer = nil }, volume.ErrUnavailable},
		"the hydration ended":     {func(e *state.Entry, _ *remapDevices) { e.Hydration = nil }, volume.ErrUnavailable},
		"another origin":          {func(_ *state.Entry, d *remapDevices) { d.origin++ }, volume.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			entries := openJournal(t)
			e := state.Entry{ID: "v", State: state.Staged, ActivationID: "1", Fence: volume.Fence{UID: "u", Generation: 2}, Hydration: &state.Hydration{Move: volume.MoveID{UID: "m"}, Peer: peer}}
			dm := &remapDevices{origin: 1}
			r := runnerOn(entries, dm)
			if err := entries.Save("v", e); err != nil {
				t.Fatal(err)
			}
			infos, _ := dm.Info(t.Context(), "")
			now := e
			hydration := *e.Hydration
			now.Hydration = &hydration
			dm.meanwhile = func() {
				tc.meanwhile(&now, dm)
				if err := entries.Save("v", now); err != nil {
					t.Fatal(err)
				}
			}
			err := r.remapPath(t.Context(), &e, infos)
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			want := []string{"load", "clear"}
			if tc.want == nil {
				want = []string{"load", "resume", "reinstate_path"}
			}
			if !slices.Equal(dm.did, want) {
				t.Errorf("did %v, want %v", dm.did, want)
			}
		})
	}
}

// remapDevices are the devices of a hydration; while a table is loaded, something happens.
type remapDevices struct {
	devmapper.Client
	origin    int
	below     []string
	meanwhile func()
	did       []string
}

func (d *remapDevices) Info(context.Context, string) (map[string]devmapper.Info, error) {
	out := map[string]devmapper.Info{}
	for minor, part := range map[int]layout.Part{d.origin: layout.Origin, 100: layout.Path, 101: layout.Data, 102: layout.Source} {
		name := layout.Device("v", part)
		out[name] = devmapper.Info{Name: name, Major: 252, Minor: minor, HasLive: true}
	}
	return out, nil
}

func (d *remapDevices) Await(context.Context, ...string) error { return nil }

func (d *remapDevices) Deps(context.Context, string) ([]string, error) { return d.below, nil }

func (d *remapDevices) Table(context.Context, string) (devmapper.Table, error) {
	return devmapper.LinearTable(512, "8:0"), nil
}

func (d *remapDevices) LoadReadOnly(context.Context, string, devmapper.Table) error {
	d.did = append(d.did, "load")
	d.meanwhile()
	return nil
}

func (d *remapDevices) Clear(context.Context, string) error {
	d.did = append(d.did, "clear")
	return nil
}

func (d *remapDevices) Resume(context.Context, string) error {
	d.did = append(d.did, "resume")
	return nil
}

func (d *remapDevices) Message(_ context.Context, _ string, _ uint64, args ...string) error {
	d.did = append(d.did, args[0])
	return nil
}

// The session with a peer is not ended because the hydration before did without its own.
func TestLeaveLooksAgain(t *testing.T) {
	entries := openJournal(t)
	e := state.Entry{ID: "v", State: state.Staged, Mode: volume.ModeWritethrough, Activated: true, Hydration: &state.Hydration{Peer: &volume.ISCSI{IQN: "iqn.x:a"}}}
	if err := entries.Save("v", e); err != nil {
		t.Fatal(err)
	}
	r := runnerOn(entries, &remapDevices{origin: 1, below: []string{"8:0"}})
	memo := &account{known: true, onOrigin: true}
	if err := r.lockedStep(t.Context(), "v", stepLeave, memo); err != nil {
		t.Fatal(err)
	}
	if now, err := entries.Load("v"); err != nil || now.Hydration.Peer == nil || memo.known {
		t.Errorf("the path leads to the peer: journal %+v, %v, remembered %t", now.Hydration, err, memo.known)
	}
}

func openJournal(t *testing.T) *journal.Store[state.Entry] {
	t.Helper()
	entries, err := journal.Open[state.Entry](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func runnerOn(entries *journal.Store[state.Entry], dm devmapper.Client) *Runner {
	r := newRunner(time.Now)
	r.Host, r.Devices, r.Stack = host{entries}, dm, stack.New(stack.Config{DM: dm})
	return r
}

// host is a node whose journal is read and written, and where nobody else is at work.
type host struct{ entries *journal.Store[state.Entry] }

func (h host) Entries() ([]state.Entry, error) { return h.entries.List() }

func (h host) Entry(id volume.ID) (*state.Entry, error) {
	e, err := h.entries.Load(string(id))
	return &e, err
}

func (h host) Lock(_ context.Context, id volume.ID) (*state.Entry, func(), error) {
	e, err := h.Entry(id)
	return e, func() {}, err
}

func (h host) Save(_ context.Context, e *state.Entry, s state.State) error {
	e.State = s
	return h.entries.Save(string(e.ID), *e)
}

func (host) ReadMap(volume.ID) (*cachemap.Map, error) {
	return &cachemap.Map{ChunkSectors: 64, CacheBlocks: 8, Policy: "smq", HintWidth: 4}, nil
}

func (host) LeavePeer(_ context.Context, e *state.Entry) { e.Hydration.Peer = nil }

func (host) Drop(_ context.Context, e *state.Entry, _ volume.MoveOutcome, _ string) {
	e.Hydration = nil
}
