package attach

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/transport"
)

// markedPaths is a transport of which only the marks are asked.
type markedPaths struct {
	transport.Transport
	marks transport.Marks
	err   error
}

func (m markedPaths) Marks(context.Context, transport.Target) (transport.Marks, error) {
	return m.marks, m.err
}

// TestDoubt: what is not known is a doubt, but for a cache of a version before. The
// journal tells the two apart.
func TestDoubt(t *testing.T) {
	now := transport.Marks{"p:1": {Path: "a", Errors: 3}}
	broken := markedPaths{err: errors.New("no sysfs")}
	cases := map[string]struct {
		begin, end markedPaths
		before     bool // activated by a version before
		want       bool
	}{
		"no error":              {begin: markedPaths{marks: now}, end: markedPaths{marks: now}},
		"an error":              {begin: markedPaths{marks: now}, end: markedPaths{marks: transport.Marks{"p:1": {Path: "a", Errors: 4}}}, want: true},
		"another connection":    {begin: markedPaths{marks: now}, end: markedPaths{marks: transport.Marks{"p:1": {Path: "b", Errors: 3}}}, want: true},
		"gone":                  {begin: markedPaths{marks: now}, end: markedPaths{}, want: true},
		"unknown at the end":    {begin: markedPaths{marks: now}, end: broken, want: true},
		"unknown at the begin":  {begin: broken, end: markedPaths{marks: now}, want: true},
		"without a path before": {begin: markedPaths{}, end: markedPaths{marks: now}, want: true},
		"of a version before":   {before: true, end: markedPaths{marks: now}},
	}
	for name, tc := range cases {
		e := &Entry{}
		a := &Attacher{Deps: Deps{Transport: tc.begin}}
		if !tc.before {
			a.markOrigin(t.Context(), e)
		}
		b, err := json.Marshal(e)
		var read Entry
		if err == nil {
			err = json.Unmarshal(b, &read)
		}
		if err != nil {
			t.Fatal(err)
		}
		a.Transport = tc.end
		if why := a.doubt(t.Context(), &read); (why != "") != tc.want {
			t.Errorf("%s: %q, want a doubt: %t", name, why, tc.want)
		}
	}
}
