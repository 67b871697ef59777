package artifact

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/semver"

	labplan "github.com/nearflash/nearflash/hack/lab/internal/plan"
)

// checkoutRoot is the tree that this test is part of.
const checkoutRoot = "../../.."

func newTestBuilder(t *testing.T) *builder {
	t.Helper()
	b, err := newBuilder(Options{CacheDir: t.TempDir(), Checkout: checkoutRoot})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPlanGroups(t *testing.T) {
	cases := map[string]struct {
		groups    []Group
		wantTasks []string
		wantTools []string
		wantErr   string
	}{
		"none":    {},
		"envtest": {groups: []Group{Envtest}, wantTasks: []string{"envtest"}},
		"others":  {groups: []Group{EnvtestOldest, EnvtestNewest}, wantTasks: []string{"envtest-newest", "envtest-oldest"}},
		"helm":    {groups: []Group{Helm}, wantTasks: []string{"helm"}},
		"metrics": {groups: []Group{Prometheus}, wantTasks: []string{"prometheus"}},
		"kernel": {
			groups:    []Group{Kernel},
			wantTasks: []string{"kernel", "node-root"},
			wantTools: []string{"debugfs", "e2fsck", "gpgv", "mke2fs", "mmdebstrap", "patchelf"},
		},
		"images": {
			groups:    []Group{Images},
			wantTasks: []string{"full images", "node-tools"}, wantTools: []string{"gpgv", "mmdebstrap"},
		},
		"images of arm64": {
			groups:    []Group{ImagesARM64},
			wantTasks: []string{"arm64 images", "node-tools-arm64"}, wantTools: []string{"gpgv", "mmdebstrap", "qemu-aarch64-static"},
		},
		"upstream": {
			groups: []Group{Upstream}, wantTasks: []string{"upstream", "workload"}, wantTools: []string{"gpgv", "mmdebstrap"},
		},
		"pd": {
			groups: []Group{PD}, wantTasks: []string{"pd", "sidecars", "workload"}, wantTools: []string{"gpgv", "mmdebstrap"},
		},
		"ceph": {
			groups: []Group{Ceph}, wantTasks: []string{"ceph", "sidecars", "workload"}, wantTools: []string{"gpgv", "mmdebstrap"},
		},
		"database": {groups: []Group{Database}, wantTasks: []string{"database"}, wantTools: []string{"gpgv", "mmdebstrap"}},
		"kind": {
			groups:    []Group{Kind},
			wantTasks: []string{"full images", "node-tools", "other images", "sidecars", "workload"}, wantTools: []string{"gpgv", "mmdebstrap"},
		},
		"kind guest": {
			groups: []Group{KindGuest},
			wantTasks: []string{
				"envtest", "full images", "helm", "kernel", "kind-guest", "kind-programs", "kube", "node-root", "node-tools", "other images", "sidecars", "workload",
			},
			wantTools: []string{"bc", "bison", "debugfs", "e2fsck", "flex", "gcc", "gpgv", "jq", "make", "mke2fs", "mmdebstrap", "patchelf", "xz"},
		},
		"stock": {
			groups: []Group{Debian12}, wantTasks: []string{"debian-12"},
			wantTools: []string{"debugfs", "depmod", "dpkg-deb", "e2fsck", "mke2fs", "modprobe", "qemu-system-x86_64", "xz"},
		},
		"cluster": {
			groups: []Group{Cluster},
			wantTasks: []string{
				"envtest", "helm", "kernel", "kube", "lab images", "node-base", "node-root", "node-tools", "sidecars", "workload",
			},
			wantTools: []string{"debugfs", "e2fsck", "gpgv", "ip", "mke2fs", "mmdebstrap", "nft", "patchelf"},
		},
		"unknown": {groups: []Group{"x"}, wantErr: "known are"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := newTestBuilder(t).plan(tc.groups)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got %v, want an error with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := taskNames(p); !slices.Equal(got, tc.wantTasks) {
				t.Errorf("tasks %v, want %v", got, tc.wantTasks)
			}
			if got := toolNames(p); !slices.Equal(got, tc.wantTools) {
				t.Errorf("host tools %v, want %v", got, tc.wantTools)
			}
			if steps := len(p.goLane) + len(p.debianLane) + len(p.guestLane); steps != len(tc.wantTasks) {
				t.Errorf("%d steps, want one for each of %v", steps, tc.wantTasks)
			}
		})
	}
}

// tasks returns the tasks that the plan has.
func tasks(p *plan) []*task {
	return slices.DeleteFunc(slices.AppendSeq([]*task{
		p.envtest, p.envtestOldest, p.envtestNewest, p.kube, p.sidecars, p.helm, p.prometheus, p.upstream, p.nodeRoot, p.nodeTools, p.nodeToolsARM64, p.workload, p.kernel, p.nodeBase, p.kindPrograms,
		p.kindGuest, p.pd, p.ceph, p.database,
	}, maps.Values(p.stock)), func(t *task) bool { return t == nil })
}

// toolNames returns what the plan's user and all its builds call on the host.
func toolNames(p *plan) []string {
	tools := p.tools
	for _, t := range tasks(p) {
		tools = append(tools, t.recipe.tools...)
	}
	var names []string
	for _, t := range tools {
		names = append(names, t.program)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func taskNames(p *plan) []string {
	var names []string
	for _, t := range tasks(p) {
		names = append(names, t.recipe.name)
	}
	if p.driverImages != nil {
		names = append(names, "lab images")
	}
	if p.fullImages != nil {
		names = append(names, "full images")
	}
	if p.arm64Images != nil {
		names = append(names, "arm64 images")
	}
	if p.otherImages != nil {
		names = append(names, "other images")
	}
	slices.Sort(names)
	return names
}

// TestPlanKeys: what an artifact is made of is in its key.
func TestPlanKeys(t *testing.T) {
	b := newTestBuilder(t)
	p, err := b.plan([]Group{Cluster})
	if err != nil {
		t.Fatal(err)
	}
	for _, need := range p.nodeBase.needs {
		if !slices.Contains(p.nodeBase.recipe.inputs, need.recipe.key()) {
			t.Errorf("the key of the node base leaves out %s", need.recipe.name)
		}
	}
	if !slices.Contains(p.kernel.recipe.inputs, p.nodeRoot.recipe.key()) {
		t.Error("the key of the kernel leaves out the node root")
	}
	again, err := b.plan([]Group{Cluster, Images})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.nodeBase.recipe.key(), p.nodeBase.recipe.key(); got != want {
		t.Errorf("key %s, then %s, of the same checkout", want, got)
	}
}

// TestTreeArchitecture: a tree of another architecture is another artifact.
func TestTreeArchitecture(t *testing.T) {
	b := newTestBuilder(t)
	if b.layerRecipe("node-tools", nodeToolsTree("")).key() == b.layerRecipe("node-tools", nodeToolsTree(arm64)).key() {
		t.Error("both architectures have one key")
	}
}

// TestARM64Images: programs and images are of that architecture, and lie elsewhere.
func TestARM64Images(t *testing.T) {
	p, err := newTestBuilder(t).plan([]Group{Images, ImagesARM64})
	if err != nil {
		t.Fatal(err)
	}
	if p.arm64Images.arch != arm64 || p.fullImages.arch != "" || p.arm64Images.dir == p.fullImages.dir || p.arm64Images.nodeTools == p.fullImages.nodeTools {
		t.Errorf("arm64 %+v, amd64 %+v", p.arm64Images, p.fullImages)
	}
	if !p.arm64Images.full || p.arm64Images.tags != "" {
		t.Errorf("tags %q full %v, want no tags and complete archives", p.arm64Images.tags, p.arm64Images.full)
	}
}

func TestFaultPointsOnlyInLabImages(t *testing.T) {
	p, err := newTestBuilder(t).plan([]Group{Cluster, Images})
	if err != nil {
		t.Fatal(err)
	}
	if p.driverImages.tags != faultTag || p.driverImages.full {
		t.Errorf("lab images: tags %q full %v", p.driverImages.tags, p.driverImages.full)
	}
	if p.fullImages.tags != "" || !p.fullImages.full {
		t.Errorf("images: tags %q full %v, want no tags and complete archives", p.fullImages.tags, p.fullImages.full)
	}
	if p.driverImages.dir == p.fullImages.dir {
		t.Error("both kinds of images are written to the same directory")
	}
}

func TestProgramVersions(t *testing.T) {
	for _, p := range slices.Concat(envtestPrograms(), otherEnvtest(EnvtestOldest), otherEnvtest(EnvtestNewest), kubePrograms(), sidecarBuild(), helmPrograms(), prometheusPrograms()) {
		version, err := p.version(checkoutRoot)
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.HasPrefix(version, "v") {
			t.Errorf("%s: version %q", p.name, version)
		}
	}
}

// TestSidecars: the sidecars that are built here are those that the chart takes from a registry,
// and the ones that a lab's values name.
func TestSidecars(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(checkoutRoot, "deploy/helm/nearflash/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	own := labplan.Sidecars()
	if len(own) != len(sidecarPrograms()) {
		t.Errorf("a lab has images of %d sidecars, %d are built", len(own), len(sidecarPrograms()))
	}
	for _, p := range sidecarPrograms() {
		version, err := p.version(checkoutRoot)
		if err != nil {
			t.Fatal(err)
		}
		key, image := strings.TrimPrefix(p.name, "csi-"), p.name+":"+version
		if own[key] != imageRegistry+image {
			t.Errorf("images.%s of a lab is %q, what is built is %q", key, own[key], imageRegistry+image)
		}
		if line := "  " + key + ": registry.k8s.io/sig-storage/" + image + "\n"; !strings.Contains(string(text), line) {
			t.Errorf("the chart's values lack %q", line)
		}
	}
}

// TestOldestIsTheCharts: what is proven to be the oldest Kubernetes is what the chart says.
func TestOldestIsTheCharts(t *testing.T) {
	chart, err := os.ReadFile(filepath.Join(checkoutRoot, "deploy/helm/nearflash/Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	version, err := otherEnvtest(EnvtestOldest)[0].version(checkoutRoot)
	if err != nil {
		t.Fatal(err)
	}
	minor := strings.Join(strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)[:2], ".")
	if want := `kubeVersion: ">=` + minor + `.0-0"`; !strings.Contains(string(chart), want) {
		t.Errorf("the API server of %s is tested, and the chart does not say %s", version, want)
	}
	newest, err := otherEnvtest(EnvtestNewest)[0].version(checkoutRoot)
	if err != nil {
		t.Fatal(err)
	}
	lab, err := envtestPrograms()[0].version(checkoutRoot)
	if err != nil {
		t.Fatal(err)
	}
	if semver.Compare(version, lab) >= 0 || semver.Compare(lab, newest) >= 0 {
		t.Errorf("oldest %s, lab %s, newest %s", version, lab, newest)
	}
}

// TestStockPins: each kernel is named by its packages, and a pin that is changed makes
// another artifact.
func TestStockPins(t *testing.T) {
	b, keys := newTestBuilder(t), map[string]bool{}
	for _, g := range StockKernels() {
		k, ok := stockKernels()[g]
		if !ok || len(k.packages) == 0 {
			t.Fatalf("%s has no packages", g)
		}
		for _, p := range k.packages {
			if !strings.Contains(p.path, k.release) || len(p.sha256) != 64 {
				t.Errorf("%s: package %+v of the kernel %s", g, p, k.release)
			}
		}
		keys[strings.TrimPrefix(b.stockRecipe(g).key(), string(g))] = true
	}
	if len(keys) != len(stockKernels()) || len(keys) != len(StockKernels()) {
		t.Errorf("%d keys of %d kernels", len(keys), len(stockKernels()))
	}
}

// TestStockGone: a package that no mirror has any more is an error that says what to do.
func TestStockGone(t *testing.T) {
	t.Setenv(mirrorEnv, "file:///nonexistent")
	dir := t.TempDir()
	err := unpackStock(t.Context(), []string{"file:///nonexistent/snapshot"}, stockPackage{path: "l/linux/linux-image-1_1_amd64.deb", sha256: "0"}, dir, dir)
	if !errors.Is(err, ErrMirror) || !strings.Contains(err.Error(), "linux-image-1_1_amd64.deb") || !strings.Contains(err.Error(), "renew the pin") {
		t.Errorf("got %v, want ErrMirror with the remedy", err)
	}
}

func TestKubeStamp(t *testing.T) {
	got := kubeStamp("v1.36.3")
	for _, want := range []string{
		"k8s.io/component-base/version.gitVersion=v1.36.3", "k8s.io/component-base/version.gitMajor=1",
		"k8s.io/client-go/pkg/version.gitMinor=36",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
}

func TestPrometheusStamp(t *testing.T) {
	for version, want := range map[string]string{"v0.305.0": "3.5.0", "v0.313.5": "3.13.5"} {
		if got := prometheusStamp(version); len(got) != 1 || !strings.HasSuffix(got[0], "Version="+want) {
			t.Errorf("%s: %q, want %s", version, got, want)
		}
	}
}

func TestSetDir(t *testing.T) {
	set := &Set{
		Bin:        map[string]string{"kube-apiserver": "/c/e/kube-apiserver", "helm": "/c/h/helm", "prometheus": "/c/p/prometheus"},
		Kernel:     "/c/k/linux",
		FullImages: []string{"/o/images/a.tar"}, ARM64Images: []string{"/o/images-arm64/a.tar"},

		EnvtestOldest: "/c/o", EnvtestNewest: "/c/n",
	}
	cases := map[string]struct {
		set     *Set
		group   Group
		want    string
		wantErr bool
	}{
		"envtest":       {set, Envtest, "/c/e", false},
		"oldest":        {set, EnvtestOldest, "/c/o", false},
		"newest":        {set, EnvtestNewest, "/c/n", false},
		"helm":          {set, Helm, "/c/h", false},
		"prometheus":    {set, Prometheus, "/c/p", false},
		"kernel":        {set, Kernel, "/c/k", false},
		"images":        {set, Images, "/o/images", false},
		"arm64 images":  {set, ImagesARM64, "/o/images-arm64", false},
		"cluster":       {set, Cluster, "", true},
		"stock":         {&Set{Stock: map[Group]StockKernel{Debian12: {Vmlinuz: "/c/d/vmlinuz"}}}, Debian12, "/c/d", false},
		"no stock":      {&Set{}, Debian12, "", true},
		"not asked for": {&Set{}, Helm, "", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := tc.set.Dir(tc.group)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("got %q, %v, want %q, error %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestFindCheckout(t *testing.T) {
	root, err := filepath.Abs(checkoutRoot)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := findCheckout(""); err != nil || got != root {
		t.Errorf("got %q, %v, want %q", got, err, root)
	}
	if got, err := findCheckout("/x"); err != nil || got != "/x" {
		t.Errorf("got %q, %v, want what was given", got, err)
	}
	t.Chdir(t.TempDir())
	if got, err := findCheckout(""); err == nil {
		t.Errorf("got %q outside of a checkout, want an error", got)
	}
}

func TestRankMirrors(t *testing.T) {
	cases := map[string]struct {
		lines string
		want  []string
	}{
		"empty": {"", nil},
		"debian before others": {
			"Other http://a/\nOther http://a/\nDebian http://b/\n", []string{"http://b/", "http://a/"},
		},
		"more frequent first": {
			"Debian http://security/\nDebian http://main/\nDebian http://main/\n",
			[]string{"http://main/", "http://security/"},
		},
		"first of equals":      {"Debian http://a/\nDebian http://b/", []string{"http://a/", "http://b/"}},
		"no origin":            {" http://a/\n", []string{"http://a/"}},
		"origin not expanded":  {"$(ORIGIN) http://a/\n", []string{"http://a/"}},
		"no repository at all": {"Debian \n\nnonsense\n", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := rankMirrors(tc.lines); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUnwantedInImage(t *testing.T) {
	cases := map[string]bool{
		"usr/bin/dd": false, "etc/lvm/lvm.conf": false, "tmp": false, "run": false, "etc/passwd": false,
		"etc/apt/sources.list": true, "etc/resolv.conf": true, "etc/machine-id": true, "dev/null": true,
		"usr/lib/python3/x.pyc": true, "etc/iscsi/initiatorname.iscsi": true, "etc/iscsi/iscsid.conf": false,
	}
	for name, want := range cases {
		if got := unwantedInImage(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestTail(t *testing.T) {
	if got := tail("  short \n", 10); got != "short" {
		t.Errorf("got %q", got)
	}
	if got := tail("0123456789", 4); got != "...6789" {
		t.Errorf("got %q", got)
	}
}
