package rescue

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/volume"
)

// found is a cache of generation 3 with 10 dirty chunks of 1 MiB, the last of which
// ends at 64 MiB of an origin of 100 MiB.
func found(change func(*Cache)) Cache {
	const mib = 1 << 20
	c := Cache{
		Cache: layout.Cache{ID: "v", Fence: volume.Fence{UID: "u", Generation: 3, Node: "a"}, Mode: volume.ModeWriteback, OriginBytes: 100 * mib},
		State: StateUnclean, ChunkBytes: mib, UsedBlocks: 10, DirtyBlocks: 10, OriginEnd: 64 * mib,
	}
	if change != nil {
		change(&c)
	}
	return c
}

func wantRefusal(t *testing.T, err error, word string) {
	t.Helper()
	switch {
	case word == "" && err != nil:
		t.Errorf("refused: %v", err)
	case word != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), word)):
		t.Errorf("%v, want a refusal with %q", err, word)
	}
}

func TestRefuseCache(t *testing.T) {
	is := func(s State) func(*Cache) { return func(c *Cache) { c.State = s } }
	cases := map[string]struct {
		cache Cache
		req   Request
		want  string
	}{
		"unclean":            {cache: found(nil)},
		"dirty":              {cache: found(is(StateDirty))},
		"clean":              {cache: found(is(StateClean))},
		"its generation":     {cache: found(nil), req: Request{Generation: 3}},
		"another generation": {cache: found(nil), req: Request{Generation: 4}, want: "generation 3, asked for is 4"},
		"active":             {cache: found(is(StateActive)), want: "active"},
		"rescued":            {cache: found(is(StateRescued)), want: "rescued"},
		"hydrating":          {cache: found(is(StateHydrating)), want: "hydrating"},
		"writethrough":       {cache: found(is(StateWritethrough)), want: "writethrough"},
		"empty":              {cache: found(is(StateEmpty)), want: "empty"},
		"incomplete":         {cache: found(is(StateIncomplete)), want: "incomplete"},
		"unreadable":         {cache: found(is(StateUnreadable)), want: "unreadable"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { wantRefusal(t, refuseCache(tc.cache, tc.req), tc.want) })
	}
}

// TestRefuseGeneration: the LUN of nearflash-target tells of a later owner, without a
// record. found is of generation 3.
func TestRefuseGeneration(t *testing.T) {
	for name, c := range map[string]struct {
		models []string
		want   string
	}{
		"its own":                {models: []string{volume.LUNProduct(3)}},
		"an earlier one":         {models: []string{volume.LUNProduct(2)}},
		"a later one":            {models: []string{volume.LUNProduct(40)}, want: "generation 40"},
		"a later one, by a path": {models: []string{volume.LUNProduct(3), volume.LUNProduct(4)}, want: "generation 4"},
		"of another server":      {models: []string{"LUN"}},
		"of no SCSI disk":        {},
	} {
		t.Run(name, func(t *testing.T) { wantRefusal(t, refuseGeneration(found(nil), "/dev/x", c.models), c.want) })
	}
}

func TestRefuseOrigin(t *testing.T) {
	const mib = 1 << 20
	cases := map[string]struct {
		cache Cache
		size  int64
		grown bool
		want  string
	}{
		"its size":               {cache: found(nil), size: 100 * mib},
		"smaller":                {cache: found(nil), size: 99 * mib, want: "not the origin"},
		"larger":                 {cache: found(nil), size: 101 * mib, want: "say so if it was expanded"},
		"larger, expanded":       {cache: found(nil), size: 101 * mib, grown: true},
		"smaller, expanded":      {cache: found(nil), size: 99 * mib, grown: true, want: "not the origin"},
		"no size known":          {cache: found(func(c *Cache) { c.OriginBytes = 0 }), size: 64 * mib},
		"ends within the blocks": {cache: found(func(c *Cache) { c.OriginBytes = 0 }), size: 64*mib - 1, want: "not the origin"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, refuseOrigin(tc.cache, Request{Origin: "/dev/x", Grown: tc.grown}, tc.size), tc.want)
		})
	}
}

// record answers Get.
type record struct {
	Records
	v   volume.Volume
	err error
}

func (r record) Get(context.Context, volume.ID) (volume.Volume, error) { return r.v, r.err }

func TestRefuseRecord(t *testing.T) {
	rec := func(f volume.Fence, dirty bool) *record {
		return &record{v: volume.Volume{ID: "v", Fence: f, PossiblyDirty: dirty}}
	}
	cases := map[string]struct {
		rec  *record
		want string
	}{
		"the same":           {rec: rec(volume.Fence{UID: "u", Generation: 3, Node: "a"}, true)},
		"flushed":            {rec: rec(volume.Fence{UID: "u", Generation: 3, Node: "a"}, false), want: "flushed or abandoned"},
		"newer":              {rec: rec(volume.Fence{UID: "u", Generation: 4, Node: "b"}, true), want: "newer data"},
		"older, of a backup": {rec: rec(volume.Fence{UID: "u", Generation: 2, Node: "b"}, true), want: "newer data"},
		"another volume":     {rec: rec(volume.Fence{UID: "x", Generation: 3, Node: "a"}, true), want: "another one of the same name"},
		"gone":               {rec: &record{err: volume.ErrNotFound}, want: "not in the cluster"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := &Rescuer{Records: tc.rec}
			_, err := r.refuseRecord(t.Context(), found(nil))
			wantRefusal(t, err, tc.want)
		})
	}
	if _, err := (&Rescuer{}).refuseRecord(t.Context(), found(nil)); err != nil {
		t.Errorf("without a cluster: %v", err)
	}
	r := &Rescuer{Records: &record{err: volume.ErrUnavailable}}
	if _, err := r.refuseRecord(t.Context(), found(nil)); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("a cluster that does not answer: %v, want ErrUnavailable", err)
	}
}

// torn counts what a record was told.
type torn struct {
	Records
	told int
}

func (r *torn) ReportTorn(context.Context, volume.ID, volume.Fence, string) error {
	r.told++
	return nil
}

func TestTellTorn(t *testing.T) {
	for name, tc := range map[string]struct {
		unsafe, stopped bool
		state           State
		want            int
	}{
		"an unclean stop":                      {true, false, StateUnclean, 1},
		"an unclean stop, the map empty":       {true, false, StateClean, 1},
		"an unclean stop after it had stopped": {true, true, StateUnclean, 1},
		"a clean stop":                         {true, true, StateDirty, 0},
		"an unclean stop of writeback":         {false, false, StateUnclean, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &torn{}
			c := Cache{State: tc.state}
			c.Stopped = tc.stopped
			if err := (&Rescuer{Records: rec}).tellTorn(t.Context(), c, volume.Spec{Unsafe: tc.unsafe}); err != nil || rec.told != tc.want {
				t.Errorf("the record was told %d times (%v), want %d", rec.told, err, tc.want)
			}
		})
	}
}
