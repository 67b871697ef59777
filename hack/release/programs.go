package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearflash/nearflash/hack/lab/artifact"
)

// platform is a system that a program is built for.
type platform struct{ os, arch string }

// program is built as an archive for each of its platforms.
type program struct {
	name      string
	platforms []platform
	// beside are files of the tree that go into the archive too.
	beside []string
}

// releasePrograms are what people install by hand. The plugin's platforms are those of
// deploy/krew/nearflash.yaml.
func releasePrograms() []program {
	return []program{
		{name: "kubectl-nearflash", platforms: []platform{
			{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"},
		}},
		{
			name: "nearflash-target", platforms: nodePlatforms(),
			beside: []string{"deploy/target/config.example.yaml", "deploy/target/nearflash-target.service", "deploy/target/alerts.yaml"},
		},
		{name: "nearflash-node", platforms: nodePlatforms()},
	}
}

// nodePlatforms are what nodes and storage servers may be; images are made for the same.
func nodePlatforms() []platform { return []platform{{"linux", "amd64"}, {"linux", "arm64"}} }

// archiveName is the name of a program's archive without its ending.
func archiveName(program, version string, p platform) string {
	return fmt.Sprintf("%s_%s_%s_%s", program, version, p.os, p.arch)
}

// programs builds each program for each of its platforms.
func (r *release) programs(ctx context.Context) error {
	for _, p := range releasePrograms() {
		for _, on := range p.platforms {
			if err := r.program(ctx, p, on); err != nil {
				return fmt.Errorf("%s for %s/%s: %w", p.name, on.os, on.arch, err)
			}
		}
	}
	return nil
}

func (r *release) program(ctx context.Context, p program, on platform) error {
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := p.name
	if on.os == "windows" {
		file += ".exe"
	}
	binary := filepath.Join(dir, file)
	flags := "-s -w"
	for _, v := range artifact.Stamp(r.version, r.commit) {
		flags += " -X " + v
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", binary, "./cmd/"+p.name)
	build.Dir = r.root
	// Of the versions that the driver's own go.mod has, whatever it is joined with.
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS="+on.os, "GOARCH="+on.arch)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	name := archiveName(p.name, r.version, on)
	if err := r.bill.addProgram(name, on, binary); err != nil {
		return err
	}
	files := []packed{{name: file, path: binary, mode: 0o755}}
	for _, path := range p.beside {
		files = append(files, packed{name: filepath.Base(path), path: filepath.Join(r.root, path), mode: 0o644})
	}
	return writeArchive(filepath.Join(r.out, name+".tar.gz"), r.made, files)
}

// packed is a file of an archive.
type packed struct {
	name, path string
	mode       int64
}

// writeArchive writes a .tar.gz that depends on the files and the time alone.
func writeArchive(path string, made time.Time, files []packed) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	// The header of gzip has no name and no time.
	zip := gzip.NewWriter(out)
	archive := tar.NewWriter(zip)
	for _, f := range files {
		text, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(text)), ModTime: made}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(archive, bytes.NewReader(text)); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}
