package kube

import (
	"os"
	"path/filepath"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// TestConfig: requests to the API server are not held back by client-go's defaults.
func TestConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	const text = `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://192.0.2.1"}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	config, err := Config()
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://192.0.2.1" || config.QPS != QPS || config.Burst != Burst {
		t.Errorf("%s with %v requests a second and %d at once, want %v and %v", config.Host, config.QPS, config.Burst, QPS, Burst)
	}
}

// TestNewMapper: each kind of nearflash is found where its definition says that it is.
func TestNewMapper(t *testing.T) {
	dir := filepath.Join("..", "..", "deploy", "helm", "nearflash", "crds")
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d definitions in %s, %v", len(files), dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		found, err := NewMapper().RESTMapping(schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}, v1alpha1.GroupVersion.Version)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if found.Resource.Resource != crd.Spec.Names.Plural || found.Scope != meta.RESTScopeRoot || crd.Spec.Scope != apiextensionsv1.ClusterScoped {
			t.Errorf("%s: %s, %s, want %s, %s", file, found.Resource.Resource, found.Scope.Name(), crd.Spec.Names.Plural, crd.Spec.Scope)
		}
	}
}
