package checker

import (
	"slices"
	"testing"
)

// TestCopy: a copy of three blocks that was asked for when write 1 of block 0 was acknowledged and
// write 2 of block 1 was under way. After that, one after the other: 2 is acknowledged, 3 of block
// 0 is, 4 of block 2 is, 5 of block 1 never is.
func TestCopy(t *testing.T) {
	const ok Verdict = ""
	whole := func(seqs ...uint64) (out []Content) {
		for _, seq := range seqs {
			c := Content{Kind: Whole, Seq: seq}
			if seq == 0 {
				c.Kind = Blank
			}
			out = append(out, c)
		}
		return out
	}
	for name, tc := range map[string]struct {
		read []Content
		// taken is what a disaster has left before the copy was made, nil if there was none.
		taken []Content
		want  Verdict
	}{
		"nothing of later":              {read: whole(1, 0, 0)},
		"what was under way":            {read: whole(1, 2, 0)},
		"all":                           {read: whole(3, 5, 4)},
		"without the last":              {read: whole(3, 2, 4)},
		"nothing":                       {read: whole(0, 0, 0), want: Stale},
		"the one before is missing":     {read: whole(1, 2, 4), want: OutOfOrder},
		"what was under way is missing": {read: whole(3, 0, 0), want: OutOfOrder},
		"two before are missing":        {read: whole(1, 5, 0), want: OutOfOrder},
		"a write that nobody made":      {read: whole(3, 9, 4), want: Invented},
		"torn":                          {read: []Content{{Kind: Torn}, {Kind: Blank}, {Kind: Blank}}, want: Damaged},
		"unreadable":                    {read: []Content{{Kind: Unreadable}, {Kind: Blank}, {Kind: Blank}}, want: Failed},
		"lost before it was made":       {read: whole(0, 0, 0), taken: whole(0, 0, 0)},
		"lost, and cut before":          {read: whole(1, 0, 0), taken: whole(0, 0, 0)},
		"lost the one before alone":     {read: whole(1, 2, 4), taken: whole(1, 2, 4)},
		"lost another":                  {read: whole(1, 2, 4), taken: whole(3, 2, 0), want: OutOfOrder},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHistory("v", 3, Writeback)
			write := func(at int64) uint64 { return h.Issue(at) }
			ack := func(seq uint64) {
				if err := h.Ack(seq); err != nil {
					t.Fatal(err)
				}
			}
			ack(write(0))
			two := write(1)
			c := h.BeginCopy()
			ack(two)
			ack(write(0))
			ack(write(2))
			write(1)
			if tc.taken != nil {
				if r, err := h.Judge(LossNode, tc.taken); err != nil || r.Err() != nil {
					t.Fatal(r, err)
				}
			}
			r, err := c.Judge(tc.read)
			if err != nil {
				t.Fatal(err)
			}
			got := ok
			if i := slices.IndexFunc(r.Violations, func(Violation) bool { return true }); i >= 0 {
				got = r.Violations[i].Verdict
			}
			if got != tc.want {
				t.Errorf("got %q (%s), want %q", got, r, tc.want)
			}
			if c.Done(); len(h.copies) != 0 {
				t.Error("it is not over")
			}
		})
	}
}
