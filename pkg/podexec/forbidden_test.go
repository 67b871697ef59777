package podexec_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/pkg/podexec"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// TestForbidden: by what a real API server says, an account without the right is told from one
// that has it and names no pod that is there.
func TestForbidden(t *testing.T) {
	config := apiserver.StartBare(t)
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		verbs   []string
		want    bool
		wantErr string
	}{
		"no right":       {want: true, wantErr: `cannot create resource "pods/exec"`},
		"create":         {verbs: []string{"create"}, wantErr: `"plugin" not found`},
		"create and get": {verbs: []string{"create", "get"}, wantErr: `"plugin" not found`},
		"another right":  {verbs: []string{"list"}, want: true, wantErr: `cannot create resource "pods/exec"`},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := podexec.New(account(t, config, api, "with-"+strings.Join(append(c.verbs, "exec"), "-"), c.verbs))
			if err != nil {
				t.Fatal(err)
			}
			err = e.Run(t.Context(), podexec.Command{Namespace: "default", Pod: "plugin", Args: []string{"true"}, Stdout: io.Discard})
			if err == nil || errors.Is(err, podexec.ErrForbidden) != c.want || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// account is a service account that may do verbs with pods/exec, if any are named.
func account(t *testing.T, config *rest.Config, api kubernetes.Interface, name string, verbs []string) *rest.Config {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "default", Name: name}
	_, err := api.CoreV1().ServiceAccounts(meta.Namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	if err == nil && len(verbs) > 0 {
		_, err = api.RbacV1().Roles(meta.Namespace).Create(t.Context(), &rbacv1.Role{
			ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: verbs}},
		}, metav1.CreateOptions{})
		if err == nil {
			_, err = api.RbacV1().RoleBindings(meta.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: meta.Namespace, Name: name}},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			}, metav1.CreateOptions{})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	answer, err := api.CoreV1().ServiceAccounts(meta.Namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = answer.Status.Token
	return config
}
