package artifact

import (
	"context"
	_ "embed" // kind-guest.sh
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kindGuestScript turns a Debian tree and programs into a guest's root and a node image.
//
//go:embed kind-guest.sh
var kindGuestScript string

const (
	// kindRootFile and kindNodeFile are the results of the script.
	kindRootFile = "root.ext4"
	kindNodeFile = "node.tar"
	kindModule   = "sigs.k8s.io/kind"
	kindToolDir  = "hack/tools/kind"
)

// kindTree is the software of a guest that runs a Docker engine, and of kind's nodes in
// it, which leave out the engine.
func kindTree() tree {
	return tree{variant: "minbase", packages: []string{
		"bash", "ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "dbus", "dmsetup", "docker-cli", "docker.io",
		"e2fsprogs", "ethtool", "iproute2", "iptables", "jq", "kmod", "libseccomp2", "linux-source-7.2", "lvm2", "mount", "nftables", "open-iscsi",
		"procps", "runc", "systemd", "systemd-sysv", "udev", "user-mode-linux", "util-linux", "xfsprogs", "xz-utils",
	}}
}

// kernelBuildTools compile modules of the guest kernel.
func kernelBuildTools() []hostTool {
	return []hostTool{
		{"make", "make"}, {"gcc", "gcc"}, {"flex", "flex"}, {"bison", "bison"}, {"bc", "bc"}, {"xz", "xz-utils"}, {"jq", "jq"},
	}
}

func kindPrograms() []goProgram {
	return []goProgram{
		kubeProgram("kubeadm"), kubeProgram("kube-proxy"),
		{
			name: "kind", pkg: kindModule, dir: kindToolDir, module: kindModule,
			stamp: func(string) []string { return nil }, // the version is in its source
		},
	}
}

// planKindGuest plans what `make e2e-kind-guest` needs beyond kind's own images.
func (b *builder) planKindGuest(p *plan) error {
	if err := b.planPrograms(p, &p.goLane, &p.kindPrograms, "kind-programs", kindPrograms()); err != nil {
		return err
	}
	if p.kube == nil {
		if err := b.planPrograms(p, &p.goLane, &p.kube, "kube", kubePrograms()); err != nil {
			return err
		}
	}
	version, err := kubeProgram("kubeadm").version(b.checkout)
	if err != nil {
		return err
	}
	pause, err := os.ReadFile(filepath.Join(b.checkout, pauseSource))
	if err != nil {
		return err
	}
	needs := []*task{p.kernel, p.envtest, p.kube, p.kindPrograms}
	inputs := append(kindTree().inputs(), kindGuestScript, guestInit, rootSize, string(pause), version)
	for _, t := range needs {
		inputs = append(inputs, t.recipe.key())
	}
	p.kindGuest = newTask(recipe{
		name: "kind-guest", inputs: inputs, tools: slices.Concat(treeTools(), imageTools(), kernelBuildTools()),
		build: func(ctx context.Context, dir, _ string) error { return b.buildKindGuest(ctx, p, version, dir) },
	}, needs...)
	p.addTask(&p.guestLane, p.kindGuest, b.store)
	return nil
}

func (b *builder) buildKindGuest(ctx context.Context, p *plan, version, dir string) error {
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	err := b.store.step(ctx, "install the guest for kind (Debian "+suite+")", func(ctx context.Context) error {
		return b.debootstrap(ctx, kindTree(), work, filepath.Join(work, "tree"))
	})
	if err != nil {
		return err
	}
	pause, first := filepath.Join(work, "pause"), filepath.Join(work, "guest-init")
	if err := b.buildPause(ctx, pause); err != nil {
		return err
	}
	if err := os.WriteFile(first, []byte(guestInit), 0o755); err != nil {
		return err
	}
	kind, err := b.moduleDir(ctx, kindToolDir, kindModule)
	if err != nil {
		return err
	}
	err = b.store.step(ctx, "make kind's node image and the guest's root", func(ctx context.Context) error {
		cmd := newCommand(ctx, "bash", "-s")
		cmd.Dir, cmd.Stdin = work, strings.NewReader(kindGuestScript)
		cmd.Env = append(cmd.Env,
			"PROGRAMS="+p.kindPrograms.dir, "LINUX="+p.kernel.file(kernelFile), "ENVTEST="+p.envtest.dir, "KUBE="+p.kube.dir,
			"KIND="+kind, "VERSION="+version, "PAUSE="+pause, "INIT="+first, "SIZE="+rootSize)
		_, err := run(ctx, cmd)
		return err
	})
	if err != nil {
		return err
	}
	for _, file := range []string{kindRootFile, kindNodeFile} {
		if err := os.Rename(filepath.Join(work, file), filepath.Join(dir, file)); err != nil {
			return fmt.Errorf("the script has not made it: %w", err)
		}
	}
	if err := copyFile(p.kindPrograms.file("kind"), filepath.Join(dir, "kind")); err != nil {
		return err
	}
	return os.RemoveAll(work)
}
