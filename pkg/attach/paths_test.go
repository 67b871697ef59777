package attach

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestPathsOver(t *testing.T) {
	here := volume.Fence{UID: "u", Node: "a", Generation: 2}
	later := volume.Fence{UID: "u", Node: "b", Generation: 3}
	clean := Entry{Fence: here, State: StateStaged, Mode: volume.ModeWritethrough, Activated: true}
	dirty := Entry{Fence: here, State: StateStaged, Mode: volume.ModeWriteback, Activated: true, Marked: true}
	for name, tc := range map[string]struct {
		entry Entry
		rec   volume.Volume
		found bool
		want  bool
	}{
		"attached":                           {clean, volume.Volume{Fence: here, Published: true}, true, false},
		"attached, dirty":                    {dirty, volume.Volume{Fence: here, Published: true}, true, false},
		"unpublished":                        {clean, volume.Volume{Fence: here}, true, true},
		"unpublished, dirty":                 {dirty, volume.Volume{Fence: here}, true, false},
		"a later owner":                      {clean, volume.Volume{Fence: later, Published: true}, true, true},
		"given up for a later owner":         {dirty, volume.Volume{Fence: later, Published: true}, true, true},
		"no record":                          {clean, volume.Volume{}, false, true},
		"no record, dirty":                   {dirty, volume.Volume{}, false, false},
		"a record made anew":                 {clean, volume.Volume{Fence: volume.Fence{UID: "v", Node: "b", Generation: 9}, Published: true}, true, true},
		"a record made anew, dirty":          {dirty, volume.Volume{Fence: volume.Fence{UID: "v", Node: "b", Generation: 9}, Published: true}, true, false},
		"a record of before, restored":       {clean, volume.Volume{Fence: volume.Fence{UID: "u", Node: "b", Generation: 1}}, true, true},
		"a record of before, dirty":          {dirty, volume.Volume{Fence: volume.Fence{UID: "u", Node: "b", Generation: 1}}, true, false},
		"writethrough, and marked all along": {Entry{Fence: here, State: StateStaged, Mode: volume.ModeWritethrough, Marked: true}, volume.Volume{Fence: here}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pathsOver(&tc.entry, tc.rec, tc.found); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

// What waits for lost paths is told to fail: the origin, and what a fill copies from, which
// waits for an origin without paths once that is in the peer's place; and to wait again.
func TestFailPaths(t *testing.T) {
	for name, tc := range map[string]struct {
		paths map[layout.Part]bool // multipath devices, and whether they have a path
		fail  []string
		queue []string
	}{
		"one portal":                      {map[layout.Part]bool{}, nil, nil},
		"several, all lost":               {map[layout.Part]bool{layout.Origin: false}, []string{"nf-v.origin fail_if_no_path"}, []string{"nf-v.origin queue_if_no_path"}},
		"one of several":                  {map[layout.Part]bool{layout.Origin: true}, nil, []string{"nf-v.origin queue_if_no_path"}},
		"one portal, a fill":              {map[layout.Part]bool{layout.Source: false}, []string{"nf-v.source fail_if_no_path"}, []string{"nf-v.source queue_if_no_path"}},
		"a fill that its peer serves":     {map[layout.Part]bool{layout.Origin: false, layout.Source: true}, []string{"nf-v.origin fail_if_no_path"}, []string{"nf-v.origin queue_if_no_path", "nf-v.source queue_if_no_path"}},
		"a fill from an origin, all lost": {map[layout.Part]bool{layout.Origin: false, layout.Source: false}, []string{"nf-v.origin fail_if_no_path", "nf-v.source fail_if_no_path"}, []string{"nf-v.origin queue_if_no_path", "nf-v.source queue_if_no_path"}},
	} {
		t.Run(name, func(t *testing.T) {
			dm := &pathDevices{paths: map[string]bool{}}
			for part, has := range tc.paths {
				dm.paths[layout.Device("v", part)] = has
			}
			a := New(Config{}, Deps{Pool: withoutPool{}, DM: dm})
			if err := a.failPaths(t.Context(), "v"); err != nil || !slices.Equal(dm.said, tc.fail) {
				t.Errorf("fail: %v, %v, want %v", dm.said, err, tc.fail)
			}
			dm.said = nil
			if err := a.queuePaths(t.Context(), "v"); err != nil || !slices.Equal(dm.said, tc.queue) {
				t.Errorf("queue: %v, %v, want %v", dm.said, err, tc.queue)
			}
		})
	}
}

// pathDevices are multipath devices, which may have a path.
type pathDevices struct {
	devmapper.Client
	paths map[string]bool
	said  []string
}

func (d *pathDevices) Table(_ context.Context, name string) (devmapper.Table, error) {
	if _, found := d.paths[name]; !found {
		return nil, devmapper.ErrNotExist
	}
	return devmapper.Table{{Length: 8, Target: devmapper.MultipathTarget{Paths: []string{"8:0"}}}}, nil
}

func (d *pathDevices) MultipathStatus(_ context.Context, name string) (devmapper.MultipathStatus, error) {
	return devmapper.MultipathStatus{Paths: []devmapper.PathStatus{{Device: "8:0", Active: d.paths[name]}}}, nil
}

func (d *pathDevices) Message(_ context.Context, name string, _ uint64, args ...string) error {
	d.said = append(d.said, fmt.Sprint(name, " ", args[0]))
	return nil
}
