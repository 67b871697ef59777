package main

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/nearflash/nearflash/hack/images"
)

// component is one thing that a part of the release contains, by its package URL
// (https://github.com/package-url/purl-spec).
type component struct{ name, version, purl string }

// part is a program or an image of the release.
type part struct {
	name, kind string
	contains   []component
}

// bill is what the release consists of.
type bill struct{ parts []part }

// addProgram adds a Go program with the modules that its linker has noted in it.
func (b *bill) addProgram(name, path string) error {
	contains, err := goModules(path)
	if err != nil {
		return err
	}
	b.parts = append(b.parts, part{name: name, kind: "APPLICATION", contains: contains})
	return nil
}

// goModules reads the modules of a program, the standard library among them.
func goModules(path string) ([]component, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	toolchain := strings.TrimPrefix(info.GoVersion, "go")
	found := []component{{name: "stdlib", version: toolchain, purl: "pkg:golang/stdlib@" + toolchain}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		found = append(found, component{name: m.Path, version: m.Version, purl: "pkg:golang/" + m.Path + "@" + m.Version})
	}
	return found, nil
}

// addImage adds an image: its Debian packages, and the modules of the program in it.
func (b *bill) addImage(name, archive string) error {
	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return err
	}
	contains, err := imageContent(image, name)
	if err != nil {
		return err
	}
	b.parts = append(b.parts, part{name: name + " (image)", kind: "CONTAINER", contains: contains})
	return nil
}

// imageContent reads the list of packages and the program out of an image.
func imageContent(image v1.Image, program string) ([]component, error) {
	stream := mutate.Extract(image)
	defer func() { _ = stream.Close() }()
	var found []component
	seen := false
	for files := tar.NewReader(stream); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch strings.TrimPrefix(header.Name, "./") {
		case "var/lib/dpkg/status":
			packages, err := debianPackages(files)
			if err != nil {
				return nil, err
			}
			found = append(found, packages...)
		case program:
			modules, err := modulesOf(files)
			if err != nil {
				return nil, err
			}
			found, seen = append(found, modules...), true
		}
	}
	if !seen {
		return nil, fmt.Errorf("no program /%s in the image", program)
	}
	return found, nil
}

// modulesOf reads the modules of a program in a stream.
func modulesOf(in io.Reader) ([]component, error) {
	file, err := os.CreateTemp("", "release-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	if _, err := io.Copy(file, in); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	return goModules(file.Name())
}

// debianPackages reads dpkg's status file.
func debianPackages(in io.Reader) ([]component, error) {
	var found []component
	fields := map[string]string{}
	flush := func() {
		if fields["Package"] != "" && strings.HasSuffix(fields["Status"], " installed") {
			found = append(found, component{
				name: fields["Package"], version: fields["Version"],
				purl: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", fields["Package"],
					strings.NewReplacer(":", "%3A", "+", "%2B").Replace(fields["Version"]), fields["Architecture"], images.Suite),
			})
		}
		clear(fields)
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			flush()
			continue
		}
		if key, value, ok := strings.Cut(line, ": "); ok && line[0] != ' ' {
			fields[key] = value
		}
	}
	flush()
	return found, lines.Err()
}

// The part of SPDX 2.3 that is written (https://spdx.github.io/spdx-spec/v2.3/).
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		License       string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID       string          `json:"SPDXID"`
		Name     string          `json:"name"`
		Version  string          `json:"versionInfo"`
		Location string          `json:"downloadLocation"`
		Analyzed bool            `json:"filesAnalyzed"`
		Purpose  string          `json:"primaryPackagePurpose"`
		Refs     []spdxReference `json:"externalRefs,omitempty"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		From string `json:"spdxElementId"`
		Type string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const (
	spdxRoot    = "SPDXRef-DOCUMENT"
	noAssertion = "NOASSERTION"
)

var notInID = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// spdx writes the bill down. Every component is there once, whatever contains it.
func (r *release) spdx() spdxDocument {
	doc := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: spdxRoot, Name: "nearflash-" + r.version,
		Creation: spdxCreation{Created: r.made.Format("2006-01-02T15:04:05Z"), Creators: []string{"Tool: nearflash-release-" + r.version}},
	}
	known := map[string]bool{}
	for _, p := range r.bill.parts {
		id := "SPDXRef-Part-" + notInID.ReplaceAllString(p.name, "-")
		doc.Packages = append(doc.Packages, spdxPackage{ID: id, Name: p.name, Version: r.version, Location: noAssertion, Purpose: p.kind})
		doc.Relationships = append(doc.Relationships, spdxRelationship{spdxRoot, "DESCRIBES", id})
		for _, c := range p.contains {
			below := "SPDXRef-" + notInID.ReplaceAllString(strings.TrimPrefix(c.purl, "pkg:"), "-")
			if !known[below] {
				known[below] = true
				doc.Packages = append(doc.Packages, spdxPackage{
					ID: below, Name: c.name, Version: c.version, Location: noAssertion, Purpose: "LIBRARY",
					Refs: []spdxReference{{"PACKAGE-MANAGER", "purl", c.purl}},
				})
			}
			doc.Relationships = append(doc.Relationships, spdxRelationship{id, "CONTAINS", below})
		}
	}
	sum := sha256.Sum256(fmt.Append(nil, doc))
	doc.Namespace = "https://github.com/nearflash/nearflash/sbom/" + r.version + "/" + hex.EncodeToString(sum[:16])
	return doc
}

// writeBill writes the bill of materials.
func (r *release) writeBill(context.Context) error {
	text, err := json.MarshalIndent(r.spdx(), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "nearflash_"+r.version+".spdx.json"), append(text, '\n'), 0o644)
}

const sumsFile = "SHA256SUMS"

// checksums writes what `sha256sum --check` reads.
func (r *release) checksums(context.Context) error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var lines []string
	for _, entry := range entries {
		if entry.Name() == sumsFile {
			continue
		}
		sum, err := sumFile(filepath.Join(r.out, entry.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, sum+"  "+entry.Name()+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(r.out, sumsFile), []byte(strings.Join(lines, "")), 0o644)
}

func sumFile(path string) (string, error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
