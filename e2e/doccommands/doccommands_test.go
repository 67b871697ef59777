package doccommands

import (
	"cmp"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

const root = "../.."

// newChecker builds the lab's program and finds the others where `make test-unit`
// says that they are. Nothing is skipped without them.
func newChecker(t *testing.T) *Checker {
	t.Helper()
	c := &Checker{
		Root: root, Helm: cmp.Or(os.Getenv("HELM"), "helm"), Kubectl: filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"),
		Lab: filepath.Join(t.TempDir(), "lab"), Promtool: cmp.Or(os.Getenv("PROMTOOL"), "promtool"),
	}
	for _, program := range []string{c.Helm, c.Kubectl, c.Promtool} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: set HELM, KUBEBUILDER_ASSETS and PROMTOOL, as `make test-unit` does", err)
		}
	}
	build := exec.Command("go", "build", "-o", c.Lab, "./hack/lab")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return c
}

// TestDocuments checks every document of the project.
func TestDocuments(t *testing.T) {
	c := newChecker(t)
	n, code := 0, 0
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (path == ".git" || path == "_output" || path == "bin") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := c.read(path)
		if err != nil {
			return err
		}
		problems, err := c.Document(t.Context(), path, text)
		if err != nil {
			return err
		}
		for _, p := range problems {
			t.Error(p)
		}
		n++
		code += len(blocks(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// A check that finds nothing to check would pass for ever.
	if n < 30 || code < 500 {
		t.Errorf("only %d documents with %d pieces of code were found", n, code)
	}
}

// TestFigures wants the figures of the README to be those of the benchmarks, and all of
// the table.
func TestFigures(t *testing.T) {
	table := func(path, heading string) []string {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
		if !found {
			t.Fatalf("%s has no section %q", path, heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		var rows []string
		for line := range strings.Lines(section) {
			if strings.HasPrefix(line, "|") {
				rows = append(rows, line)
			}
		}
		return rows
	}
	want, got := table("docs/benchmarks.md", "The main job"), table("README.md", "Measured")
	if len(want) < 5 || !slices.Equal(want, got) {
		t.Errorf("the README has %q, the benchmarks have %q", got, want)
	}
}

// TestWrongDocuments gives each kind of mistake once, and wants it named.
func TestWrongDocuments(t *testing.T) {
	c := newChecker(t)
	tests := map[string]struct{ text, want string }{
		"plugin command":         {"    kubectl nearflash flushh -n shop data\n", `x.md:1: kubectl nearflash has no command "flushh"`},
		"plugin flag":            {"Text.\n\n    kubectl nearflash flush -n shop data --now\n", "x.md:3: kubectl nearflash flush: unknown flag: --now"},
		"plugin arguments":       {"    kubectl nearflash resize -n shop data\n", "resize takes 2 argument(s), got 1"},
		"plugin in the text":     {"Say `kubectl nearflash mode -n shop data writethrough --soon`.\n", "x.md:1: kubectl nearflash mode: unknown flag: --soon"},
		"behind a prompt":        {"    $ kubectl nearflash drip -n shop data\n    data: done\n", `has no command "drip"`},
		"on a second line":       {"```sh\nkubectl nearflash doctor &&\n  kubectl nearflash docter\n```\n", `has no command "docter"`},
		"in a fence of a list":   {"1. Do:\n\n   ```sh\n   make demmo\n   ```\n", `the Makefile has no target "demmo"`},
		"target":                 {"Run `make tests`.\n", `the Makefile has no target "tests"`},
		"variable":               {"    LABEL=warm make test-cluster\n", "nothing reads the variable LABEL"},
		"label":                  {"    LABELS=wram make test-cluster\n", `no spec of the e2e suite has the label "wram"`},
		"test":                   {"    RUN='^TestKernelNothing$' hack/kernel-ring.sh\n", "no test matches"},
		"script":                 {"    hack/kernel-rings.sh\n", "hack/kernel-rings.sh: no such file"},
		"package":                {"    go build -o x ./cmd/nearflash\n", "no package ./cmd/nearflash"},
		"lab command":            {"    go run ./hack/lab upp\n", `the lab has no command "upp"`},
		"lab flag":               {"    go run ./hack/lab up --quick\n", "lab up has no flag --quick"},
		"inside the lab":         {"    go run ./hack/lab run -- kubectl nearflash lst\n", `has no command "lst"`},
		"kubectl command":        {"    kubectl fetch pods\n", `kubectl has no command "fetch"`},
		"kubectl flag":           {"    kubectl get pods --everywhere\n", "kubectl get has no flag --everywhere"},
		"kubectl subcommand":     {"    kubectl create secrett generic x\n", `kubectl has no command "create secrett"`},
		"resource":               {"    kubectl get cvols\n", `kubectl knows no resource "cvols"`},
		"field of a resource":    {"    kubectl get cvol x -o jsonpath='{.status.owner}'\n", "cachedvolumes have no field .status.owner"},
		"field of a list":        {"    kubectl get cvol -o jsonpath='{.items[0].status.retainedCache}'\n", "cachedvolumes have no field .status.retainedCache"},
		"field selector":         {"    kubectl get cachemigrations --field-selector spec.volumeName=x\n", "cannot be selected by spec.volumeName"},
		"patch":                  {"    kubectl patch cvol x --type=merge -p '{\"spec\":{\"cachedMode\":\"none\"}}'\n", "cachedMode"},
		"container":              {"    kubectl logs x -c nearflash-plugin\n", `the chart has no container "nearflash-plugin"`},
		"helm command":           {"    helm instal x deploy/helm/nearflash\n", `helm has no command "instal"`},
		"helm flag":              {"    helm install x deploy/helm/nearflash --now\n", "helm install has no flag --now"},
		"helm get flag":          {"    helm get values x --now\n", "helm get values has no flag --now"},
		"helm value":             {"    helm upgrade nearflash deploy/helm/nearflash --reuse-values --set node.pool.device=/dev/sdb\n", "additional properties 'device' not allowed"},
		"chart":                  {"    helm install x deploy/helm/nearflsh\n", "there is no chart in deploy/helm/nearflsh"},
		"values":                 {"```yaml\nnode:\n  disks: []\n```\n", "additional properties 'disks' not allowed"},
		"values without a fence": {"    volumeAttributesClasses:\n      - name: x\n        parameters:\n          fsType: xfs\n", "additional properties 'fsType' not allowed"},
		"class":                  {"    apiVersion: storage.k8s.io/v1\n    kind: StorageClass\n    metadata: {name: x}\n    provisioner: csi.nearflash.io\n    parameters: {cacheMod: none}\n", `unknown parameter "cacheMod"`},
		"attributes":             {"    apiVersion: storage.k8s.io/v1\n    kind: VolumeAttributesClass\n    metadata: {name: x}\n    driverName: csi.nearflash.io\n    parameters: {fsType: xfs}\n", `unknown mutable parameter "fsType"`},
		"snapshot class":         {"    apiVersion: snapshot.storage.k8s.io/v1\n    kind: VolumeSnapshotClass\n    metadata: {name: x}\n    driver: csi.nearflash.io\n    deletionPolicy: Delete\n    parameters: {type: full}\n", `unknown parameter "type"`},
		"static volume":          {"    apiVersion: v1\n    kind: PersistentVolume\n    spec:\n      csi:\n        driver: csi.nearflash.io\n        volumeHandle: x\n        volumeAttributes: {portals: a, iqn: b, lun: \"0\"}\n", "the driver refuses this"},
		"unknown field":          {"    apiVersion: v1\n    kind: Pod\n    spec: {container: []}\n", "container"},
		"piped into kubectl":     {"    kubectl apply -f - <<'EOF'\n    apiVersion: v1\n    kind: Pod\n    spec:\n\n      volume: []\n    EOF\n", "volume"},
		"flag of a program":      {"    nearflash-node rescue --disk /dev/sdb\n", "flag provided but not defined: -disk"},
		"key of the target":      {"```yaml\nstateDir: /x\nmetrics:\n  listn: 127.0.0.1:9811\n```\n", "nearflash-target refuses this"},
		"metrics of the target":  {"```yaml\nstateDir: /x\nmetrics:\n  listen: localhost:9811\n```\n", "metrics.listen"},
		"flag of the target":     {"    nearflash-target --config x --check\n", "flag provided but not defined: -check"},
		"metric":                 {"```promql\nrate(nearflash_volume_reads_total[5m])\n```\n", "there is no metric nearflash_volume_reads_total"},
		"label of a metric":      {"```promql\nnearflash_pool_free_bytes{pvc=\"x\"}\n```\n", "nearflash_pool_free_bytes has no label pvc"},
		"label of a sum":         {"```promql\nsum by (pvc) (nearflash_pool_free_bytes)\n```\n", "no metric of the query has the label pvc"},
		"query":                  {"```promql\nsum by (node) (nearflash_pool_free_bytes\n```\n", "promtool refuses this"},
		"unknown program":        {"```sh\nkubctl get pods\n```\n", `program "kubctl" is not known`},
		"no shell":               {"```sh\necho 'x\n```\n", "the shell does not understand this"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			problems, err := c.Document(t.Context(), "x.md", tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if len(problems) != 1 || !strings.Contains(problems[0], tc.want) {
				t.Errorf("found %q, want one problem with %q", problems, tc.want)
			}
		})
	}
}

// TestRightDocuments has what must be let pass.
func TestRightDocuments(t *testing.T) {
	c := newChecker(t)
	for name, text := range map[string]string{
		"output after a command": "    kubectl nearflash list -A\n\n    NAMESPACE   CLAIM\n    kubectl-looking words\n",
		"a picture":              "    nf-<volume>     cache\n     |\n",
		"a name of a command":    "The command `kubectl nearflash migrate` copies.\n",
		"an abbreviation":        "`kubectl nearflash ...` and `make`.\n",
		"usage":                  "    kubectl nearflash mode PVC none|writethrough|writeback [flags]\n",
		"a value behind a flag":  "    kubectl get pods -n shop -owide --watch -l app=x\n",
		"text of a list":         "- one\n  - two:\n    make believe\n",
		"YAML of somebody else":  "    - job_name: nearflash\n      scheme: https\n",
	} {
		t.Run(name, func(t *testing.T) {
			problems, err := c.Document(t.Context(), "x.md", text)
			if err != nil {
				t.Fatal(err)
			}
			if len(problems) > 0 {
				t.Errorf("found %q, want nothing", problems)
			}
		})
	}
}

func TestScripts(t *testing.T) {
	got, err := Scripts(strings.Join([]string{
		"Say `kubectl get cvol` and", "", "    $ kubectl get cvol   # all", "    NAME   MODE", "    $ kubectl get cpool", "",
		"or", "", "    kubectl nearflash list [flags]", "", "    cacheMode: none", "", "```sh", "kubectl apply -f - <<'EOF'", "kind: Pod", "EOF", "echo a | grep a", "```",
	}, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Script{
		{Line: 3, Commands: []string{"kubectl get cvol", "kubectl get cpool"}},
		{Line: 14, Commands: []string{"kubectl apply -f - <<'EOF'\nkind: Pod\nEOF", "echo a | grep a"}},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("scripts (-want +got):\n%s", diff)
	}
}
