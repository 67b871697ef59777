package scheduling

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const gib = 1 << 30

func everywhereUsable(string) bool { return true }

func TestPrefer(t *testing.T) {
	pool := func(node string, free, retainedCache int64) Pool {
		return Pool{Node: node, Ready: true, Free: free * gib, RetainedCache: retainedCache * gib}
	}
	weights := Weights{Warm: 80, Free: 20}
	cases := map[string]struct {
		caches  []Cache
		pools   []Pool
		weights *Weights
		want    []Preference
	}{
		"no volume of nearflash": {pools: []Pool{pool("a", 10, 0)}},
		"no pool anywhere":       {caches: []Cache{{Bytes: gib}}},
		"a new volume goes where there is room": {
			caches: []Cache{{Bytes: 4 * gib}},
			pools:  []Pool{pool("a", 3, 0), pool("b", 4, 0), pool("c", 100, 0)},
			want:   []Preference{{20, []string{"b", "c"}}},
		},
		"two copies are asked for": {
			caches: []Cache{{Bytes: 4 * gib, Mirror: true}, {Bytes: gib}},
			pools:  []Pool{pool("a", 100, 0), {Node: "b", Ready: true, Mirror: true, Free: 10 * gib}, {Node: "c", Mirror: true, Free: 10 * gib}},
			want:   []Preference{{20, []string{"b"}}},
		},
		"two copies are asked for, and can be had beside others": {
			caches: []Cache{{Bytes: 4 * gib, Mirror: true}, {Bytes: gib}},
			pools: []Pool{
				{Node: "a", Ready: true, Pairs: true, Free: 9 * gib}, {Node: "b", Ready: true, Pairs: true, Free: 8 * gib},
				{Node: "c", Ready: true, Mirror: true, Pairs: true, Free: 9 * gib},
			},
			want: []Preference{{20, []string{"a"}}},
		},
		"two copies of what is kept are there": {
			caches: []Cache{{Bytes: 4 * gib, Mirror: true, RetainedOn: []string{"a"}}},
			pools:  []Pool{{Node: "a", Ready: true, Pairs: true}, {Node: "b", Ready: true, Pairs: true, Free: 8 * gib}},
			want:   []Preference{{80, []string{"a"}}, {20, []string{"a", "b"}}},
		},
		"nobody asks, and a mirror takes twice as much": {
			caches: []Cache{{Bytes: 4 * gib}},
			pools:  []Pool{{Node: "a", Ready: true, Mirror: true, Pairs: true, Free: 7 * gib}, {Node: "b", Ready: true, Pairs: true, Free: 4 * gib}},
			want:   []Preference{{20, []string{"b"}}},
		},
		"a retained cache needs no more room": {
			caches: []Cache{{Bytes: 4 * gib, RetainedOn: []string{"a"}}},
			pools:  []Pool{pool("a", 0, 4), pool("b", 4, 0)},
			want:   []Preference{{80, []string{"a"}}, {20, []string{"a", "b"}}},
		},
		"room that others have to give up counts half": {
			caches: []Cache{{Bytes: 4 * gib}},
			pools:  []Pool{pool("a", 1, 3), pool("b", 1, 2), pool("c", 5, 0)},
			want:   []Preference{{20, []string{"c"}}, {10, []string{"a"}}},
		},
		"the owner, even without a pool": {
			caches: []Cache{{Bytes: gib, Owner: "a", RetainedOn: []string{"a"}}},
			want:   []Preference{{80, []string{"a"}}},
		},
		"a retained cache in a pool that failed": {
			caches: []Cache{{Bytes: gib, RetainedOn: []string{"a", "gone"}}},
			pools:  []Pool{{Node: "a", Free: gib}, pool("b", 1, 0)},
			want:   []Preference{{20, []string{"b"}}},
		},
		"the larger part weighs more": {
			caches: []Cache{{Bytes: 3 * gib, RetainedOn: []string{"a"}}, {Bytes: gib, Owner: "b"}},
			pools:  []Pool{pool("a", 1, 3), pool("b", 2, 1), pool("c", 3, 1)},
			want:   []Preference{{60, []string{"a"}}, {20, []string{"b"}}, {20, []string{"a"}}, {10, []string{"b", "c"}}},
		},
		"a small part is still one": {
			caches: []Cache{{Bytes: 1000 * gib, Owner: "a"}, {Bytes: 1, Owner: "b"}},
			want:   []Preference{{80, []string{"a"}}, {1, []string{"b"}}},
		},
		"unknown sizes": {
			caches: []Cache{{Owner: "a"}, {Owner: "b"}},
			pools:  []Pool{pool("full", 0, 0), pool("c", 1, 0)},
			want:   []Preference{{40, []string{"a", "b"}}, {20, []string{"c"}}},
		},
		"sizes beyond reason": {
			caches: []Cache{{Bytes: math.MaxInt64, Owner: "a"}, {Bytes: math.MaxInt64, Owner: "a"}},
			pools:  []Pool{pool("b", 1, 1)},
			want:   []Preference{{80, []string{"a"}}},
		},
		"no weight for warm": {
			caches: []Cache{{Bytes: gib, Owner: "a"}}, pools: []Pool{pool("a", 0, 0), pool("b", 1, 0)},
			weights: &Weights{Free: 1}, want: []Preference{{1, []string{"a", "b"}}},
		},
		"no weight for free": {
			caches: []Cache{{Bytes: gib, Owner: "a"}}, pools: []Pool{pool("a", 0, 0), pool("b", 1, 0)},
			weights: &Weights{Warm: 100}, want: []Preference{{100, []string{"a"}}},
		},
		"half of the smallest weight": {
			caches: []Cache{{Bytes: gib}}, pools: []Pool{pool("a", 0, 1)},
			weights: &Weights{Free: 1}, want: []Preference{{1, []string{"a"}}},
		},
		"no weights": {caches: []Cache{{Bytes: gib, Owner: "a"}}, pools: []Pool{pool("a", 1, 0)}, weights: &Weights{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := weights
			if tc.weights != nil {
				w = *tc.weights
			}
			if diff := cmp.Diff(tc.want, Prefer(tc.caches, tc.pools, w, everywhereUsable)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPreferIsBounded wants the warm nodes and those with the most room of a large
// cluster.
func TestPreferIsBounded(t *testing.T) {
	var pools []Pool
	for i := range 1000 {
		pools = append(pools, Pool{Node: fmt.Sprintf("node-%03d", i), Ready: true, Free: int64(i+1) * gib})
	}
	got := Prefer([]Cache{{Bytes: gib, RetainedOn: []string{"node-005"}}}, pools, Weights{Warm: 80, Free: 20}, everywhereUsable)
	want := []string{"node-005"}
	for i := 1000 - (MaxNodes - 1); i < 1000; i++ {
		want = append(want, fmt.Sprintf("node-%03d", i))
	}
	if diff := cmp.Diff([]Preference{{80, []string{"node-005"}}, {20, want}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestUsableBeforeCut: pools of nodes that are gone, or that the pod cannot go to, do not take
// the places of those that it can, however warm or roomy they are.
func TestUsableBeforeCut(t *testing.T) {
	var pools []Pool
	var retained []string
	for i := range 2 * MaxNodes {
		node := fmt.Sprintf("gone-%03d", i)
		pools = append(pools, Pool{Node: node, Ready: true, Free: 1000 * gib})
		retained = append(retained, node)
	}
	pools = append(pools, Pool{Node: "warm", Ready: true}, Pool{Node: "free", Ready: true, Free: 2 * gib})
	got := Prefer([]Cache{{Bytes: gib, RetainedOn: append(retained, "warm")}}, pools, Weights{Warm: 80, Free: 20}, func(node string) bool { return node == "warm" || node == "free" })
	want := []Preference{{80, []string{"warm"}}, {20, []string{"free", "warm"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
