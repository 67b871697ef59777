package charttest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestImages: what is not this project's comes from the registry that everybody uses, with a
// tag that stays.
func TestImages(t *testing.T) {
	values := append(valuesArgs("origins"), "--set", "snapshots.enabled=true")
	seen := map[string]bool{}
	for _, pod := range podsIn(t, mustTemplate(t, values...)) {
		for _, c := range pod.spec.Containers {
			seen[c.Name] = true
			own := "nearflash.local/" + c.Name + ":dev"
			if c.Name == "check" {
				own = "nearflash.local/nearflash-controller:dev"
			}
			upstream, tagged := strings.CutPrefix(c.Image, "registry.k8s.io/sig-storage/"+c.Name+":v")
			if c.Image != own && (!tagged || strings.Count(upstream, ".") != 2) {
				t.Errorf("container %s has image %s", c.Name, c.Image)
			}
		}
	}
	if len(seen) != 7 {
		t.Errorf("containers %v, want node, controller, check and four sidecars", seen)
	}
}

// TestCatalogue: what catalogues of charts show is of the form that they want, and names what
// is in the chart.
func TestCatalogue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var chart struct {
		Home        string
		Sources     []string
		Annotations map[string]string
	}
	if err := yaml.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	if chart.Home == "" || len(chart.Sources) == 0 {
		t.Error("Chart.yaml says neither where the project is nor where its source is")
	}
	var crds []struct{ Kind, Version, Name, DisplayName, Description string }
	if err := yaml.UnmarshalStrict([]byte(chart.Annotations["artifacthub.io/crds"]), &crds); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, crd := range crds {
		said = append(said, crd.Name+" "+crd.Kind+" "+crd.Version)
		if crd.DisplayName == "" || crd.Description == "" {
			t.Errorf("%s has no name or description for people", crd.Name)
		}
	}
	slices.Sort(said)
	if there := definitions(t); !slices.Equal(said, there) {
		t.Errorf("Chart.yaml names %v, the chart has %v", said, there)
	}
	var links []struct{ Name, URL string }
	if err := yaml.UnmarshalStrict([]byte(chart.Annotations["artifacthub.io/links"]), &links); err != nil || len(links) == 0 {
		t.Errorf("links %v, %v", links, err)
	}
	for _, link := range links {
		path, ours := strings.CutPrefix(link.URL, chart.Home+"/")
		for _, prefix := range []string{"blob/main/", "tree/main/"} {
			path = strings.TrimPrefix(path, prefix)
		}
		if _, err := os.Stat(filepath.Join("..", "..", "..", "..", filepath.FromSlash(path))); !ours || err != nil {
			t.Errorf("link %s leads to %s: %v", link.Name, link.URL, err)
		}
	}
}

func definitions(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(chartDir, "crds", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			out = append(out, crd.Name+" "+crd.Spec.Names.Kind+" "+v.Name)
		}
	}
	slices.Sort(out)
	return out
}

// TestPackage: the packed chart renders as the folder does.
func TestPackage(t *testing.T) {
	dir := t.TempDir()
	if _, err := helm(t.Context(), "package", chartDir, "--destination", dir); err != nil {
		t.Fatal(err)
	}
	archives, err := filepath.Glob(filepath.Join(dir, "nearflash-*.tgz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("packed %v, %v", archives, err)
	}
	render := func(chart string) []byte {
		out, err := helm(t.Context(), append([]string{"template", release, chart, "--namespace", namespace, "--kube-version", "1.36.0", "--include-crds"}, valuesArgs("monitoring")...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if !bytes.Equal(render(chartDir), render(archives[0])) {
		t.Error("the packed chart renders differently")
	}
}
