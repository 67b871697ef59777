package stream

import (
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/devmapper/devmappertest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestPromotedNothing: levels are merged only if the kernel says that each that serves is as it was
// when it began to. That nothing is promoted is proven on each kernel; this is for one that does.
func TestPromotedNothing(t *testing.T) {
	n, _ := pulled(t)
	n.served()
	dm := n.Stack.DM
	for name, tc := range map[string]struct {
		serving layout.Part
		change  func(*devmapper.CacheStatus)
		refused bool
	}{
		"as they were":             {layout.Top, func(*devmapper.CacheStatus) {}, false},
		"hits":                     {layout.Top, func(st *devmapper.CacheStatus) { st.ReadHits++ }, false},
		"promoted above":           {layout.Top, func(st *devmapper.CacheStatus) { st.Promotions++ }, true},
		"promoted below":           {layout.Hot, func(st *devmapper.CacheStatus) { st.Promotions++ }, true},
		"demoted":                  {layout.Hot, func(st *devmapper.CacheStatus) { st.Demotions++ }, true},
		"dirty":                    {layout.Hot, func(st *devmapper.CacheStatus) { st.Dirty++ }, true},
		"failed":                   {layout.Top, func(st *devmapper.CacheStatus) { *st = devmapper.CacheStatus{Fail: true} }, true},
		"promoted, does not serve": {"", func(st *devmapper.CacheStatus) { st.Promotions++ }, false},
	} {
		l := stack.Levels{HotServes: true, RestServes: true}
		at := tc.serving
		if at == "" {
			at, l.RestServes = layout.Top, false
		}
		n.Stack.DM = devmappertest.Seen{Client: dm, Device: layout.Device("v", at), Change: tc.change}
		switch err := n.promotedNothing(t.Context(), &n.entry, l); {
		case tc.refused && !errors.Is(err, volume.ErrUnavailable):
			t.Errorf("%s: merged (%v)", name, err)
		case !tc.refused && err != nil:
			t.Errorf("%s: not merged: %v", name, err)
		}
	}
}
