package charttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nearflash/nearflash/api/v1alpha1"
)

// cluster is an API server with the chart installed, and nothing behind it.
type cluster struct {
	config     *rest.Config
	admin      client.Client
	clientset  *kubernetes.Clientset
	kubeconfig string
	scheme     *runtime.Scheme
}

// patience is for what a busy machine does late: within 20 s, which envtest allows by
// default, an API server does not always start there.
const patience = 2 * time.Minute

// startCluster starts etcd and kube-apiserver for the length of the test.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: name a folder with etcd and kube-apiserver, as `make test-unit` does")
	}
	env := &envtest.Environment{ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop the API server: %v", err)
		}
	})
	config.QPS, config.Burst = 500, 500
	c := &cluster{config: config, scheme: runtime.NewScheme(), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme, snapshotv1.AddToScheme} {
		if err := add(c.scheme); err != nil {
			t.Fatal(err)
		}
	}
	if c.admin, err = client.New(config, client.Options{Scheme: c.scheme}); err != nil {
		t.Fatal(err)
	}
	if c.clientset, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	user, err := env.AddUser(envtest.User{Name: "helm", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// helm runs helm against the cluster in the release's namespace.
func (c *cluster) helm(ctx context.Context, args ...string) error {
	_, err := helm(ctx, append(args, "--namespace", namespace, "--kubeconfig", c.kubeconfig)...)
	return err
}

// podToken makes a pod of a service account on a node and returns the token that
// kubelet would give to it.
func (c *cluster) podToken(t *testing.T, account, node string) string {
	t.Helper()
	ctx := t.Context()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "pod-"},
		Spec: corev1.PodSpec{
			NodeName:           node,
			ServiceAccountName: account,
			Containers:         []corev1.Container{{Name: "c", Image: "nearflash.local/none:none"}},
		},
	}
	if err := c.admin.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	return c.token(t, account, &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID})
}

// token asks for a service account token, bound to an object or to none.
func (c *cluster) token(t *testing.T, account string, bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	answer, err := c.clientset.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

// as returns a client that authenticates with a token.
func (c *cluster) as(t *testing.T, token string) client.Client {
	t.Helper()
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token
	user, err := client.New(config, client.Options{Scheme: c.scheme})
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// eventually repeats a check: admission policies become active a moment after they are
// stored.
func eventually(ctx context.Context, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w: last: %w", what, err, last)
	}
	return nil
}
