package attach

import (
	"context"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/reservation"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestEarlierBoot: nothing that is noted in an entry of an earlier boot, before repair could
// flush it, makes it one whose pod runs.
func TestEarlierBoot(t *testing.T) {
	move := volume.MoveID{UID: "m"}
	for name, update := range map[string]func(context.Context, *fencedNode, *state.Entry){
		"a hot set": func(ctx context.Context, n *fencedNode, _ *state.Entry) { n.hotSets.Pass(ctx) },
		"names": func(ctx context.Context, n *fencedNode, _ *state.Entry) {
			n.keepNames(ctx, volume.Volume{ID: "v", PV: "pv"})
		},
		"the end of a lease": func(ctx context.Context, n *fencedNode, e *state.Entry) {
			n.UseDM(noDevices{})
			e.Exported = &move
			if err := n.leases.End(ctx, e); err != nil {
				t.Error(err)
			}
		},
		"a LUN that cannot be reserved": func(ctx context.Context, n *fencedNode, e *state.Entry) {
			n.take(n.first) // by a session of before
			n.target.Before(func() { n.target.Down(n.own, true) })
			if n.reserveAgain(ctx, e, transport.Origin{Paths: []string{"/dev/sda"}}) == nil {
				t.Error("reserved over a path that is down")
			}
		},
		"a LUN that is lost": func(ctx context.Context, n *fencedNode, e *state.Entry) {
			n.UseDM(noDevices{})
			e.Lost = &state.Lost{To: reservation.KeyOf("u", 2)}
			if err := n.lose(ctx, e); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFencedNode(t)
			n.UsePool(withoutPool{})
			n.Locks, n.hotSets.Store, n.hotSets.Read, n.hotSets.Dir = &keylock.Set{}, noHotSets{}, noMap, t.TempDir()
			e := &state.Entry{ID: "v", Fence: n.first, State: state.Staged, Mode: volume.ModeWriteback, Activated: true, Static: true, Reserved: true, Boot: "earlier"}
			if err := n.write(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			update(t.Context(), n, e)
			got, err := n.load("v")
			if err != nil || got.Boot != "earlier" || !needsRepair(got, got.Boot == n.Boot, false) {
				t.Errorf("the journal has %+v, %v", got, err)
			}
		})
	}
}

type noHotSets struct{ volume.HotSets }

func noMap(context.Context, string, string) (cachemap.Map, error) {
	return cachemap.Map{}, errors.New("no map")
}
