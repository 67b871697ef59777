package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// namespace is where the rendered chart is installed.
const namespace = apiserver.ChartNamespace

// scraper is the account of whatever scrapes.
const scraper = "prometheus"

// installAccount makes the controller's account, and one that scrapes, with the
// permissions that the chart gives them, and what the controller writes of the
// scheduling webhook, from the rendering that is kept beside the chart's tests.
func installAccount(t testing.TB, api client.Client) {
	t.Helper()
	apiserver.InstallChart(t, api, "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret", "MutatingWebhookConfiguration")
	meta := metav1.ObjectMeta{Namespace: namespace, Name: scraper}
	if err := api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}); err != nil {
		t.Fatal(err)
	}
	err := api.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: scraper},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "nearflash-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: scraper}},
	})
	if err != nil {
		t.Fatal(err)
	}
}
