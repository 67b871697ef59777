package kubectl_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

func TestHelp(t *testing.T) {
	for _, verb := range []string{"list", "top", "describe", "migrate", "migrations", "flush", "preload", "mode", "resize", "drop", "invalidate", "abandon", "pools", "doctor", "version", "completion", "adopt", "release"} {
		code, out, errOut := newRig(t).run(verb, "--help")
		if code != 0 || errOut != "" || !strings.Contains(out, "kubectl nearflash "+verb) {
			t.Errorf("%s: exit status %d, errors %q, help %q", verb, code, errOut, out)
		}
	}
}

func TestVersion(t *testing.T) {
	_, out, _ := newRig(t).run("version")
	expect(t, "output", out, "kubectl nearflash v0.0.0-dev (unknown)\n")
	_, out, _ = newRig(t).run("version", "-o", "yaml")
	if want := "version: v0.0.0-dev\n"; !strings.HasSuffix(out, want) {
		t.Errorf("output %q, want the end %q", out, want)
	}
}

func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"describe -n shop ":           "data\nlogs\nlost\nsmall\ntune\n:4\n",
		"list -n shop data l":         "logs\nlost\n:4\n",
		"mode -n shop data ":          "none\nwritethrough\nwriteback\nwriteback-unsafe\n:4\n",
		"mode -n shop data none ":     ":4\n",
		"resize -n shop data ":        ":4\n",
		"migrations -n shop data t":   "tune\n:4\n",
		"mig":                         "migrate\tCopy a volume's cache to the node that its pod is going to, while the pod runs\nmigrations\tList warm moves: caches that follow their pods to other nodes\n:4\n",
		"top --sort-by ":              "hit\niops\ndirty\nused\np99\n:4\n",
		"pools node-a ":               "node-b\n:4\n",
		"migrate -n shop ":            "data\nlogs\nlost\nsmall\ntune\n:4\n",
		"migrate -n shop data ":       ":4\n",
		"migrate data --to ":          "node-a\nnode-b\n:4\n",
		"migrate node-a --to node-":   "node-a\nnode-b\n:4\n",
		"fl":                          "flush\tWrite everything that is dirty to the storage server, while the pod runs\n:4\n",
		"mode x --accept-dirty-loss ": "node-loss\npower-loss\n:4\n",
		"mode x --without-fence ":     "AcceptTwoWriters\n:4\n",
		"adopt x --cache-mode ":       "none\nwritethrough\nwriteback\nwriteback-unsafe\n:4\n",
		"release -n shop l":           "logs\nlost\n:4\n",
	} {
		t.Run(args, func(t *testing.T) {
			words := strings.Split(args, " ")
			_, out, _ := newRig(t, append(fleet(), pool("node-a"), pool("node-b"))...).run(append([]string{"__complete"}, words...)...)
			expect(t, "output", out, want)
		})
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, out, errOut := newRig(t).run("completion", shell)
		if code != 0 || errOut != "" || !strings.Contains(out, "nearflash") {
			t.Errorf("%s: exit status %d, errors %q, %d bytes", shell, code, errOut, len(out))
		}
	}
}

// plugin is what krew reads (kubernetes-sigs/krew, api/v1alpha2).
type plugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Bin    string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

// The manifest is a template of krew-release-bot, which knows the tag and the
// checksums.
func TestKrewManifest(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "krew", "nearflash.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	parsed, err := template.New("").Funcs(template.FuncMap{"addURIAndSha": func(uri, tag string) string {
		return "uri: " + strings.ReplaceAll(uri, "{{ .TagName }}", tag) + "\n    sha256: " + sum
	}}).Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var rendered strings.Builder
	if err := parsed.Execute(&rendered, map[string]string{"TagName": "v1.2.3"}); err != nil {
		t.Fatal(err)
	}
	var p plugin
	if err := yaml.UnmarshalStrict([]byte(rendered.String()), &p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "nearflash" || p.Spec.Version != "v1.2.3" {
		t.Errorf("manifest is %+v", p)
	}
	// krew's own limits (pkg/index/validation).
	if n := len(p.Spec.ShortDescription); n == 0 || n > 50 || p.Spec.Description == "" || p.Spec.Homepage == "" {
		t.Errorf("descriptions: %+v", p.Spec)
	}
	archive := regexp.MustCompile(`^https://github\.com/nearflash/nearflash/releases/download/v1\.2\.3/kubectl-nearflash_v1\.2\.3_([a-z0-9]+)_([a-z0-9]+)\.tar\.gz$`)
	seen := map[string]bool{}
	for _, f := range p.Spec.Platforms {
		labels := f.Selector.MatchLabels
		m := archive.FindStringSubmatch(f.URI)
		bin := "kubectl-nearflash"
		if labels["os"] == "windows" {
			bin += ".exe"
		}
		if m == nil || m[1] != labels["os"] || m[2] != labels["arch"] || f.Bin != bin || f.SHA256 != sum {
			t.Errorf("platform %+v", f)
		}
		seen[labels["os"]+"/"+labels["arch"]] = true
	}
	for _, want := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"} {
		if !seen[want] {
			t.Errorf("no platform %s", want)
		}
	}
}
