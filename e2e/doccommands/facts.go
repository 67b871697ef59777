package doccommands

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/pkg/kube"
)

// facts are what was read from the tree.
type facts struct {
	targets   map[string]bool
	variables map[string]bool
	labels    map[string]bool
	tests     []string
	// resources are the names that kubectl knows the project's own objects by.
	resources map[string]*apiextensionsv1.CustomResourceDefinition
	// metrics maps the name of each series to its labels.
	metrics map[string]map[string]bool
	// values are the chart's keys at the top.
	values map[string]any
	// rendered is a rendering of the chart.
	rendered string
	scheme   *runtime.Scheme
}

const chartDir = "deploy/helm/nearflash"

var (
	targetPattern   = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	variablePattern = regexp.MustCompile(`[$]{1,2}\{?([A-Z_]{3,})|(?:Getenv|LookupEnv)\("([A-Z_]+)"\)|^#   ([A-Z]+) `)
	specPattern     = regexp.MustCompile(`Label\(([^)]*)\)`)
	quotedPattern   = regexp.MustCompile(`"([a-z][a-z0-9-]*)"`)
	testPattern     = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
)

// load reads the facts once.
func (c *Checker) load() error {
	if c.facts.targets != nil {
		return nil
	}
	f := facts{targets: map[string]bool{}, variables: map[string]bool{}, labels: map[string]bool{}, resources: map[string]*apiextensionsv1.CustomResourceDefinition{}}
	makefile, err := c.read("Makefile")
	if err != nil {
		return err
	}
	for _, m := range targetPattern.FindAllStringSubmatch(makefile, -1) {
		f.targets[m[1]] = true
	}
	if err := c.loadSources(&f); err != nil {
		return err
	}
	if err := c.loadDefinitions(&f); err != nil {
		return err
	}
	if err := c.loadMetrics(&f); err != nil {
		return err
	}
	values, err := c.read(chartDir + "/values.yaml")
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal([]byte(values), &f.values); err != nil {
		return fmt.Errorf("values.yaml: %w", err)
	}
	if f.rendered, err = c.read(chartDir + "/tests/snapshots/target.yaml"); err != nil {
		return err
	}
	if f.scheme, err = kube.NewScheme(); err != nil {
		return err
	}
	if err := groupsnapshotv1.AddToScheme(f.scheme); err != nil { // only external-snapshotter uses them
		return err
	}
	c.facts, c.helps = f, map[string]help{}
	return nil
}

// loadSources finds variables of the environment, labels of specs and tests.
func (c *Checker) loadSources(f *facts) error {
	return fs.WalkDir(os.DirFS(c.Root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != "." && (strings.HasPrefix(path, "_") || strings.HasPrefix(path, ".git") || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		isGo := strings.HasSuffix(path, ".go")
		if entry.IsDir() || !isGo && !strings.HasSuffix(path, ".sh") && path != "Makefile" {
			return nil
		}
		text, err := c.read(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			for _, m := range variablePattern.FindAllStringSubmatch(line, -1) {
				f.variables[m[1]+m[2]+m[3]] = true
			}
		}
		for _, m := range testPattern.FindAllStringSubmatch(text, -1) {
			f.tests = append(f.tests, m[1])
		}
		if strings.HasPrefix(path, "e2e/") && isGo {
			for _, m := range specPattern.FindAllStringSubmatch(text, -1) {
				for _, label := range quotedPattern.FindAllStringSubmatch(m[1], -1) {
					f.labels[label[1]] = true
				}
			}
		}
		return nil
	})
}

func (c *Checker) loadDefinitions(f *facts) error {
	paths, err := filepath.Glob(filepath.Join(c.Root, chartDir, "crds", "*.yaml"))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("no CustomResourceDefinitions below %s", chartDir)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		names := crd.Spec.Names
		for _, name := range append([]string{names.Plural, names.Singular}, names.ShortNames...) {
			f.resources[name] = crd
		}
	}
	return nil
}

func (c *Checker) read(path string) (string, error) {
	text, err := os.ReadFile(filepath.Join(c.Root, path))
	return string(text), err
}

func (c *Checker) stat(path string) (os.FileInfo, error) {
	return os.Stat(filepath.Join(c.Root, path))
}
