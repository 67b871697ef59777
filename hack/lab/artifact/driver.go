package artifact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

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

// driverProgram is one of the project's own images.
type driverProgram struct {
	name string
	// hostTools says that the program calls the tools of the node-tools layer.
	hostTools bool
}

func driverPrograms() []driverProgram {
	return []driverProgram{
		{name: "nearflash-controller"},
		{name: "nearflash-node", hostTools: true},
		{name: "nearflash-target", hostTools: true},
	}
}

// imageStep builds the project's own images. They are not in the shared cache:
// they change with every edit, and the Go build cache makes them cheap.
type imageStep struct {
	builder   *builder
	nodeTools *task
	// dir has the archives, and the programs in bin.
	dir string
	// tags are the Go build tags.
	tags string
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
		builder: b, nodeTools: nodeTools, dir: filepath.Join(b.checkout, "_output", "images"), full: true,
	}
}

func (s *imageStep) run(ctx context.Context) error {
	if err := s.nodeTools.wait(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "bin"), 0o755); err != nil {
		return err
	}
	unlock, err := flock(ctx, filepath.Join(s.dir, ".lock"), func() {
		s.builder.store.progress("%s: in use by another process, waiting", s.dir)
	})
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
	for _, p := range driverPrograms() {
		archive, err := s.writeImage(p, below)
		if err != nil {
			return fmt.Errorf("image of %s: %w", p.name, err)
		}
		s.archives = append(s.archives, archive)
	}
	return nil
}

// buildPrograms builds into a directory that stays, so that the go command does
// not link again what has not changed.
func (s *imageStep) buildPrograms(ctx context.Context) error {
	args := []string{"build", "-trimpath", "-tags", s.tags,
		"-ldflags", linkerFlags(driverStamp(ctx, s.builder.checkout)), "-o", filepath.Join(s.dir, "bin") + "/"}
	for _, p := range driverPrograms() {
		args = append(args, "./cmd/"+p.name)
	}
	_, err := run(ctx, goCommand(ctx, s.builder.checkout, args...))
	return err
}

// driverStamp returns the linker's settings for the build identity. A tree
// without git history (a source archive) is stamped as such by the defaults of
// the version package.
func driverStamp(ctx context.Context, checkout string) []string {
	commit, err := run(ctx, newCommand(ctx, "git", "-C", checkout, "rev-parse", "--short=12", "HEAD"))
	if err != nil {
		return nil
	}
	id := strings.TrimSpace(string(commit))
	return []string{versionModule + ".Version=v0.0.0-dev." + id, versionModule + ".Commit=" + id}
}

func (s *imageStep) writeImage(p driverProgram, below *mkimage.Layer) (string, error) {
	var layers []*mkimage.Layer
	if p.hostTools {
		layers = append(layers, below)
	}
	spec, err := programImage(imageRegistry+p.name+":"+driverTag, p.name, filepath.Join(s.dir, "bin", p.name), layers...)
	if err != nil {
		return "", err
	}
	archive := filepath.Join(s.dir, p.name+".tar")
	unchanged, err := s.sameImage(archive, spec)
	if err != nil || unchanged {
		return archive, err
	}
	if s.full {
		err = mkimage.WriteDockerArchive(archive, spec)
	} else {
		digest, digestErr := below.Digest()
		if digestErr != nil {
			return "", digestErr
		}
		err = mkimage.WriteOCIArchive(archive, spec, func(h v1.Hash) bool { return h == digest })
	}
	if err != nil {
		return "", err
	}
	return archive, s.rememberImage(archive, spec)
}

// sameImage says whether the archive holds the image already: archives of the
// full images are large, and whoever loads archives may skip unchanged ones.
func (s *imageStep) sameImage(archive string, spec mkimage.Spec) (bool, error) {
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

func (s *imageStep) rememberImage(archive string, spec mkimage.Spec) error {
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
	return digest.String(), nil
}
