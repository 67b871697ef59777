package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// The kernels of distributions that tests of one kernel run on, too, unmodified and in
// a machine that is emulated. They are pinned: a package counts by its hash alone,
// wherever it comes from.
//
// To renew a pin: take Version, Filename and SHA256 of what linux-image-amd64 depends
// on from the suite's signed Packages index (`apt-cache show` on a system of that
// suite), and today's date for snapshot.
const (
	// Debian12 is the oldest kernel that is supported.
	Debian12 Group = "debian-12"
	Debian13 Group = "debian-13"
	// DebianNewest is the newest kernel of any Debian suite.
	DebianNewest Group = "debian-newest"
)

// stockSnapshot is a time at which Debian had all of the packages below: what a mirror
// has dropped since is at snapshot.debian.org.
const stockSnapshot = "http://snapshot.debian.org/archive/debian/20261124T000000Z"

// stockPackage is a package of Debian's, below its archive's pool/main.
type stockPackage struct{ path, sha256 string }

// stockKernel is a kernel of a distribution.
type stockKernel struct {
	// release is what uname -r says.
	release  string
	packages []stockPackage
}

// StockKernels returns the names of the pinned kernels, the oldest first.
func StockKernels() []Group { return []Group{Debian12, Debian13, DebianNewest} }

func stockKernels() map[Group]stockKernel {
	return map[Group]stockKernel{
		Debian12: {release: "6.1.0-50-amd64", packages: []stockPackage{{
			"l/linux-signed-amd64/linux-image-6.1.0-50-amd64_6.1.176-1_amd64.deb",
			"7b5597492a0a65aee61985a492e6bcc3f2cde830072a0e3b3d8c7e1b90279bd3",
		}}},
		Debian13: {release: "6.12.117+deb13-amd64", packages: []stockPackage{{
			"l/linux-signed-amd64/linux-image-6.12.117+deb13-amd64_6.12.117-1_amd64.deb",
			"ca712d36790184f6ac125ce2b20ea4e2202ae6bb7817b7de268f1f0115ccda73",
		}}},
		DebianNewest: {release: "7.2.13+deb14-amd64", packages: []stockPackage{
			{
				"l/linux-signed-amd64/linux-binary-7.2.13+deb14-amd64_7.2.13-1_amd64.deb",
				"fb8cd0ade4ef82d9dde1dcf183d4bf4033db1b549b0acc9973855ad9cc48c4f5",
			},
			{
				"l/linux/linux-base-7.2.13+deb14-amd64_7.2.13-1_amd64.deb",
				"2b2d3c6e224358c60974d0bc87461da99a85733eb1fec035b5167582c3bede2b",
			},
			{
				"l/linux/linux-modules-7.2.13+deb14-amd64_7.2.13-1_amd64.deb",
				"a37a3d200915c4cf524e90c81bbb2a8b683d292cd00873e89c23b2ef32b1bf11",
			},
		}},
	}
}

// Files of a stock kernel's artifact.
const (
	stockVmlinuz = "vmlinuz"
	// stockBoot is the folder of the modules that the root's disk and the host's folders
	// need, with their order in a file.
	stockBoot  = "boot"
	stockOrder = "order"
	// stockModules is an ext4 image of /lib/modules.
	stockModules     = "modules.ext4"
	stockModulesSize = "384M"
)

// stockKept begins the paths of the modules that are kept: those of hardware that the
// emulated machine does not have are the most of a distribution's.
func stockKept() []string {
	return []string{
		"arch/", "block/", "crypto/", "fs/", "lib/", "mm/", "net/", "security/", "drivers/block/", "drivers/char/", "drivers/dax/", "drivers/infiniband/core/",
		"drivers/md/", "drivers/net/bonding/", "drivers/net/dummy", "drivers/net/net_failover", "drivers/net/veth", "drivers/net/virtio_net", "drivers/nvdimm/",
		"drivers/nvme/", "drivers/scsi/", "drivers/target/", "drivers/uio/", "drivers/virtio/",
	}
}

// Modules without which the emulated machine does not come as far as its root, and
// those that a kernel may have built in, or not have.
func stockBootModules() (must, may []string) {
	return []string{"virtio_pci", "virtio_blk", "ext4", "9p", "9pnet_virtio"}, []string{"crc32c_generic", "crc32c_intel", "virtio_rng"}
}

// stockTools take a kernel's packages apart.
func stockTools() []hostTool {
	return append(imageTools(), []hostTool{{"dpkg-deb", "dpkg"}, {"depmod", "kmod"}, {"modprobe", "kmod"}, {"xz", "xz-utils"}}...)
}

// emulatorTools run them.
func emulatorTools() []hostTool { return []hostTool{{"qemu-system-x86_64", "qemu-system-x86"}} }

func (b *builder) planStock(p *plan, groups []Group) {
	for _, g := range StockKernels() {
		if !slices.Contains(groups, g) {
			continue
		}
		if p.stock == nil {
			p.stock, p.tools = map[Group]*task{}, append(p.tools, emulatorTools()...)
		}
		p.stock[g] = newTask(b.stockRecipe(g))
		p.addTask(&p.debianLane, p.stock[g], b.store)
	}
}

func (b *builder) stockRecipe(g Group) recipe {
	k := stockKernels()[g]
	must, may := stockBootModules()
	inputs := slices.Concat([]string{k.release, stockModulesSize}, stockKept(), must, may)
	for _, p := range k.packages {
		inputs = append(inputs, p.path, p.sha256)
	}
	return recipe{
		name: string(g), inputs: inputs, tools: stockTools(),
		build: func(ctx context.Context, dir, _ string) error {
			return b.store.step(ctx, "take the kernel "+k.release+" out of its packages", func(ctx context.Context) error {
				return buildStock(ctx, k, dir)
			})
		},
	}
}

func buildStock(ctx context.Context, k stockKernel, dir string) error {
	tree := filepath.Join(dir, "tree")
	for _, p := range k.packages {
		if err := unpackStock(ctx, []string{stockSnapshot}, p, dir, tree); err != nil {
			return err
		}
	}
	// Where a package puts the kernel and its modules has changed over the years.
	vmlinuz := filepath.Join(tree, "boot", "vmlinuz-"+k.release)
	modules := filepath.Join(tree, "usr/lib/modules", k.release)
	if !exists(modules) {
		modules = filepath.Join(tree, "lib/modules", k.release)
	}
	if !exists(vmlinuz) {
		vmlinuz = filepath.Join(modules, stockVmlinuz)
	}
	if err := copyFile(vmlinuz, filepath.Join(dir, stockVmlinuz)); err != nil {
		return err
	}
	kept := filepath.Join(dir, "kept")
	if err := keepModules(ctx, modules, filepath.Join(kept, "lib/modules", k.release)); err != nil {
		return err
	}
	if _, err := run(ctx, newCommand(ctx, findTool("depmod"), "-b", kept, k.release)); err != nil {
		return err
	}
	if err := writeBootModules(ctx, kept, k.release, filepath.Join(dir, stockBoot)); err != nil {
		return err
	}
	image := filepath.Join(dir, stockModules)
	_, err := run(ctx, newCommand(ctx, findTool("mke2fs"), "-q", "-t", "ext4", "-m", "0", "-O", "^has_journal",
		"-d", filepath.Join(kept, "lib/modules"), image, stockModulesSize))
	if err != nil {
		return err
	}
	return removeWork(dir, "tree", "kept", "kernel.deb")
}

// unpackStock fetches a package from the first place that has it, the archives last.
func unpackStock(ctx context.Context, archives []string, p stockPackage, dir, tree string) error {
	mirrors, err := debianMirrors(ctx)
	if err != nil {
		return err
	}
	var urls []string
	for _, m := range append(mirrors, archives...) {
		// The archive of security updates has a pool of another name.
		urls = append(urls, joinURL(m, "pool/main/"+p.path), joinURL(m, "pool/updates/main/"+p.path))
	}
	deb := filepath.Join(dir, "kernel.deb")
	var failed []error
	for _, url := range urls {
		if err := download(ctx, url, deb); err != nil {
			failed = append(failed, err)
			continue
		}
		sum, err := hashFile(deb)
		if err != nil {
			return err
		}
		if sum != p.sha256 {
			failed = append(failed, fmt.Errorf("%s: sha256 %s, want %s", url, sum, p.sha256))
			continue
		}
		_, err = run(ctx, newCommand(ctx, "dpkg-deb", "-x", deb, tree))
		return err
	}
	return fmt.Errorf("%w: %s is nowhere any more: Debian has replaced it; renew the pin (hack/lab/artifact/stock.go), or set %s to a mirror that has it: %w",
		ErrMirror, path.Base(p.path), mirrorEnv, errors.Join(failed...))
}

// keepModules copies the modules that are kept, and unpacks what is compressed: the
// guest has no time to do so at each boot.
func keepModules(ctx context.Context, from, to string) error {
	var packed []string
	err := filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		module, isModule := strings.CutPrefix(rel, "kernel/")
		keep := strings.HasPrefix(rel, "modules.")
		if isModule {
			keep = slices.ContainsFunc(stockKept(), func(begin string) bool { return strings.HasPrefix(module, begin) })
		}
		if !keep {
			return nil
		}
		dst := filepath.Join(to, rel)
		if strings.HasSuffix(dst, ".xz") {
			packed = append(packed, dst)
		}
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			return err
		}
		return copyFile(file, dst)
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(packed, 200) {
		if _, err := run(ctx, newCommand(ctx, "xz", append([]string{"-d"}, some...)...)); err != nil {
			return err
		}
	}
	return nil
}

// writeBootModules copies what has to be loaded before there is a root, and lists it in
// the order in which it is loaded.
func writeBootModules(ctx context.Context, base, release, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	must, may := stockBootModules()
	var order []string
	for _, name := range slices.Concat(may, must) {
		out, err := run(ctx, newCommand(ctx, findTool("modprobe"), "-d", base, "-S", release, "--show-depends", name))
		if err != nil && slices.Contains(must, name) {
			return err
		}
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line) // "insmod FILE OPTIONS...", "builtin NAME"
			if len(f) < 2 || f[0] != "insmod" || slices.Contains(order, path.Base(f[1])) {
				continue
			}
			order = append(order, path.Base(f[1]))
			if err := copyFile(f[1], filepath.Join(to, path.Base(f[1]))); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(to, stockOrder), []byte(strings.Join(order, "\n")+"\n"), 0o644)
}
