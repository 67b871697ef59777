package main

import (
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	tree := fstest.MapFS{
		"docs/a.md": file("# One `thing`, twice\n\n## Same\n\n## Same\n\n```\n# not a heading\n[x](not-a-link.md)\n```\n"),
		"api/b.go":  file("package b\n"),
	}
	tests := map[string]struct {
		text string
		want []string
	}{
		"good": {text: "[a](docs/a.md) [b](docs/a.md#one-thing-twice) [c](docs/a.md#same-1) [d](api/b.go) [e](docs) [f](#here)\n# Here\n"},
		"away": {text: "[a](https://example.com/x.md) [b](mailto:a@example.com)"},
		"code": {text: "`[a](missing.md)`"},
		"missing file": {
			text: "\n[a](docs/missing.md)", want: []string{"README.md:2: docs/missing.md: no such file"},
		},
		"missing heading": {
			text: "[a](docs/a.md#not-a-heading) [b](#nowhere)",
			want: []string{"README.md:1: docs/a.md#not-a-heading: no such heading", "README.md:1: #nowhere: no such heading"},
		},
		"outside": {
			text: "[a](../secret.md)", want: []string{"README.md:1: ../secret.md: leads out of the project"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tree["README.md"] = file(tc.text)
			got, err := check(tree, []string{"README.md"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
