package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mit = `Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
`
	isc = `Copyright (c) 2020 Somebody

Permission to use, copy, modify, and/or distribute this software for any
purpose with or without fee is hereby granted, provided that the above
copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH
REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY
AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT,
INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM
LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR
OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR
PERFORMANCE OF THIS SOFTWARE.
`
)

// TestDeclared: a licence is named if nothing else can be meant.
func TestDeclared(t *testing.T) {
	type files map[string]string
	for name, tc := range map[string]struct {
		files files
		want  string
	}{
		"one":                      {files{"LICENSE": isc, "README.md": mit}, "ISC"},
		"with its title":           {files{"LICENSE.txt": "The MIT License (MIT)\n\nCopyright (c) 2020 Somebody\n\n" + mit}, "MIT"},
		"the same twice":           {files{"LICENSE": mit, "COPYING": "MIT License\n\n" + mit}, "MIT"},
		"two files":                {files{"LICENSE": mit, "LICENSE.libyaml": isc}, "NOASSERTION"},
		"two in one file":          {files{"LICENSE": mit + "\n" + isc}, "NOASSERTION"},
		"none":                     {files{"README.md": mit}, "NOASSERTION"},
		"a text nobody knows":      {files{"LICENSE": "Do what you like.\n"}, "NOASSERTION"},
		"an address only":          {files{"LICENSE": "https://www.apache.org/licenses/LICENSE-2.0\n"}, "NOASSERTION"},
		"a clause more":            {files{"LICENSE": mit + "\nOnly for use on Sundays.\n"}, "NOASSERTION"},
		"a word less":              {files{"LICENSE": strings.Replace(mit, "free of charge", "for a fee", 1)}, "NOASSERTION"},
		"for a part of it":         {files{"LICENSE": "The tests are covered by:\n\n" + mit}, "NOASSERTION"},
		"one of them nobody knows": {files{"LICENSE": mit, "LICENCE-2": "Do what you like.\n"}, "NOASSERTION"},
		"a folder of more":         {files{"LICENSE": mit, "LICENSES/ISC": isc}, "NOASSERTION"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range tc.files {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := declared(dir); got != tc.want {
				t.Errorf("licence %s, want %s", got, tc.want)
			}
		})
	}
}

// TestSources: what is not on this machine has no licence.
func TestSources(t *testing.T) {
	s, err := findSources(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range map[component]string{
		{stdlib, strings.TrimPrefix(s.Version, "go"), "pkg:golang/stdlib"}: "BSD-3-Clause",
		{stdlib, "1.0", "pkg:golang/stdlib"}:                               "NOASSERTION",
		{"github.com/google/licensecheck", "v0.0.9", "pkg:golang/x"}:       "NOASSERTION",
		{"../replaced", "", "pkg:golang/x"}:                                "NOASSERTION",
		{"kmod", "34", "pkg:deb/debian/kmod@34"}:                           "NOASSERTION",
	} {
		if got := s.of(c); got != want {
			t.Errorf("licence of %s %s is %s, want %s", c.name, c.version, got, want)
		}
	}
}
