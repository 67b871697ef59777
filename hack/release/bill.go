package main

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/package-url/packageurl-go"

	"github.com/nearflash/nearflash/hack/images"
)

// stdlib is what scanners call Go's standard library.
const stdlib = "stdlib"

// component is one thing that a part of the release contains, by its package URL
// (https://github.com/package-url/purl-spec).
type component struct{ name, version, purl string }

func newComponent(name, version string, purl *packageurl.PackageURL) (component, error) {
	if err := purl.Normalize(); err != nil {
		return component{}, fmt.Errorf("package URL of %s %s: %w", name, version, err)
	}
	return component{name: name, version: version, purl: purl.ToString()}, nil
}

func goModule(module, version string) (component, error) {
	namespace, name := path.Split(module)
	return newComponent(module, version, packageurl.NewPackageURL(packageurl.TypeGolang, namespace, name, version, nil, ""))
}

// part is a program or an image of the release.
type part struct {
	name, kind string
	contains   []component
}

// bill is what the release consists of.
type bill struct{ parts []part }

// errPlatform says that a part is of another platform than the one it is released for.
var errPlatform = errors.New("wrong platform")

// addProgram adds a Go program with the modules that its linker has noted in it. A program of
// another platform is an error (errPlatform).
func (b *bill) addProgram(name string, on platform, path string) error {
	contains, err := goModules(path, on)
	if err != nil {
		return err
	}
	b.parts = append(b.parts, part{name: name, kind: "APPLICATION", contains: contains})
	return nil
}

// goModules reads the modules of a program of a platform, the standard library among them.
func goModules(program string, on platform) ([]component, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	for _, s := range info.Settings {
		if want := map[string]string{"GOOS": on.os, "GOARCH": on.arch}[s.Key]; want != "" && s.Value != want {
			return nil, fmt.Errorf("%w: the program is for %s", errPlatform, s.Value)
		}
	}
	var found []component
	for _, m := range append([]*debug.Module{{Path: stdlib, Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...) {
		if m.Replace != nil {
			m = m.Replace
		}
		c, err := goModule(m.Path, m.Version)
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, nil
}

// addImage adds an image of a platform: its Debian packages, and the modules of the program
// in it. An image or a program of another platform is an error (errPlatform).
func (b *bill) addImage(name string, on platform, archive string) error {
	image, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	if got := (platform{config.OS, config.Architecture}); got != on {
		return fmt.Errorf("%w: the image is for %s/%s", errPlatform, got.os, got.arch)
	}
	contains, err := imageContent(image, name, on)
	if err != nil {
		return err
	}
	b.parts = append(b.parts, part{name: fmt.Sprintf("%s (image, %s/%s)", name, on.os, on.arch), kind: "CONTAINER", contains: contains})
	return nil
}

// imageContent reads the list of packages and the program out of an image.
func imageContent(image v1.Image, program string, on platform) ([]component, error) {
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
			modules, err := modulesOf(files, on)
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

// modulesOf reads the modules of a program of a platform in a stream.
func modulesOf(in io.Reader, on platform) ([]component, error) {
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
	return goModules(file.Name(), on)
}

func debianPackage(name, version, arch string) (component, error) {
	qualifiers := packageurl.QualifiersFromMap(map[string]string{"arch": arch, "distro": images.Suite})
	return newComponent(name, version, packageurl.NewPackageURL(packageurl.TypeDebian, "debian", name, version, qualifiers, ""))
}

// debianPackages reads dpkg's status file.
func debianPackages(in io.Reader) ([]component, error) {
	var found []component
	fields := map[string]string{}
	flush := func() error {
		defer clear(fields)
		if !strings.HasSuffix(fields["Status"], " installed") {
			return nil
		}
		c, err := debianPackage(fields["Package"], fields["Version"], fields["Architecture"])
		found = append(found, c)
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			if err := flush(); err != nil {
				return nil, err
			}
			continue
		}
		if key, value, ok := strings.Cut(line, ": "); ok && line[0] != ' ' {
			fields[key] = value
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return found, lines.Err()
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
