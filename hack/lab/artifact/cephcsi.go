package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// CephCSISource names the environment variable with the folder of ceph-csi's source, with its
// vendored modules. It is no module that could be fetched: without it, the driver over the lab's
// Ceph is one of the tests.
const CephCSISource = "CEPH_CSI_SRC"

const cephCSIFile = "cephcsi"

// cephCSITree is what ceph-csi is built in: with the libraries of [cephTree].
func cephCSITree() tree {
	return tree{variant: "essential", packages: []string{"gcc", "libc6-dev", "libcephfs-dev", "librados-dev", "librbd-dev", "linux-libc-dev"}}
}

// cephCSIScript builds in the tree $1 with the Go of $2 what is in $3, as ceph-csi's own Makefile
// does, without a network.
const cephCSIScript = `
mkdir -p "$1/usr/local/go" "$1/src" "$1/out"
mount --bind "$2" "$1/usr/local/go"
mount --bind "$3" "$1/src"
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
exec chroot "$1" env -i PATH=/usr/local/go/bin:/usr/bin:/bin HOME=/out GOCACHE=/out/cache GOTOOLCHAIN=local GOPROXY=off CGO_ENABLED=1 sh -ec '
	. /src/build.env
	cd /src
	exec go build -mod=vendor -trimpath -buildvcs=false -tags "$CEPH_VERSION,ceph_preview" -ldflags "-s -w -X github.com/ceph/ceph-csi/internal/util.DriverVersion=$CSI_IMAGE_VERSION" -o /out/cephcsi ./cmd'
`

// planCephCSI plans the driver, if there is its source.
func (b *builder) planCephCSI(p *plan) error {
	source := os.Getenv(CephCSISource)
	if source == "" {
		return nil
	}
	sum, err := hashTree(source)
	if err != nil {
		return fmt.Errorf("%s: %w", CephCSISource, err)
	}
	t := cephCSITree()
	p.cephCSI = newTask(recipe{
		name: "ceph-csi", inputs: append(t.inputs(), sum, runtime.Version(), cephCSIScript), tools: treeTools(),
		build: func(ctx context.Context, dir, _ string) error { return b.buildCephCSI(ctx, t, source, dir) },
	})
	p.addTask(&p.debianLane, p.cephCSI, b.store)
	return nil
}

func (b *builder) buildCephCSI(ctx context.Context, t tree, source, dir string) error {
	root := filepath.Join(dir, "tree")
	err := b.store.step(ctx, "install what ceph-csi is built with (Debian "+suite+")", func(ctx context.Context) error {
		return b.debootstrap(ctx, t, dir, root)
	})
	if err != nil {
		return err
	}
	err = b.store.step(ctx, "build ceph-csi", func(ctx context.Context) error {
		goroot, err := run(ctx, newCommand(ctx, "go", "env", "GOROOT"))
		if err != nil {
			return err
		}
		cmd := newCommand(ctx, "sh", "-ec", cephCSIScript, "ceph-csi", root, strings.TrimSpace(string(goroot)), source)
		// What is mounted for it is gone with it.
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		_, err = run(ctx, cmd)
		return err
	})
	if err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(root, "out", cephCSIFile), filepath.Join(dir, cephCSIFile)); err != nil {
		return err
	}
	return removeWork(dir, "tree", "tmp", "keyring", "keyring.deb")
}

// hashTree is of the names and contents of all files of a folder, but for git's own.
func hashTree(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == ".git":
			return fs.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		sum, err := hashFile(path)
		_, _ = fmt.Fprintf(h, "%s %s\n", sum, path[len(dir):])
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
