package main

import (
	"bytes"
	"cmp"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"golang.org/x/mod/semver"
)

const root = "../.."

func TestVersionOf(t *testing.T) {
	tests := map[string]struct{ described, commit, after, want, wantErr string }{
		"tag":                       {described: "v0.2.0-0-gabc123", after: "v0.2.0", want: "v0.2.0"},
		"changed after the tag":     {described: "v0.2.0-0-gabc123-dirty", after: "v0.2.0", want: "v0.2.1-dev.0.gabc123.dirty"},
		"commits after the tag":     {described: "v0.2.9-12-gabc123", after: "v0.2.9", want: "v0.2.10-dev.12.gabc123"},
		"pre-release":               {described: "v0.3.0-rc.1-0-gabc123", after: "v0.3.0-rc.1", want: "v0.3.0-rc.1"},
		"commits after pre-release": {described: "v0.3.0-rc.1-4-gabc123", after: "v0.3.0-rc.1", want: "v0.3.0-rc.1.dev.4.gabc123"},
		"no tag":                    {commit: "0123456789ab", want: "v0.0.0-dev.0123456789ab"},
		"no git":                    {want: "v0.0.0-dev"},
		"another tag":               {described: "v2-0-gabc123", wantErr: "want a tag"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := versionOf(tc.described, tc.commit)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got %q, %v, want an error with %q", got, err, tc.wantErr)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Fatalf("got %q, %v, want %q", got, err, tc.want)
			}
			if !validVersion(got) {
				t.Errorf("%q is no version", got)
			}
			if semver.Compare(got, tc.after) < 0 {
				t.Errorf("%s sorts before %s, which it follows", got, tc.after)
			}
		})
	}
	for _, bad := range []string{"0.2.0", "v0.2", "v0.2.0+build", "latest", ""} {
		if validVersion(bad) {
			t.Errorf("%q passes", bad)
		}
	}
}

// TestPluginArchives wants the names that deploy/krew/nearflash.yaml downloads.
func TestPluginArchives(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "deploy/krew/nearflash.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`/(kubectl-nearflash_[^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		want = append(want, strings.ReplaceAll(m[1], "{{ .TagName }}", "v1.2.3"))
	}
	var got []string
	for _, p := range releasePrograms()[0].platforms {
		got = append(got, archiveName("kubectl-nearflash", "v1.2.3", p)+".tar.gz")
	}
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the release makes %q, krew downloads %q", got, want)
	}
}

// TestNodePlatforms: what runs on nodes and storage servers is released for the same
// platforms as the images, which main.go asks for.
func TestNodePlatforms(t *testing.T) {
	want := []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	if got := nodePlatforms(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, p := range releasePrograms() {
		for _, on := range want {
			if !slices.Contains(p.platforms, on) {
				t.Errorf("%s is not released for %s/%s", p.name, on.os, on.arch)
			}
		}
	}
}

func TestWriteArchive(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var archives [2][]byte
	for i := range archives {
		path := filepath.Join(dir, "archive")
		if err := writeArchive(path, time.Unix(1000, 0), []packed{{name: "program", path: source, mode: 0o755}}); err != nil {
			t.Fatal(err)
		}
		var err error
		if archives[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		// Neither the time of the file nor its mode may show.
		if err := os.Chtimes(source, time.Unix(5, 0), time.Unix(5, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same content gives two archives")
	}
	out, err := exec.Command("tar", "-tvzf", filepath.Join(dir, "archive")).Output()
	if err != nil || !regexp.MustCompile(`^-rwxr-xr-x .* program\n$`).Match(out) {
		t.Errorf("tar reads %q, %v", out, err)
	}
}

// TestPush: the chart goes into a registry of images, and comes out as it was.
func TestPush(t *testing.T) {
	helm := cmp.Or(os.Getenv("HELM"), "helm")
	r := release{root: root, out: t.TempDir(), version: "v1.2.3"}
	if err := r.chart(t.Context(), helm); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	repository := "oci://" + strings.TrimPrefix(server.URL, "http://") + "/charts"
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), helm, args...)
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("helm %s: %v: %s", args[0], err, stderr.String())
		}
		return string(out)
	}
	archive := filepath.Join(r.out, "nearflash-1.2.3.tgz")
	run("push", archive, repository, "--plain-http")
	pulled := run("template", "nearflash", repository+"/nearflash", "--version", "1.2.3", "--plain-http", "--kube-version", "1.36.0")
	packed := run("template", "nearflash", archive, "--kube-version", "1.36.0")
	// Before it helm says where it has the chart from.
	if packed == "" || !strings.HasSuffix(pulled, packed) {
		t.Errorf("the chart from the registry renders differently: %.300s", pulled)
	}
}

// TestChart packs the real chart and wants its images to have the release's tag.
func TestChart(t *testing.T) {
	helm := cmp.Or(os.Getenv("HELM"), "helm")
	r := release{root: root, out: t.TempDir(), version: "v1.2.3-rc.1"}
	if err := r.chart(t.Context(), helm); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(r.out, "nearflash-1.2.3-rc.1.tgz")
	out, err := exec.Command(helm, "template", "nearflash", archive, "--kube-version", "1.36.0").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"nearflash-node:v1.2.3-rc.1\n", "nearflash-controller:v1.2.3-rc.1\n", "app.kubernetes.io/version: \"v1.2.3-rc.1\"", "helm.sh/chart: nearflash-1.2.3-rc.1\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the packed chart renders no %q", want)
		}
	}
	if strings.Contains(string(out), ":dev") {
		t.Error("the packed chart names images of a development build")
	}
	files, err := exec.Command("tar", "-tzf", archive).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nearflash/README.md", "nearflash/values.schema.json", "nearflash/crds/nearflash.io_cachedvolumes.yaml"} {
		if !strings.Contains(string(files), want+"\n") {
			t.Errorf("the packed chart lacks %s", want)
		}
	}
	if strings.Contains(string(files), "nearflash/tests/") {
		t.Error("the packed chart has the tests of the chart")
	}
}
