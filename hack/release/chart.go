package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const chartPath = "deploy/helm/nearflash"

// chart packs the chart with the version of the release, which is the tag of its
// images too.
func (r *release) chart(ctx context.Context, helm string) error {
	if helm == "" {
		return errors.New("no helm: set HELM")
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// helm wants the folder to have the chart's name.
	chart := filepath.Join(dir, filepath.Base(chartPath))
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(r.root, chartPath))); err != nil {
		return err
	}
	values := filepath.Join(chart, "values.yaml")
	text, err := os.ReadFile(values)
	if err != nil {
		return err
	}
	tagged, err := tagImages(string(text), r.version)
	if err != nil {
		return err
	}
	if err := os.WriteFile(values, []byte(tagged), 0o644); err != nil {
		return err
	}
	pack := exec.CommandContext(ctx, helm, "package", chart,
		"--version", strings.TrimPrefix(r.version, "v"), "--app-version", r.version, "--destination", r.out)
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("helm package: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// tagImages gives the project's own images in values.yaml the tag of the release.
func tagImages(values, version string) (string, error) {
	const development = ":dev\n"
	if n := strings.Count(values, development); n != 2 {
		return "", fmt.Errorf("values.yaml has %d images with the tag dev, want those of node and controller", n)
	}
	return strings.ReplaceAll(values, development, ":"+version+"\n"), nil
}

// images compresses the archives of one platform and looks into them for the bill.
func (r *release) images(on platform, archives []string) error {
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar")
		if err := r.bill.addImage(name, on, archive); err != nil {
			return fmt.Errorf("%s for %s/%s: %w", name, on.os, on.arch, err)
		}
		target := filepath.Join(r.out, archiveName(name, r.version+"_image", on)+".tar.gz")
		if err := compress(archive, target); err != nil {
			return fmt.Errorf("%s for %s/%s: %w", name, on.os, on.arch, err)
		}
	}
	return nil
}

// compress writes a file compressed; the same content always gives the same file.
func compress(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	zip := gzip.NewWriter(out)
	if _, err := io.Copy(zip, in); err != nil {
		return err
	}
	return zip.Close()
}
