package netns

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCut(t *testing.T) {
	tests := map[string]struct {
		a, b    string
		oneWay  bool
		want    []Cut
		wantErr error
	}{
		"both ways":    {a: "node-a", b: "storage", want: []Cut{{"node-a", "storage"}, {"storage", "node-a"}}},
		"one way":      {a: "api", b: "node-b", oneWay: true, want: []Cut{{"api", "node-b"}}},
		"same end":     {a: "api", b: "api", wantErr: ErrCut},
		"unknown node": {a: "node-a", b: "node-z", wantErr: ErrCut},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseCut(tc.a, tc.b, tc.oneWay)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	have := []Cut{{"storage", "node-a"}, {"node-a", "storage"}}
	got := Merge(have, []Cut{{"node-a", "storage"}, {"api", "node-b"}})
	want := []Cut{{"api", "node-b"}, {"node-a", "storage"}, {"storage", "node-a"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
