package controller

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespace is where the rendered chart is installed.
const namespace = "nearflash-system"

// scraper is the account of whatever scrapes.
const scraper = "prometheus"

// installAccount makes the controller's account, and one that scrapes, with the
// permissions that the chart gives them, and what the controller writes of the
// scheduling webhook, from the rendering that is kept beside the chart's tests.
func installAccount(t testing.TB, api client.Client) {
	t.Helper()
	if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join("..", "..", "..", "deploy", "helm", "nearflash", "tests", "snapshots", "target.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	kinds := []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret", "MutatingWebhookConfiguration"}
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	n := 0
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
		n++
	}
	if n < len(kinds) {
		t.Fatalf("the rendered chart has only %d objects of these kinds", n)
	}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: scraper}
	if err := api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}); err != nil {
		t.Fatal(err)
	}
	err = api.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: scraper},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "nearflash-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: scraper}},
	})
	if err != nil {
		t.Fatal(err)
	}
}
