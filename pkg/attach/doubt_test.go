package attach

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
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
		e := &state.Entry{}
		a := &Attacher{Deps: Deps{Transport: tc.begin}}
		if !tc.before {
			a.markOrigin(t.Context(), e)
		}
		b, err := json.Marshal(e)
		var read state.Entry
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

// countedPaths is a transport whose one path counts; during a rescan it fails what is next
// in the list, and after that price.
type countedPaths struct {
	transport.Transport
	path        string
	errors      uint64
	next        []uint64
	price       uint64
	refuse, new bool
	uncounted   bool
	// blind are the calls of Marks that fail from now on.
	blind int
	// cred is what the last rescan was given.
	cred *volume.Credentials
}

func (c *countedPaths) Marks(context.Context, transport.Target) (transport.Marks, error) {
	if c.blind > 0 {
		c.blind--
		return nil, errors.New("no connection")
	}
	m := transport.Marks{"p:1": {Path: c.path, Errors: c.errors, Uncounted: c.uncounted}}
	if c.new {
		m["q:1"] = transport.PathMark{Path: "q", Errors: c.errors}
	}
	return m, nil
}

func (c *countedPaths) Rescan(_ context.Context, _ transport.Target, cred *volume.Credentials) error {
	c.cred = cred
	if len(c.next) > 0 {
		c.errors, c.next = c.errors+c.next[0], c.next[1:]
	} else {
		c.errors += c.price
	}
	if c.refuse {
		return errors.New("gone")
	}
	return nil
}

// TestGrowthHasSecrets: what an expansion was given reaches whoever expands, counted or not.
func TestGrowthHasSecrets(t *testing.T) {
	for name, marks := range map[string]transport.Marks{"no cache": nil, "a cache": {"p:1": {Path: "a", Errors: 7}}} {
		c := &countedPaths{path: "a", errors: 7}
		a, e := &Attacher{Deps: Deps{Transport: c}}, &state.Entry{OriginMarks: marks}
		cred := &volume.Credentials{Secrets: map[string]string{"k": "v"}}
		if err := a.rescanForGrowth(t.Context(), e, cred); err != nil || c.cred != cred {
			t.Errorf("%s: %v, given %v", name, err, c.cred)
		}
	}
}

// TestDoubtAfterRescans: what a rescan costs by itself is no doubt. What failed beside it,
// or while a rescan was at work, is.
func TestDoubtAfterRescans(t *testing.T) {
	cases := map[string]struct {
		// next are the errors that one rescan after the other counts: those of expansions,
		// then the two that are measured. Behind is what fails outside of them.
		next    []uint64
		rescans int
		behind  uint64
		// refuse has the measuring rescans fail, and lost has the path lose its connection.
		refuse, lost bool
		want         bool
	}{
		"an expansion":                          {rescans: 1},
		"three of them":                         {rescans: 3},
		"an error beside an expansion":          {rescans: 1, behind: 1, want: true},
		"an error without an expansion":         {behind: 1, want: true},
		"an error during an expansion":          {rescans: 2, next: []uint64{1, 2}, want: true},
		"the first that is measured costs more": {rescans: 1, next: []uint64{2, 2, 1}, want: true},
		"an expansion with a unit attention":    {rescans: 1, next: []uint64{2}, want: true},
		"it does not cost anything any more":    {rescans: 1, next: []uint64{1, 0, 0}, want: true},
		"it cannot be measured":                 {rescans: 1, refuse: true, want: true},
		"the connection was lost":               {rescans: 1, lost: true, want: true},
	}
	for name, tc := range cases {
		c := &countedPaths{path: "a", errors: 7, next: tc.next, price: 1}
		a, e := &Attacher{Deps: Deps{Transport: c}}, &state.Entry{}
		a.markOrigin(t.Context(), e)
		for range tc.rescans {
			if _, err := a.rescan(t.Context(), e, nil); err != nil {
				t.Fatal(err)
			}
		}
		c.errors += tc.behind
		c.refuse = tc.refuse
		if tc.lost {
			c.path = "b"
		}
		if why := a.doubt(t.Context(), e); (why != "") != tc.want {
			t.Errorf("%s: %q, want a doubt: %t", name, why, tc.want)
		}
	}
}

// TestRescanMarksNewPaths: a path that comes with an expansion is watched from then on.
func TestRescanMarksNewPaths(t *testing.T) {
	c := &countedPaths{path: "a"}
	a, e := &Attacher{Deps: Deps{Transport: c}}, &state.Entry{}
	a.markOrigin(t.Context(), e)
	c.new = true
	if _, err := a.rescan(t.Context(), e, nil); err != nil {
		t.Fatal(err)
	}
	if why := a.doubt(t.Context(), e); why != "" {
		t.Error(why)
	}
	c.new = false
	if why := a.doubt(t.Context(), e); why == "" {
		t.Error("the new path is gone, and nobody doubts")
	}
}

// TestRescanWithoutMarks: a path that has come while nobody could count is never one that
// nobody watches.
func TestRescanWithoutMarks(t *testing.T) {
	for blind := range 3 {
		c := &countedPaths{path: "a"}
		a, e := &Attacher{Deps: Deps{Transport: c}}, &state.Entry{}
		a.markOrigin(t.Context(), e)
		c.blind, c.new = blind, true
		if _, err := a.rescan(t.Context(), e, nil); err != nil {
			t.Fatal(err)
		}
		c.blind = 0
		if why := a.doubt(t.Context(), e); (why != "") != (blind > 0) {
			t.Errorf("marks failed %d times: %q", blind, why)
		}
	}
}

// kernelCounts is the kernel's count, of one device.
type kernelCounts struct {
	devmapper.Client
	n       uint64
	id      string
	err     error
	going   bool
	missing bool
	minor   int
}

func (k *kernelCounts) Info(context.Context, string) (map[string]devmapper.Info, error) {
	if k.missing {
		return nil, nil
	}
	return map[string]devmapper.Info{"nf-v.origin": {Major: 253, Minor: k.minor}}, nil
}

func (k *kernelCounts) Start(_ context.Context, devno string) error {
	k.going = k.going || devno == "253:7"
	return k.err
}

func (k *kernelCounts) Count(_ context.Context, devno string) (uint64, string, error) {
	if !k.going || devno != "253:7" {
		return 0, "", errors.New("nobody counts")
	}
	return k.n, k.id, k.err
}

// TestDoubtOfAnotherDriver: its disk may count nothing, so the kernel does, at our device over it.
func TestDoubtOfAnotherDriver(t *testing.T) {
	cases := map[string]struct {
		begin, end func(*kernelCounts)
		path       string
		without    bool // nobody counts
		want       bool
	}{
		"no error":               {},
		"an error":               {end: func(k *kernelCounts) { k.n++ }, want: true},
		"another count":          {end: func(k *kernelCounts) { k.id = "b" }, want: true},
		"the count has ended":    {end: func(k *kernelCounts) { k.going = false }, want: true},
		"it cannot be read":      {end: func(k *kernelCounts) { k.err = errors.New("locked down") }, want: true},
		"it could not begin":     {begin: func(k *kernelCounts) { k.err = errors.New("no tracefs") }, want: true},
		"no device at the begin": {begin: func(k *kernelCounts) { k.missing = true }, want: true},
		"another disk":           {path: "sdb", want: true},
		"the device is gone":     {end: func(k *kernelCounts) { k.missing = true }},
		"an error before that":   {end: func(k *kernelCounts) { k.missing = true; k.n++ }, want: true},
		"another device":         {end: func(k *kernelCounts) { k.minor++ }, want: true},
		"nobody counts":          {without: true, want: true},
	}
	for name, tc := range cases {
		k := &kernelCounts{n: 3, id: "a", minor: 7}
		paths := &countedPaths{path: "sda", uncounted: true}
		a := &Attacher{Deps: Deps{Transport: paths, DM: k, IOErrors: k}}
		if tc.without {
			a.IOErrors = nil
		}
		e := &state.Entry{ID: "v", Source: volume.Source{CSI: &volume.CSISource{}}}
		if tc.begin != nil {
			tc.begin(k)
		}
		a.markOrigin(t.Context(), e)
		k.err, k.missing = nil, false
		if tc.end != nil {
			tc.end(k)
		}
		if tc.path != "" {
			paths.path = tc.path
		}
		if why := a.doubt(t.Context(), e); (why != "") != tc.want {
			t.Errorf("%s: %q, want a doubt: %t", name, why, tc.want)
		}
	}
}
