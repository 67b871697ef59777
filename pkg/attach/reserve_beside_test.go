package attach

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stagingOf is the stage of an entry.
func stagingOf(e *state.Entry, accept bool) *staging {
	return &staging{entry: e, req: volume.StageRequest{ID: e.ID, AcceptTwoWriters: accept}}
}

// exportingMoves are a peer that exports at once.
type exportingMoves struct{ volume.Moves }

func (exportingMoves) Begin(context.Context, volume.MoveRequest) (volume.MoveID, *volume.Lease, error) {
	return volume.MoveID{Name: "move"}, &volume.Lease{Source: volume.ISCSI{IQN: "exported"}, DataBytes: 8 << 20}, nil
}

// lostPeer is a peer that nobody reaches.
type lostPeer struct{ transport.Transport }

var errNoPeer = errors.New("no peer")

func (lostPeer) Connect(context.Context, transport.Target, *volume.Credentials) (transport.Origin, error) {
	return transport.Origin{}, errNoPeer
}

// TestReserveBesideHydration: a stage reserves its LUN while the hydration that it begins with
// journals the same entry: neither writes while the other one does, and the hydration does not
// wait for the LUN.
func TestReserveBesideHydration(t *testing.T) {
	o := transport.Origin{Paths: []string{"/dev/sda"}}
	n := newFencedNode(t)
	n.Moves, n.Transport = exportingMoves{}, lostPeer{}
	entry := func() *state.Entry {
		return &state.Entry{ID: "v", Fence: n.first, State: state.Staging, Mode: volume.ModeWritethrough, Static: true, Hydration: &state.Hydration{From: &volume.WarmSource{Node: "b"}}}
	}

	s := stagingOf(entry(), false)
	done, began := make(chan error, 1), make(chan struct{})
	s.own.Lock()
	go func() {
		close(began)
		done <- n.reserve(t.Context(), s, o)
	}()
	<-began
	time.Sleep(200 * time.Millisecond)
	if e, err := n.load("v"); e != nil || err != nil {
		t.Errorf("it is journalled while the hydration has the entry: %+v, %v", e, err)
	}
	s.own.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	for range 20 { // for the race detector
		s = stagingOf(entry(), false)
		s.plan.Warm = &warmPlan{Peer: s.entry.Hydration.From}
		asked := false
		n.target.Before(func() {
			asked = true
			_ = s.update(func(*state.Entry) error { return nil }) // the hydration need not wait
		})
		go func() {
			_, err := n.importCache(t.Context(), s)
			done <- err
		}()
		err := n.reserve(t.Context(), s, o)
		if exported := <-done; err != nil || !errors.Is(exported, errNoPeer) || !asked {
			t.Fatalf("reserve: %v, asked %t; hydration: %v", err, asked, exported)
		}
		if e, err := n.load("v"); err != nil || !e.Reserved || e.Hydration.Peer == nil || e.Hydration.Move.Name != "move" {
			t.Fatalf("the journal has %+v, %v", e, err)
		}
	}
}
