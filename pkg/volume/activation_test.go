package volume

import "testing"

func TestIdentify(t *testing.T) {
	act := func(id string, generation, count int64) Activation {
		return Activation{ID: id, Generation: generation, Count: count}
	}
	none := Activation{}
	cases := map[string]struct {
		known, now, pending Activation
		want                Identity
	}{
		"the record's last":                          {act("x", 5, 7), act("x", 5, 7), none, IdentityCurrent},
		"counted on, the record not yet":             {act("x", 5, 8), act("x", 5, 7), none, IdentityCurrent},
		"an image from before the count":             {act("x", 5, 6), act("x", 5, 7), none, IdentityPast},
		"about to be":                                {act("y", 5, 8), act("x", 5, 7), act("y", 5, 8), IdentityCurrent},
		"the last one, the next is about to be":      {act("x", 5, 7), act("x", 5, 7), act("y", 5, 8), IdentityCurrent},
		"an image from before the last stage":        {act("w", 5, 6), act("x", 5, 7), none, IdentityPast},
		"another machine of the name":                {act("z", 5, 7), act("x", 5, 7), none, IdentityPast},
		"a record out of a backup":                   {act("y", 5, 8), act("x", 5, 7), none, IdentityAhead},
		"a record of before there were activations":  {act("y", 5, 8), none, none, IdentityAhead},
		"a record of before, the next is about to":   {act("y", 5, 8), none, act("z", 5, 9), IdentityPast},
		"a version before":                           {act("", 5, 0), none, none, IdentityCurrent},
		"a version before, this one is about to":     {act("", 5, 0), none, act("x", 5, 1), IdentityCurrent},
		"an image of a version before":               {act("", 5, 0), act("x", 5, 1), none, IdentityPast},
		"a version before had it since, elsewhere":   {act("", 6, 0), act("x", 5, 1), none, IdentityCurrent},
		"the ownership before, the next one begins":  {act("x", 5, 7), act("x", 5, 7), act("y", 6, 8), IdentityCurrent},
		"an image, and the next one begins":          {act("w", 5, 6), act("x", 5, 7), act("y", 6, 8), IdentityPast},
		"the ownership before, the next one was":     {act("x", 5, 7), act("y", 6, 8), none, IdentityAhead},
		"pending of an earlier ownership is nothing": {act("y", 6, 9), act("x", 5, 7), act("z", 5, 8), IdentityAhead},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := (Volume{Activation: tc.now, Pending: tc.pending}).Identify(tc.known); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
