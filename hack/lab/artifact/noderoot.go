package artifact

import (
	"context"
	_ "embed" // guest-init.sh
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// guestInit is installed as /usr/sbin/guest-init of the node root.
//
//go:embed guest-init.sh
var guestInit string

const (
	// nodeRootFile is the ext4 image inside the node-root artifact.
	nodeRootFile = "root.ext4"
	// packageListFile records which package versions the suite had.
	packageListFile = "packages.txt"
	// rootSize is the apparent size of a node's root file system; the file is sparse.
	rootSize = "4G"
)

// nodeTree is the software of a guest: LVM and dm-cache tools, both sides of
// iSCSI, a container runtime, and what tests measure and check with.
func nodeTree() tree {
	return tree{variant: "minbase", packages: []string{
		"ca-certificates", "containerd", "containernetworking-plugins", "e2fsprogs", "fio", "iproute2", "iptables",
		"kmod", "lvm2", "mount", "nftables", "open-iscsi", "procps", "runc", "smartmontools", "thin-provisioning-tools", "udev",
		"user-mode-linux", "util-linux", "xfsprogs",
	}}
}

// mkfsOptions make a small journal, no reserved blocks, and tables that are
// already zero, so that no guest spends its first minute on writing them.
func mkfsOptions() []string {
	return []string{
		"-q", "-t", "ext4", "-m", "0", "-J", "size=32", "-L", "nearflash-node",
		"-E", "lazy_itable_init=0,lazy_journal_init=0",
	}
}

// nodeRootRecipe is the Debian tree of a guest as an ext4 image, plus the guest
// kernel with the libc it was linked against.
func (b *builder) nodeRootRecipe() recipe {
	inputs := append(nodeTree().inputs(), mkfsOptions()...)
	inputs = append(inputs, rootSize, guestInit, etcResolvConf, etcHosts)
	return recipe{
		name: "node-root", inputs: inputs, tools: slices.Concat(treeTools(), imageTools()), build: b.buildNodeRoot,
	}
}

func (b *builder) buildNodeRoot(ctx context.Context, dir, _ string) error {
	root := filepath.Join(dir, "tree")
	err := b.store.step(ctx, "install the node root (Debian "+suite+")", func(ctx context.Context) error {
		return b.debootstrap(ctx, nodeTree(), dir, root)
	})
	if err != nil {
		return err
	}
	if err := takeKernel(root, dir); err != nil {
		return err
	}
	if err := prepareNodeRoot(ctx, root); err != nil {
		return err
	}
	if err := recordPackages(ctx, root, dir); err != nil {
		return err
	}
	err = b.store.step(ctx, "write the node root image", func(ctx context.Context) error {
		image := filepath.Join(dir, nodeRootFile)
		args := append(mkfsOptions(), "-d", root, image, rootSize)
		if _, err := run(ctx, newCommand(ctx, findTool("mke2fs"), args...)); err != nil {
			return err
		}
		return os.Chmod(image, 0o444)
	})
	if err != nil {
		return err
	}
	return removeWork(dir, "tree", "tmp", "keyring", "keyring.deb")
}

func removeWork(dir string, names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// takeKernel moves the guest kernel out of the tree and copies the loader and
// libc it needs, which are newer than many hosts'.
func takeKernel(root, dir string) error {
	out := filepath.Join(dir, "uml")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(root, "usr/bin/linux.uml"), filepath.Join(out, kernelFile)); err != nil {
		return err
	}
	for _, lib := range kernelLibs() {
		if err := copyFile(filepath.Join(root, "usr/lib/x86_64-linux-gnu", lib), filepath.Join(out, lib)); err != nil {
			return err
		}
	}
	return nil
}

// kubelet and runc refuse to run pods and containers without these two files.
const (
	etcResolvConf = "# A guest has no name server; /etc/hosts has the names there are.\n"
	etcHosts      = "127.0.0.1 localhost\n::1 localhost\n"
)

// prepareNodeRoot puts the modules where modprobe looks, and the first process
// of a guest and its configuration files into the tree.
func prepareNodeRoot(ctx context.Context, root string) error {
	packaged := filepath.Join(root, "usr/lib/uml/modules")
	versions, err := os.ReadDir(packaged)
	if err != nil {
		return err
	}
	if len(versions) != 1 {
		return fmt.Errorf("%s: %d kernel versions, want 1", packaged, len(versions))
	}
	version := versions[0].Name()
	modules := filepath.Join(root, "usr/lib/modules")
	if err := os.MkdirAll(modules, 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(packaged, version), filepath.Join(modules, version)); err != nil {
		return err
	}
	if _, err := run(ctx, newCommand(ctx, "chroot", root, "depmod", version)); err != nil {
		return err
	}
	if err := removeVolatile(root); err != nil {
		return err
	}
	for path, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"usr/sbin/guest-init": {guestInit, 0o755},
		"etc/resolv.conf":     {etcResolvConf, 0o644},
		"etc/hosts":           {etcHosts, 0o644},
	} {
		if err := os.WriteFile(filepath.Join(root, path), []byte(file.text), file.mode); err != nil {
			return err
		}
	}
	return nil
}

// recordPackages writes the versions that the suite had into the artifact.
func recordPackages(ctx context.Context, root, dir string) error {
	list, err := run(ctx, newCommand(ctx, "chroot", root, "dpkg-query", "-W"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, packageListFile), list, 0o644)
}

// removeVolatile removes what differs from one installation to the next.
func removeVolatile(root string) error {
	for _, pattern := range []string{
		"var/lib/apt/lists/*", "var/cache/apt/*.bin", "var/cache/apt/archives/*.deb", "var/log/*.log", "var/log/apt",
		"var/cache/ldconfig/*", "etc/machine-id", "etc/hostname", "etc/resolv.conf",
	} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	// An empty id is filled by whoever needs one; an absent file is an error to some.
	return os.WriteFile(filepath.Join(root, "etc/machine-id"), nil, 0o644)
}

const kernelFile = "linux"

func kernelLibs() []string { return []string{"ld-linux-x86-64.so.2", "libc.so.6"} }

// kernelRecipe is the guest kernel made to run from its place in the cache. The
// place is part of the key because the path of the loader is absolute.
func (b *builder) kernelRecipe(nodeRootKey string, nodeRoot func() string) recipe {
	return recipe{
		name:   "kernel",
		inputs: []string{nodeRootKey, b.store.root},
		tools:  kernelTools(),
		build: func(ctx context.Context, dir, final string) error {
			return b.buildKernel(ctx, filepath.Join(nodeRoot(), "uml"), dir, final)
		},
	}
}

func (b *builder) buildKernel(ctx context.Context, src, dir, final string) error {
	for _, name := range append(kernelLibs(), kernelFile) {
		if err := copyFile(filepath.Join(src, name), filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	// Tried before it gets the loader's final path, where nothing is yet.
	kernel := filepath.Join(dir, kernelFile)
	if err := setLoader(ctx, kernel, dir); err != nil {
		return err
	}
	out, err := run(ctx, newCommand(ctx, kernel, "--version"))
	if err != nil {
		return fmt.Errorf("the guest kernel does not start on this host: %w", err)
	}
	version := strings.TrimSpace(string(out))
	if version == "" {
		return errors.New("the guest kernel states no version")
	}
	b.store.progress("guest kernel %s", version)
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte(version+"\n"), 0o644); err != nil {
		return err
	}
	return setLoader(ctx, kernel, final)
}

// setLoader makes the kernel use the loader and libc in libDir. It starts itself
// again through /proc/self/exe, so a wrapper that calls the loader would not do.
func setLoader(ctx context.Context, kernel, libDir string) error {
	loader := filepath.Join(libDir, kernelLibs()[0])
	_, err := run(ctx, newCommand(ctx, "patchelf", "--set-interpreter", loader, "--set-rpath", libDir, kernel))
	return err
}
