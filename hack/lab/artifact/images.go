package artifact

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearflash/nearflash/hack/images"
	labplan "github.com/nearflash/nearflash/hack/lab/internal/plan"
	"github.com/nearflash/nearflash/hack/mkimage"
)

const (
	// imageRegistry is the registry part of all our image names. It does not
	// exist: images are imported, never pulled.
	imageRegistry = "nearflash.local/"
	// pauseImage is the sandbox of every pod: the name that the lab's containerd is
	// configured with.
	pauseImage = labplan.PauseImage
	// workloadImage is what test and demo pods run.
	workloadImage = imageRegistry + "workload:1"
	// nodeToolsImage is the lower layer of the images that need host tools. It is
	// in the node base so that only the small upper layers change with the checkout.
	nodeToolsImage = imageRegistry + "node-tools:1"

	pauseSource = "hack/images/pause/main.go"
	layerFile   = "layer.tar"
	digestFile  = "digest"
)

// nodeToolsTree is what nearflash-node and nearflash-target call, of an architecture or, if
// that is empty, of the guests'.
func nodeToolsTree(arch string) tree {
	return tree{variant: "essential", packages: images.NodeTools(), arch: arch}
}

// workloadTree is what test pods call: shell, coreutils, fio, and tools that
// look at block devices and file systems. Of the packages that come with them, most
// files are needed by nothing of that, and unpacking each takes a guest a moment.
func workloadTree() tree {
	return tree{
		variant: "essential", packages: []string{"bash", "coreutils", "e2fsprogs", "fio", "mount", "util-linux"},
		drop: []string{
			"usr/bin/perl", "usr/lib/x86_64-linux-gnu/perl-base/", "usr/share/perl5/", "usr/bin/python3", "usr/lib/python3",
			"usr/lib/systemd/", "usr/lib/x86_64-linux-gnu/systemd/", "usr/lib/x86_64-linux-gnu/gconv/",
			"usr/share/zoneinfo/", "usr/share/lintian/", "usr/share/terminfo/", "var/lib/dpkg/",
		},
	}
}

// layerRecipe is a Debian tree as an image layer.
func (b *builder) layerRecipe(name string, t tree) recipe {
	build := func(ctx context.Context, dir, _ string) error { return b.buildLayer(ctx, name, t, dir) }
	tools := treeTools()
	if t.emulated() {
		tools = append(tools, emulatorOf(t.arch))
	}
	return recipe{name: name, inputs: append(t.inputs(), layerRevision), tools: tools, build: build}
}

func (b *builder) buildLayer(ctx context.Context, name string, t tree, dir string) error {
	raw := filepath.Join(dir, "raw.tar")
	err := b.store.step(ctx, "install the "+name+" layer (Debian "+suite+")", func(ctx context.Context) error {
		return b.debootstrap(ctx, t, dir, raw)
	})
	if err != nil {
		return err
	}
	layer := filepath.Join(dir, layerFile)
	unwanted := func(name string) bool { return unwantedInImage(name) || hasPrefix(name, t.drop) }
	if err := normalize(raw, layer, unwanted); err != nil {
		return err
	}
	sum, err := hashFile(layer)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, digestFile), []byte(sum), 0o644); err != nil {
		return err
	}
	return removeWork(dir, "raw.tar", "tmp", "keyring", "keyring.deb")
}

func normalize(raw, layer string, unwanted func(name string) bool) error {
	in, err := os.Open(raw)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(layer)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	if err := mkimage.NormalizeTar(in, out, unwanted); err != nil {
		return err
	}
	return out.Close()
}

// layerRevision goes up when unwantedInImage or the form of a layer changes.
const layerRevision = "layer 2"

// unwantedInImage names what a container engine provides, what only matters on
// a booted system, and what differs from one installation to the next.
func unwantedInImage(name string) bool {
	return strings.HasSuffix(name, ".pyc") || hasPrefix(name, []string{
		"dev/", "run/", "tmp/", "boot/", "var/log/", "var/cache/", "var/lib/apt/", "etc/apt/",
		"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/i18n/", "usr/lib/udev/hwdb.",
		"etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/iscsi/initiatorname.iscsi",
	})
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// debianLayer opens the layer of a layer artifact.
func debianLayer(dir string) (*mkimage.Layer, error) {
	digest, err := os.ReadFile(filepath.Join(dir, digestFile))
	if err != nil {
		return nil, err
	}
	return mkimage.FileLayer(filepath.Join(dir, layerFile), string(digest))
}

// stableImages are the images that do not change with the driver's source. work
// is a directory for the one program that has to be built.
func (b *builder) stableImages(ctx context.Context, work string, parts nodeBaseParts) ([]mkimage.Spec, error) {
	pause := filepath.Join(work, "pause")
	if err := b.buildPause(ctx, pause); err != nil {
		return nil, err
	}
	spec, err := programImage(pauseImage, "pause", pause)
	if err != nil {
		return nil, err
	}
	sidecars, err := b.sidecarImages(parts.sidecars)
	if err != nil {
		return nil, err
	}
	specs := append([]mkimage.Spec{spec}, sidecars...)
	for _, t := range []struct{ image, dir string }{
		{nodeToolsImage, parts.nodeTools}, {workloadImage, parts.workload},
	} {
		spec, err := debianImage(t.image, t.dir)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// buildPause builds the program of every pod's sandbox.
func (b *builder) buildPause(ctx context.Context, to string) error {
	_, err := run(ctx, GoCommand(ctx, filepath.Join(b.checkout, filepath.Dir(pauseSource)), "build", "-trimpath", "-ldflags", linkerFlags(nil), "-o", to))
	return err
}

// sidecarImages are the images of the sidecars in a directory of programs.
func (b *builder) sidecarImages(dir string) ([]mkimage.Spec, error) {
	var specs []mkimage.Spec
	for _, p := range sidecarPrograms() {
		version, err := p.version(b.checkout)
		if err != nil {
			return nil, err
		}
		spec, err := programImage(imageRegistry+p.name+":"+version, p.name, filepath.Join(dir, p.name))
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// debianImage is an image of a layer artifact alone.
func debianImage(name, dir string) (mkimage.Spec, error) {
	layer, err := debianLayer(dir)
	if err != nil {
		return mkimage.Spec{}, err
	}
	return mkimage.Spec{Name: name, Cmd: []string{"/usr/bin/sleep", "infinity"}, Layers: []*mkimage.Layer{layer}}, nil
}

// programImage is an image FROM scratch with one static program.
func programImage(image, program, path string, below ...*mkimage.Layer) (mkimage.Spec, error) {
	layer, err := mkimage.ProgramLayer(map[string]string{"/" + program: path})
	if err != nil {
		return mkimage.Spec{}, fmt.Errorf("image %s: %w", image, err)
	}
	layers := append(slices.Clone(below), layer)
	return mkimage.Spec{Name: image, Entrypoint: []string{"/" + program}, Layers: layers}, nil
}
