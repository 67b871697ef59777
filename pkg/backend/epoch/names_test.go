package epoch

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestTwoNames: of two names for one server the first has its orders taken, and the other none,
// whichever is used first. None swaps the other's epoch away.
func TestTwoNames(t *testing.T) {
	for _, first := range []string{"", "second"} {
		c := newCluster(newStorage(t))
		names := &Names{}
		keepers := map[string]*Keeper{}
		for _, name := range []string{"", "second"} {
			keepers[name] = New(Config{Client: c.objects, Namespace: namespace, Storage: c.storage, Name: name, Names: names, Events: events.NewFakeRecorder(100), Clock: c.clock})
		}
		wantOrders(t, "the first to be used", keepers[first], false)
		wantOrders(t, "the default server", keepers[""], false)
		before := c.record(t)
		for i, err := range orders(t.Context(), keepers["second"]) {
			if !errors.Is(err, volume.ErrUnavailable) || !strings.Contains(err.Error(), `target "second" and the default storage server`) || !strings.Contains(err.Error(), server) {
				t.Errorf("order %d by the second name: %v", i, err)
			}
		}
		if err := keepers["second"].Swap(t.Context()); !errors.Is(err, volume.ErrUnavailable) {
			t.Errorf("swapped by the second name: %v", err)
		}
		if after := c.record(t); after != before {
			t.Errorf("the epoch was swapped by the second name: %+v", after)
		}
		wantOrders(t, "the default server, later", keepers[""], false)
	}
}

func TestNames(t *testing.T) {
	n := &Names{}
	for _, tc := range []struct {
		name, own string
		refused   bool
	}{
		{"b", "storage-1", false},
		{"a", "storage-2", false},
		{"c", "storage-1", true},
		{"b", "storage-1", false},
		{"a", "storage-1", false}, // another machine has its address
		{"b", "storage-1", true},
		{"b", "storage-3", false},
	} {
		if err := n.claim(tc.name, tc.own); (err != nil) != tc.refused {
			t.Errorf("%s calls itself %s: %v", tc.name, tc.own, err)
		}
	}
}
