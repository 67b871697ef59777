package volume_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestFor: what a node sees of a volume that many read.
func TestFor(t *testing.T) {
	read := volume.Volume{
		ID: "v", Spec: volume.Spec{Mode: volume.ModeWriteback, Unsafe: true}, Fence: volume.Fence{UID: "u", Generation: 4, Node: volume.Readers},
		Published: true, Readers: []string{"a", "b"}, FlushRequest: "flush", ScrubRequest: "scrub", Preload: &volume.Preload{Request: "preload"}, WarmSource: &volume.WarmSource{Node: "c", Generation: 3},
		Activation: volume.Activation{ID: "writer", Generation: 3, Count: 9},
	}
	released := read
	released.Published, released.Readers = false, nil
	written := volume.Volume{ID: "v", Spec: volume.Spec{Mode: volume.ModeWriteback}, Fence: volume.Fence{UID: "u", Generation: 3, Node: "a"}, Published: true}
	for name, tc := range map[string]struct {
		v         volume.Volume
		node      string
		want      volume.Fence
		published bool
		readOnly  bool
		mode      volume.CacheMode
		names     []string
	}{
		"one of the readers":        {read, "b", volume.Fence{UID: "u", Generation: 4, Node: "b"}, true, true, volume.ModeWritethrough, []string{"a", "b"}},
		"one that was shut out":     {read, "c", volume.Fence{UID: "u", Generation: 4, Node: "c"}, false, true, volume.ModeWritethrough, []string{"a", "b"}},
		"nobody reads it any more":  {released, "a", volume.Fence{UID: "u", Generation: 4, Node: "a"}, false, true, volume.ModeWritethrough, nil},
		"written by this node":      {written, "a", written.Fence, true, false, volume.ModeWriteback, []string{"a"}},
		"written by another node":   {written, "b", written.Fence, true, false, volume.ModeWriteback, []string{"a"}},
		"nobody has had the volume": {volume.Volume{}, "a", volume.Fence{}, false, false, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.v.For(tc.node)
			if got.Fence != tc.want || got.Published != tc.published || got.ReadOnly != tc.readOnly || got.Spec.Mode != tc.mode {
				t.Errorf("got %+v", got)
			}
			if got.ReadOnly && (got.WarmSource != nil || got.FlushRequest != "" || got.ScrubRequest != "" || got.Preload != nil || got.Spec.Unsafe || got.Activation != volume.Activation{}) {
				t.Errorf("a reader is asked for what an owner is: %+v", got)
			}
			if diff := cmp.Diff(tc.names, tc.v.PublishedTo()); diff != "" {
				t.Errorf("published to (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNamesOfReaders(t *testing.T) {
	for want, nodes := range map[string][]string{"a": {"a"}, "a, b, c": {"a", "b", "c"}, "a, b, c and 2 more": {"a", "b", "c", "d", "e"}} {
		if got := volume.NamesOfReaders(nodes); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
