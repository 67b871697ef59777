package transport_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/transport"
)

func TestMarksSince(t *testing.T) {
	a, b := transport.PathMark{Path: "session1 a", Errors: 2}, transport.PathMark{Path: "session2 b"}
	both := transport.Marks{"p:1": a, "q:1": b}
	cases := map[string]struct {
		base, now transport.Marks
		want      transport.Failed
	}{
		"as before":            {both, transport.Marks{"p:1": a, "q:1": b}, transport.FailedNo},
		"a path has come":      {transport.Marks{"p:1": a}, both, transport.FailedNo},
		"a request has failed": {both, transport.Marks{"p:1": a, "q:1": {Path: b.Path, Errors: 1}}, transport.FailedYes},
		"fewer than before":    {both, transport.Marks{"p:1": {Path: a.Path, Errors: 1}, "q:1": b}, transport.FailedUnknown},
		"a path is gone":       {both, transport.Marks{"p:1": a}, transport.FailedUnknown},
		"another connection":   {both, transport.Marks{"p:1": {Path: "session3 a", Errors: 2}, "q:1": b}, transport.FailedUnknown},
		"nothing is there":     {both, nil, transport.FailedUnknown},
		"nothing was known":    {transport.Marks{}, both, transport.FailedUnknown},
	}
	for name, tc := range cases {
		got, why := tc.now.Since(tc.base)
		if got != tc.want || (why == "") != (got == transport.FailedNo) {
			t.Errorf("%s: %s (%s), want %s", name, got, why, tc.want)
		}
	}
}
