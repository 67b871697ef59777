// Command release makes everything that a release consists of, in one folder: the
// kubectl plugin for each platform, nearflash-target, the chart, the images as
// archives, a software bill of materials, and the checksums of all of it.
//
//	go run ./hack/release                       into _output/release, the version from git
//	go run ./hack/release -version v0.2.0
//	go run ./hack/release -images=false         without the images, which need root
//
// It needs no registry and no container engine, and it publishes nothing.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/hack/lab/artifact"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r := release{root: "."}
	var images bool
	flag.StringVar(&r.version, "version", os.Getenv("VERSION"), "semantic `version` with a v (default: from git describe; environment: VERSION)")
	flag.StringVar(&r.out, "out", filepath.Join("_output", "release"), "`folder` that is made anew")
	flag.BoolVar(&images, "images", true, "make the images")
	flag.Parse()
	err := r.run(ctx, images)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one release in the making.
type release struct {
	// root is the source tree.
	root string
	// out is where it goes.
	out string
	// version begins with a v; commit is empty without git. made is the time that is
	// written into archives: that of the commit.
	version, commit string
	made            time.Time
	// bill is what the release consists of.
	bill bill
}

func (r *release) run(ctx context.Context, images bool) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	groups := []artifact.Group{artifact.Helm}
	if images {
		groups = append(groups, artifact.Images, artifact.ImagesARM64)
	}
	set, err := artifact.Ensure(ctx, artifact.Options{
		Checkout: r.root, Groups: groups, Version: r.version,
		Progress: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	})
	if err != nil {
		return err
	}
	helm := cmp.Or(os.Getenv("HELM"), set.Bin["helm"])
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"programs", r.programs},
		{"chart", func(ctx context.Context) error { return r.chart(ctx, helm) }},
		{"images", func(context.Context) error {
			return errors.Join(r.images(platform{"linux", "amd64"}, set.FullImages), r.images(platform{"linux", "arm64"}, set.ARM64Images))
		}},
		{"bill of materials", r.writeBill},
		{"checksums", r.checksums},
	}
	for _, step := range steps {
		fmt.Fprintln(os.Stderr, "release "+r.version+":", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return r.list()
}

// list prints what was made.
func (r *release) list() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return errors.New("nothing was made")
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return err
		}
		fmt.Printf("%12d  %s\n", info.Size(), filepath.Join(r.out, entry.Name()))
	}
	return nil
}
