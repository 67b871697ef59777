package attach

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestDecideShare(t *testing.T) {
	const gib = 1 << 30
	for name, tc := range map[string]struct {
		f    shareFacts
		want shareStep
	}{
		"no share":                              {shareFacts{Namespace: "shop", CapacityBytes: 100 * gib, UsedBytes: 99 * gib, NeedBytes: 9 * gib}, shareFits},
		"no namespace":                          {shareFacts{Percent: 25, CapacityBytes: 100 * gib, UsedBytes: 99 * gib, NeedBytes: 9 * gib}, shareFits},
		"up to the share":                       {shareFacts{Namespace: "shop", Percent: 25, CapacityBytes: 100 * gib, UsedBytes: 20 * gib, NeedBytes: 5 * gib}, shareFits},
		"all of the pool":                       {shareFacts{Namespace: "shop", Percent: 100, CapacityBytes: 3*gib + 1, NeedBytes: 3*gib + 1}, shareFits},
		"a byte more":                           {shareFacts{Namespace: "shop", Percent: 25, CapacityBytes: 100 * gib, UsedBytes: 20 * gib, NeedBytes: 5*gib + 1}, shareRefuse},
		"the first is too large":                {shareFacts{Namespace: "shop", Percent: 25, CapacityBytes: 100 * gib, NeedBytes: 26 * gib}, shareRefuse},
		"a retained cache goes":                 {shareFacts{Namespace: "shop", Percent: 25, CapacityBytes: 100 * gib, UsedBytes: 20 * gib, RetainedBytes: 5 * gib, NeedBytes: 10 * gib}, shareEvict},
		"retained caches are not enough":        {shareFacts{Namespace: "shop", Percent: 25, CapacityBytes: 100 * gib, UsedBytes: 20 * gib, RetainedBytes: 4 * gib, NeedBytes: 10 * gib}, shareRefuse},
		"the share was lowered":                 {shareFacts{Namespace: "shop", Percent: 10, CapacityBytes: 100 * gib, UsedBytes: 40 * gib, NeedBytes: gib}, shareRefuse},
		"lowered, and retained caches go":       {shareFacts{Namespace: "shop", Percent: 10, CapacityBytes: 100 * gib, UsedBytes: 40 * gib, RetainedBytes: 35 * gib, NeedBytes: gib}, shareEvict},
		"lowered, and what grows is there":      {shareFacts{Namespace: "shop", Percent: 10, CapacityBytes: 100 * gib, UsedBytes: 40 * gib}, shareFits},
		"the capacity of the pool is not known": {shareFacts{Namespace: "shop", Percent: 10, NeedBytes: gib}, shareRefuse},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideShare(tc.f); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// TestShareRefusal: whoever reads condition or event learns whose share it is, how large, and what
// has taken it.
func TestShareRefusal(t *testing.T) {
	const gib = 1 << 30
	err := shareFacts{Namespace: "shop", Percent: 25, CapacityBytes: 100 * gib, UsedBytes: 20 * gib, RetainedBytes: 2 * gib, NeedBytes: 10 * gib}.refusal("node-a")
	const want = "the namespace's share of the pool is used up: the caches of namespace shop may take 25% (25Gi) of the pool of node node-a; they take 20Gi, of which 2Gi in retained caches, and this one needs 10Gi"
	if !errors.Is(err, errShare) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %q", err)
	}
}

// TestShareOfHydrationMetadata: what a hydration needs beside a cache that is there counts too.
func TestShareOfHydrationMetadata(t *testing.T) {
	entries := newJournal(t)
	if err := entries.Save("v", state.Entry{ID: "v", State: state.Staging, Mode: volume.ModeWritethrough, Names: state.Names{Namespace: "shop"}}); err != nil {
		t.Fatal(err)
	}
	for percent, want := range map[int32]error{0: lvm.ErrNoSpace, 50: lvm.ErrNoSpace, 40: errShare} {
		v := &fullVolumes{entries: entries, lv: lvm.LV{Name: layout.DataLV("v"), SizeBytes: 40 << 20}}
		a := New(Config{Node: "b"}, Deps{Pool: shared{percent: percent}, Journal: entries, LVM: v})
		if _, err := a.allocateHydration(t.Context(), cacheSpec{id: "v", hydrationBytes: 8 << 20}); !errors.Is(err, want) {
			t.Errorf("a share of %d%%: %v, want %v", percent, err, want)
		}
	}
}

// shared is onePool, of 100 MiB, with a share for each namespace.
type shared struct {
	onePool
	percent int32
}

func (p shared) View() pool.View {
	v := p.onePool.View()
	v.CapacityBytes, v.NamespaceSharePercent = 100<<20, p.percent
	return v
}
