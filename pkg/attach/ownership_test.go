package attach

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecideOwnership is the table "What ends unflushed writes" of states.md.
func TestDecideOwnership(t *testing.T) {
	elsewhere := volume.Fence{UID: "u1", Generation: 5, Node: "b"}
	rec := func(f volume.Fence, dirty bool) *volume.Volume { return &volume.Volume{Fence: f, PossiblyDirty: dirty} }
	shows := func(g int64) proof { return proof{LUN: g, SameLUN: true} }
	cases := map[string]struct {
		static bool
		rec    *volume.Volume
		proof  proof
		want   ownership
	}{
		"the record's own":                            {rec: rec(fence5, true), want: ownedHere},
		"the record's own, static":                    {static: true, rec: rec(fence5, true), want: ownedHere},
		"the record's own, being deleted":             {rec: rec(fence5, true), proof: proof{Deleted: true}, want: ownedHere},
		"given up":                                    {rec: rec(fence5, false), proof: proof{GivenUp: true}, want: ownedAbandoned},
		"given up, static":                            {static: true, rec: rec(fence5, false), proof: proof{GivenUp: true}, want: ownedAbandoned},
		"dirty again":                                 {rec: rec(fence5, true), proof: proof{GivenUp: true}, want: ownedHere},
		"a restored record of this one":               {rec: rec(fence5, false), want: ownedHere},
		"a restored record of this one, static":       {static: true, rec: rec(fence5, false), want: ownedHere},
		"a restored record of this one, given away":   {rec: rec(fence5, false), proof: shows(6), want: ownedLater},
		"a restored record of this one, by a word":    {rec: rec(fence5, false), proof: proof{Deleted: true}, want: ownedLater},
		"a later owner":                               {rec: rec(fence6, false), want: ownedLater},
		"a later owner, static":                       {static: true, rec: rec(fence6, true), want: ownedLater},
		"no record":                                   {want: ownedUnproven},
		"no record, admitted":                         {proof: shows(5), want: ownedHere},
		"no record, admitted later":                   {proof: shows(6), want: ownedLater},
		"no record, admitted later, LUN not known":    {proof: proof{LUN: 6}, want: ownedLater},
		"no record, the LUN not known":                {proof: proof{LUN: 5}, want: ownedUnproven},
		"no record, admitted under an earlier one":    {proof: shows(4), want: ownedUnproven},
		"no record, deleted":                          {proof: proof{Deleted: true}, want: ownedLater},
		"no record, static":                           {static: true, proof: shows(6), want: ownedUnproven},
		"no record, static, deleted":                  {static: true, proof: proof{Deleted: true}, want: ownedLater},
		"another UID":                                 {rec: rec(otherID, true), want: ownedUnproven},
		"another UID of a later generation":           {rec: rec(volume.Fence{UID: "u2", Generation: 9}, false), want: ownedUnproven},
		"another UID, admitted":                       {rec: rec(otherID, false), proof: shows(5), want: ownedHere},
		"another UID, admitted later":                 {rec: rec(otherID, false), proof: shows(7), want: ownedLater},
		"another UID, deleted":                        {rec: rec(otherID, false), proof: proof{Deleted: true}, want: ownedLater},
		"a restored record":                           {rec: rec(fence4, false), want: ownedHere},
		"a restored record, admitted later":           {rec: rec(fence4, false), proof: shows(6), want: ownedLater},
		"a restored record, given up by hand":         {rec: rec(fence4, false), proof: proof{Deleted: true}, want: ownedLater},
		"a restored record, static":                   {static: true, rec: rec(fence4, false), want: ownedUnproven},
		"a restored record without an owner":          {rec: rec(volume.Fence{UID: "u1"}, false), want: ownedHere},
		"another node under this generation":          {rec: rec(elsewhere, false), want: ownedUnproven},
		"another node under this generation, deleted": {rec: rec(elsewhere, false), proof: proof{Deleted: true}, want: ownedLater},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decideOwnership(fence5, tc.static, tc.rec, tc.proof); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			// Whoever does not ask the storage server must not depend on its answer.
			if !asksLUN(fence5, tc.static, tc.rec, tc.proof) {
				for g := range int64(8) {
					p := shows(g)
					p.Deleted, p.GivenUp = tc.proof.Deleted, tc.proof.GivenUp
					if got := decideOwnership(fence5, tc.static, tc.rec, p); got != tc.want {
						t.Errorf("got %s with the LUN of generation %d, which nobody asks for", got, g)
					}
				}
			}
		})
	}
}

// TestGivenUp: a record that says clean speaks of these writes only if it is of after them.
func TestGivenUp(t *testing.T) {
	e := state.Entry{Fence: fence5, ActivationID: "a", ActivationCount: 3, Mode: volume.ModeWriteback, State: state.Staged, Activated: true}
	c := ssd.Facts{Whole: true, Fence: fence5, ActivationID: "a", ActivationCount: 3, Mode: volume.ModeWriteback}
	rec := func(id string, count int64, abandoned, dirty bool) *volume.Volume {
		return &volume.Volume{Fence: fence5, GivenUp: abandoned, PossiblyDirty: dirty, Activation: volume.Activation{ID: id, Generation: 5, Count: count}}
	}
	for name, tc := range map[string]struct {
		rec  *volume.Volume
		want bool
	}{
		"no record":                        {nil, false},
		"clean of this stage":              {rec("a", 3, false, false), false},
		"abandoned":                        {rec("a", 3, true, false), true},
		"abandoned, and dirty since":       {rec("a", 3, true, true), false},
		"of a later count":                 {rec("a", 4, false, false), true},
		"of a later stage":                 {rec("b", 4, false, false), true},
		"of an earlier stage":              {rec("b", 2, false, false), false},
		"abandoned after an earlier stage": {rec("b", 2, true, false), false},
		"without activations":              {rec("", 0, false, false), false},
		"abandoned, without an activation": {rec("", 0, true, false), false},
	} {
		for what, of := range map[string]struct {
			e *state.Entry
			c ssd.Facts
		}{"journal and SSD": {&e, c}, "journal": {&e, ssd.Facts{}}, "SSD": {nil, c}} {
			if got := givenUp(of.e, of.c, tc.rec); got != tc.want {
				t.Errorf("%s, %s: %t, want %t", name, what, got, tc.want)
			}
		}
	}
}

// TestRemade: a record that was made anew speaks of this node's ownership only if owner
// and generation are the same, and says that it may be dirty.
func TestRemade(t *testing.T) {
	cases := map[string]struct {
		rec  volume.Volume
		want bool
	}{
		"of another UID":              {volume.Volume{Fence: otherID, PossiblyDirty: true}, true},
		"clean":                       {volume.Volume{Fence: otherID}, false},
		"of the same UID":             {volume.Volume{Fence: fence5, PossiblyDirty: true}, false},
		"of another generation":       {volume.Volume{Fence: volume.Fence{UID: "u2", Generation: 6, Node: "a"}, PossiblyDirty: true}, false},
		"of another node":             {volume.Volume{Fence: volume.Fence{UID: "u2", Generation: 5, Node: "b"}, PossiblyDirty: true}, false},
		"of nobody: it was just made": {volume.Volume{Fence: volume.Fence{UID: "u2"}, PossiblyDirty: true}, false},
	}
	for name, tc := range cases {
		if got := remade(tc.rec, fence5); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestOutlived: the journal is the older one only if SSD or record prove it.
func TestOutlived(t *testing.T) {
	at := func(generation int64) volume.Fence {
		return volume.Fence{UID: fence5.UID, Generation: generation, Node: fence5.Node}
	}
	rec := volume.Volume{Fence: fence5, Activation: volume.Activation{ID: "b", Generation: 5, Count: 7}}
	for name, tc := range map[string]struct {
		ssd  func(*ssd.Facts)
		rec  *volume.Volume
		want bool
	}{
		"as the journal":                       {func(*ssd.Facts) {}, &rec, false},
		"not whole":                            {func(c *ssd.Facts) { c.Whole, c.Fence = false, at(6) }, &rec, false},
		"blank":                                {func(c *ssd.Facts) { c.SuperblockBlank, c.Fence = true, at(6) }, &rec, false},
		"of another record":                    {func(c *ssd.Facts) { c.Fence = volume.Fence{UID: "other", Generation: 6} }, &rec, false},
		"of a later generation":                {func(c *ssd.Facts) { c.Fence = at(6) }, &rec, true},
		"of a later generation, no record":     {func(c *ssd.Facts) { c.Fence = at(6) }, nil, true},
		"of an earlier generation":             {func(c *ssd.Facts) { c.Fence = at(4) }, &rec, false},
		"counted further":                      {func(c *ssd.Facts) { c.ActivationCount = 4 }, nil, true},
		"counted less":                         {func(c *ssd.Facts) { c.ActivationCount = 2 }, nil, false},
		"of the record's activation":           {func(c *ssd.Facts) { c.ActivationID, c.ActivationCount = "b", 7 }, &rec, true},
		"of an activation of before":           {func(c *ssd.Facts) { c.ActivationID, c.ActivationCount = "c", 1 }, &rec, false},
		"another activation, no record":        {func(c *ssd.Facts) { c.ActivationID = "b" }, nil, true},
		"another, no record, but stopped":      {func(c *ssd.Facts) { c.ActivationID, c.Stopped = "b", true }, nil, false},
		"another, no record, but writethrough": {func(c *ssd.Facts) { c.ActivationID, c.Mode = "b", volume.ModeWritethrough }, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := &state.Entry{Fence: fence5, ActivationID: "a", ActivationCount: 3, Mode: volume.ModeWriteback, State: state.Staged}
			c := ssd.Facts{Whole: true, Fence: fence5, ActivationID: "a", ActivationCount: 3, Mode: volume.ModeWriteback}
			tc.ssd(&c)
			if got := outlived(e, c, tc.rec); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}
