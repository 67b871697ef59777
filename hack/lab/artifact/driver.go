package artifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/nearflash/nearflash/hack/images"
	"github.com/nearflash/nearflash/hack/mkimage"
)

const (
	// driverTag is the tag of the images built from a checkout.
	driverTag = "dev"
	// faultTag is the build tag that compiles the fault points in. Only the lab
	// gets them: with it a test can end a program between any two of its steps.
	faultTag      = "faultpoints"
	versionModule = "github.com/nearflash/nearflash/pkg/version"
)

// imageStep builds the project's own images. They are not in the shared cache:
// they change with every edit, and the Go build cache makes them cheap.
type imageStep struct {
	builder   *builder
	nodeTools *task
	// dir has the archives, and the programs in bin.
	dir string
	// tags are the Go build tags.
	tags string
	// version is stamped into the programs and is the tag of the images; empty is
	// that of a development build.
	version string
	// arch is the architecture, as Go calls it; empty is that of the guests, amd64.
	arch string
	// full includes the node-tools layer in the archives.
	full     bool
	archives []string
}

// labImages are for a lab cluster: with fault points, without the layer that
// the node base has.
func (b *builder) labImages(nodeTools *task) *imageStep {
	return &imageStep{
		builder: b, nodeTools: nodeTools, dir: filepath.Join(b.checkout, "_output", "lab-images"), tags: faultTag,
	}
}

// fullImages are for everybody else.
func (b *builder) fullImages(nodeTools *task) *imageStep {
	return &imageStep{
		builder: b, nodeTools: nodeTools, dir: filepath.Join(b.checkout, "_output", "images"), full: true, version: b.version,
	}
}

// arm64Images are the same for nodes of that architecture.
func (b *builder) arm64Images(nodeTools *task) *imageStep {
	return &imageStep{
		builder: b, nodeTools: nodeTools, dir: filepath.Join(b.checkout, "_output", "images-arm64"), full: true, version: b.version, arch: arm64,
	}
}

// OtherVersion builds the images of opt.Checkout, which may be one of another version than this
// program's, for a lab cluster: with opt.Version as what they say and as their tag, without fault
// points, in the form of [Set.DriverImages]. It returns the folder of the programs too.
func OtherVersion(ctx context.Context, opt Options, dir string) (archives []string, bin string, err error) {
	b, err := newBuilder(opt)
	if err != nil {
		return nil, "", err
	}
	nodeTools := newTask(b.layerRecipe("node-tools", nodeToolsTree("")))
	if err := nodeTools.run(ctx, b.store); err != nil {
		return nil, "", err
	}
	s := &imageStep{builder: b, nodeTools: nodeTools, dir: dir, version: b.version}
	err = s.run(ctx)
	return s.archives, filepath.Join(dir, "bin"), err
}

func (s *imageStep) run(ctx context.Context) error {
	if err := s.nodeTools.wait(ctx); err != nil {
		return err
	}
	unlock, err := s.builder.lockFolder(ctx, s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	err = s.builder.store.step(ctx, "build the driver's programs", s.buildPrograms)
	if err != nil {
		return err
	}
	below, err := debianLayer(s.nodeTools.dir)
	if err != nil {
		return err
	}
	for _, p := range images.All() {
		archive, err := s.writeImage(p, below)
		if err != nil {
			return fmt.Errorf("image of %s: %w", p.Name, err)
		}
		s.archives = append(s.archives, archive)
	}
	return nil
}

// lockFolder makes a folder of the checkout for whoever calls unlock; other processes
// wait for it.
func (b *builder) lockFolder(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return flock(ctx, filepath.Join(dir, ".lock"), func() {
		b.store.progress("%s: in use by another process, waiting", dir)
	})
}

// buildPrograms builds into a directory that stays, so that the go command does
// not link again what has not changed.
func (s *imageStep) buildPrograms(ctx context.Context) error {
	args := []string{"build", "-trimpath", "-tags", s.tags,
		"-ldflags", linkerFlags(driverStamp(ctx, s.builder.checkout, s.version)), "-o", filepath.Join(s.dir, "bin") + "/"}
	for _, p := range images.All() {
		args = append(args, "./cmd/"+p.Name)
	}
	build := GoCommand(ctx, s.builder.checkout, args...)
	build.Env = append(build.Env, "GOOS=linux", "GOARCH="+cmp.Or(s.arch, mkimage.DefaultArch))
	_, err := run(ctx, build)
	return err
}

// driverStamp returns the linker's settings for the build identity. A tree
// without git history (a source archive) is stamped as such by the defaults of
// the version package.
func driverStamp(ctx context.Context, checkout, version string) []string {
	var id string
	if commit, err := run(ctx, newCommand(ctx, "git", "-C", checkout, "rev-parse", "--short=12", "HEAD")); err == nil {
		id = strings.TrimSpace(string(commit))
	}
	return Stamp(cmp.Or(version, devVersion(id)), id)
}

func devVersion(commit string) string {
	if commit == "" {
		return ""
	}
	return "v0.0.0-dev." + commit
}

// Stamp returns the settings of the Go linker (-X) that tell a program its version and
// its commit; what is empty is left as the version package has it.
func Stamp(version, commit string) []string {
	var vars []string
	for _, v := range []struct{ name, value string }{{"Version", version}, {"Commit", commit}} {
		if v.value != "" {
			vars = append(vars, versionModule+"."+v.name+"="+v.value)
		}
	}
	return vars
}

func (s *imageStep) writeImage(p images.Image, below *mkimage.Layer) (string, error) {
	var layers []*mkimage.Layer
	if p.HostTools {
		layers = append(layers, below)
	}
	tag := cmp.Or(s.version, driverTag)
	spec, err := programImage(imageRegistry+p.Name+":"+tag, p.Name, filepath.Join(s.dir, "bin", p.Name), layers...)
	if err != nil {
		return "", err
	}
	spec.User, spec.Arch = p.User, s.arch
	archive := filepath.Join(s.dir, p.Name+".tar")
	if s.full {
		return archive, writeDockerArchive(archive, spec)
	}
	unchanged, err := sameImage(archive, spec)
	if err != nil || unchanged {
		return archive, err
	}
	digest, err := below.Digest()
	if err != nil {
		return "", err
	}
	if err := mkimage.WriteOCIArchive(archive, spec, func(h v1.Hash) bool { return h == digest }); err != nil {
		return "", err
	}
	return archive, rememberImage(archive, spec)
}

// writeDockerArchive writes an archive for any engine, unless it is there.
func writeDockerArchive(archive string, spec mkimage.Spec) error {
	unchanged, err := sameImage(archive, spec)
	if err != nil || unchanged {
		return err
	}
	if err := mkimage.WriteDockerArchive(archive, spec); err != nil {
		return err
	}
	return rememberImage(archive, spec)
}

// sameImage says whether the archive holds the image already: archives of the
// full images are large, and whoever loads archives may skip unchanged ones.
func sameImage(archive string, spec mkimage.Spec) (bool, error) {
	recorded, err := os.ReadFile(archive + ".digest")
	if errors.Is(err, os.ErrNotExist) || !exists(archive) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	digest, err := imageDigest(spec)
	return string(recorded) == digest, err
}

func rememberImage(archive string, spec mkimage.Spec) error {
	digest, err := imageDigest(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(archive+".digest", []byte(digest), 0o644)
}

func imageDigest(spec mkimage.Spec) (string, error) {
	img, err := mkimage.Image(spec)
	if err != nil {
		return "", err
	}
	digest, err := img.Digest()
	if err != nil {
		return "", err
	}
	// The name is in the archive and not in the digest.
	return spec.Name + "@" + digest.String(), nil
}
