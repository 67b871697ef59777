package artifact

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/nearflash/nearflash/hack/mkimage"
)

// archiveStep writes complete archives of the images that do not come from this
// checkout: in a lab they are part of the node base.
type archiveStep struct {
	builder            *builder
	sidecars, workload *task
	dir                string
	archives           []string
}

func (s *archiveStep) run(ctx context.Context) error {
	for _, need := range []*task{s.sidecars, s.workload} {
		if err := need.wait(ctx); err != nil {
			return err
		}
	}
	unlock, err := s.builder.lockFolder(ctx, s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	specs, err := s.builder.sidecarImages(s.sidecars.dir)
	if err != nil {
		return err
	}
	workload, err := debianImage(workloadImage, s.workload.dir)
	if err != nil {
		return err
	}
	for _, spec := range append(specs, workload) {
		archive := filepath.Join(s.dir, archiveName(spec))
		if err := writeDockerArchive(archive, spec); err != nil {
			return fmt.Errorf("image %s: %w", spec.Name, err)
		}
		s.archives = append(s.archives, archive)
	}
	return nil
}

// archiveName is the image's name without registry and tag.
func archiveName(spec mkimage.Spec) string {
	name, _, _ := strings.Cut(filepath.Base(spec.Name), ":")
	return name + ".tar"
}
