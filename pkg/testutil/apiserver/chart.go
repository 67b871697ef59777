package apiserver

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ChartNamespace is where the rendered chart is installed.
const ChartNamespace = "nearflash-system"

// InstallChart makes the chart's namespace, and its objects of some kinds, from the rendering
// that is kept beside the chart's tests. Each kind must have one.
func InstallChart(t testing.TB, api client.Client, kinds ...string) {
	t.Helper()
	if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ChartNamespace}}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(root(t), "deploy", "helm", "nearflash", "tests", "snapshots", "target.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	var found []string
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(kinds, object.GetKind()) {
			continue
		}
		if err := api.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		found = append(found, object.GetKind())
	}
	for _, kind := range kinds {
		if !slices.Contains(found, kind) {
			t.Fatalf("the rendered chart has no %s", kind)
		}
	}
}
