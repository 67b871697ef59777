package artifact

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/mod/modfile"
)

// goProgram is a main package that is built from the module proxy with the
// versions pinned by one of the tool modules.
type goProgram struct {
	name string
	pkg  string
	// dir is the tool module, relative to the checkout.
	dir string
	// module is the required module whose version the program reports.
	module string
	// stamp returns the linker's -X settings for that version.
	stamp func(version string) []string
	// tags are build tags; empty for none.
	tags string
	// test makes the tests of the package, not the package, the program.
	test bool
}

func envtestPrograms() []goProgram {
	return []goProgram{
		kubeProgram("kube-apiserver"),
		kubeProgram("kubectl"),
		{
			name: "etcd", pkg: "go.etcd.io/etcd/server/v3", dir: "hack/tools/etcd", module: "go.etcd.io/etcd/server/v3",
			stamp: func(string) []string { return nil }, // the version is in its source
		},
	}
}

// otherEnvtest are the same but for the API server: the other two go with any. With it comes the
// controller manager of its version, for a lab.
func otherEnvtest(g Group) []goProgram {
	programs := append(envtestPrograms(), kubeProgram("kube-controller-manager"))
	for _, i := range []int{0, len(programs) - 1} {
		programs[i].dir = map[Group]string{EnvtestOldest: "hack/tools/kube-oldest", EnvtestNewest: "hack/tools/kube-newest"}[g]
	}
	return programs
}

func kubePrograms() []goProgram {
	return []goProgram{
		kubeProgram("kube-controller-manager"), kubeProgram("kube-scheduler"), kubeProgram("kubelet"),
	}
}

func kubeProgram(name string) goProgram {
	return goProgram{
		name: name, pkg: "k8s.io/kubernetes/cmd/" + name, dir: "hack/tools/kube",
		module: "k8s.io/kubernetes", stamp: kubeStamp,
	}
}

// kubeStamp sets what upstream's release build sets. Without it the programs
// call themselves v0.0.0-master and checks of version skew go wrong.
func kubeStamp(version string) []string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	var vars []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		vars = append(vars,
			pkg+".gitVersion="+version, pkg+".gitMajor="+major, pkg+".gitMinor="+minor,
			pkg+".gitTreeState=clean", pkg+".buildDate=2026-01-01T00:00:00Z")
	}
	return vars
}

func sidecarPrograms() []goProgram {
	return []goProgram{
		sidecarProgram("csi-provisioner", "github.com/kubernetes-csi/external-provisioner/v6"),
		sidecarProgram("csi-attacher", "github.com/kubernetes-csi/external-attacher/v4"),
		sidecarProgram("csi-resizer", "github.com/kubernetes-csi/external-resizer/v2"),
		sidecarProgram("csi-snapshotter", snapshotterModule),
	}
}

// SnapshotController is the program that every cluster with snapshots has once, whatever its
// drivers are. There is no image: it runs beside the control plane.
const SnapshotController = "snapshot-controller"

const (
	sidecarTool       = "hack/tools/sidecars"
	snapshotterModule = "github.com/kubernetes-csi/external-snapshotter/v8"
	snapshotAPIModule = "github.com/kubernetes-csi/external-snapshotter/client/v8"
)

// sidecarBuild are the programs that are built from the sidecars' module.
func sidecarBuild() []goProgram {
	return append(sidecarPrograms(), sidecarProgram(SnapshotController, snapshotterModule))
}

// SnapshotDefinitions returns the paths of the CustomResourceDefinitions of snapshots, and of
// groups of them.
func SnapshotDefinitions(ctx context.Context, checkout string) ([]string, error) {
	out, err := run(ctx, GoCommand(ctx, filepath.Join(checkout, sidecarTool), "mod", "download", "-json", snapshotAPIModule))
	if err != nil {
		return nil, err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return nil, fmt.Errorf("module %s: %w", snapshotAPIModule, err)
	}
	paths, err := filepath.Glob(filepath.Join(module.Dir, "config", "crd", "*snapshot.storage.k8s.io_*.yaml"))
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("module %s has no CustomResourceDefinitions of snapshots", snapshotAPIModule)
	}
	return paths, err
}

func sidecarProgram(name, module string) goProgram {
	return goProgram{
		name: name, pkg: module + "/cmd/" + name, dir: sidecarTool, module: module,
		stamp: func(v string) []string { return []string{"main.version=" + v} },
	}
}

func helmPrograms() []goProgram {
	return []goProgram{{
		name: "helm", pkg: "helm.sh/helm/v4/cmd/helm", dir: "hack/tools/helm", module: "helm.sh/helm/v4",
		stamp: func(v string) []string { return []string{"helm.sh/helm/v4/internal/version.version=" + v} },
	}}
}

// prometheusTags leave out the service discoveries of clouds, which are most of
// the code. The web interface is not part of the module.
const prometheusTags = "remove_all_sd,enable_kubernetes_sd"

func prometheusPrograms() []goProgram {
	var programs []goProgram
	for _, name := range []string{"prometheus", "promtool"} {
		programs = append(programs, goProgram{
			name: name, pkg: "github.com/prometheus/prometheus/cmd/" + name, dir: "hack/tools/prometheus",
			module: "github.com/prometheus/prometheus", stamp: prometheusStamp, tags: prometheusTags,
		})
	}
	return programs
}

// prometheusStamp turns the version of the module, v0.305.0, into that of the
// program, 3.5.0.
func prometheusStamp(version string) []string {
	minor, patch, _ := strings.Cut(strings.TrimPrefix(version, "v0."), ".")
	if len(minor) == 3 {
		minor = minor[:1] + "." + strings.TrimPrefix(minor[1:], "0")
	}
	return []string{"github.com/prometheus/common/version.Version=" + minor + "." + patch}
}

// version returns the version that the tool module requires of p's module.
func (p goProgram) version(checkout string) (string, error) {
	path := filepath.Join(checkout, p.dir, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mod, err := modfile.ParseLax(path, data, nil)
	if err != nil {
		return "", err
	}
	for _, r := range mod.Require {
		if r.Mod.Path == p.module {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", path, p.module)
}

// ldflags returns the linker flags: stripped and stamped.
func (p goProgram) ldflags(checkout string) (string, error) {
	version, err := p.version(checkout)
	if err != nil {
		return "", err
	}
	return linkerFlags(p.stamp(version)), nil
}

func linkerFlags(vars []string) string {
	flags := []string{"-s", "-w"}
	for _, v := range vars {
		flags = append(flags, "-X", v)
	}
	return strings.Join(flags, " ")
}

// programInputs returns what decides the content of the programs: the pinned
// versions with their checksums, the flags, and the compiler.
func programInputs(checkout string, programs []goProgram) ([]string, error) {
	inputs := []string{runtime.Version(), runtime.GOARCH, goFlags}
	for _, p := range programs {
		flags, err := p.ldflags(checkout)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, p.name, p.pkg, flags)
		if p.tags != "" {
			inputs = append(inputs, p.tags)
		}
		for _, file := range []string{"go.mod", "go.sum"} {
			data, err := os.ReadFile(filepath.Join(checkout, p.dir, file))
			if err != nil {
				return nil, err
			}
			inputs = append(inputs, string(data))
		}
	}
	return inputs, nil
}

// programs is the recipe of a directory of Go programs.
func (b *builder) programs(name string, programs []goProgram) (recipe, error) {
	inputs, err := programInputs(b.checkout, programs)
	if err != nil {
		return recipe{}, err
	}
	build := func(ctx context.Context, dir, _ string) error {
		for _, p := range programs {
			if err := b.buildProgram(ctx, p, dir); err != nil {
				return err
			}
		}
		return nil
	}
	return recipe{name: name, inputs: inputs, build: build}, nil
}

func (b *builder) buildProgram(ctx context.Context, p goProgram, dir string) error {
	flags, err := p.ldflags(b.checkout)
	if err != nil {
		return err
	}
	version, err := p.version(b.checkout)
	if err != nil {
		return err
	}
	return b.store.step(ctx, fmt.Sprintf("build %s %s", p.name, version), func(ctx context.Context) error {
		verb := []string{"build"}
		if p.test {
			verb = []string{"test", "-c", "-vet=off"} // with it, all that it needs would be looked at too
		}
		cmd := GoCommand(ctx, filepath.Join(b.checkout, p.dir), append(verb, "-trimpath", "-tags", p.tags, "-ldflags", flags, "-o", filepath.Join(dir, p.name), p.pkg)...)
		_, err := run(ctx, cmd)
		return err
	})
}

// goFlags are for every build. The programs are stripped, so that the compiler's
// debugging information, a tenth of its work, would be thrown away.
const goFlags = "-buildvcs=false -mod=readonly -gcflags=all=-dwarf=false"

// GoCommand prepares a go command whose result does not depend on the caller's
// workspace, flags or C compiler.
func GoCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := newCommand(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="+goFlags)
	return cmd
}

// moduleDir is where the source of a module lies, of the version in a tool's go.mod.
func (b *builder) moduleDir(ctx context.Context, tool, module string) (string, error) {
	dir, err := run(ctx, GoCommand(ctx, filepath.Join(b.checkout, tool), "list", "-m", "-f", "{{.Dir}}", module))
	return strings.TrimSpace(string(dir)), err
}
