package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	"golang.org/x/mod/module"
)

// sources is where the source code of Go programs is on this machine, which has
// built them.
type sources struct {
	project   string
	Modules   string `json:"GOMODCACHE"`
	Toolchain string `json:"GOROOT"`
	Version   string `json:"GOVERSION"`
}

func findSources(ctx context.Context, project string) (sources, error) {
	s := sources{project: project}
	out, err := exec.CommandContext(ctx, "go", "env", "-json", "GOMODCACHE", "GOROOT", "GOVERSION").Output()
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		return sources{}, fmt.Errorf("go env: %w", err)
	}
	return s, nil
}

// ofPart is the licence of a part of the release. An image has as many as packages.
func (s sources) ofPart(p part) string {
	if p.kind != "APPLICATION" {
		return noAssertion
	}
	return declared(s.project)
}

// of is the licence that a component declares. Debian's packages say theirs in
// prose.
func (s sources) of(c component) string {
	if !strings.HasPrefix(c.purl, "pkg:golang/") {
		return noAssertion
	}
	if c.name == stdlib {
		if s.Version != "go"+c.version {
			return noAssertion
		}
		return declared(s.Toolchain)
	}
	name, err := module.EscapePath(c.name)
	if err != nil {
		return noAssertion
	}
	version, err := module.EscapeVersion(c.version)
	if err != nil {
		return noAssertion
	}
	return declared(filepath.Join(s.Modules, name+"@"+version))
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)`)
	// licenceTitle is the only text beside a licence's own that may be in its file.
	// Whatever else is there may change what it says.
	licenceTitle = regexp.MustCompile(`^((The )?MIT License( \(MIT\))?)?$`)
	// licenceKnown are those that may be named: the scanner has names for others that
	// are not on the list of SPDX.
	licenceKnown = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}
)

// declared reads the licence files of a folder. It names a licence only if each of
// them is the text of that one; which of several holds, for what, is not told here.
func declared(folder string) string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return noAssertion
	}
	found := ""
	for _, entry := range entries {
		if !licenceFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			// Not least a folder, which has a licence for each of some files.
			return noAssertion
		}
		id := licenceOf(text)
		if id == "" || found != "" && found != id {
			return noAssertion
		}
		found = id
	}
	if found == "" {
		return noAssertion
	}
	return found
}

// licenceOf is the one licence that a text is, or empty.
func licenceOf(text []byte) string {
	id, rest, end := "", "", 0
	for _, m := range licensecheck.Scan(text).Match {
		if m.IsURL || id != "" && id != m.ID {
			return ""
		}
		id, rest, end = m.ID, rest+string(text[end:m.Start])+" ", m.End
	}
	rest = strings.Join(strings.Fields(rest+string(text[end:])), " ")
	if !licenceTitle.MatchString(rest) || !slices.Contains(licenceKnown, id) {
		return ""
	}
	return id
}
