// Package apiserver runs a real etcd and kube-apiserver with the CRDs of this
// repository, for tests whose subject is the API server's own behaviour:
// preconditions, defaulting, validation, list maps.
package apiserver

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nearflash/nearflash/pkg/kube"
)

// AssetsVariable names the directory with the binaries etcd and kube-apiserver.
const AssetsVariable = "KUBEBUILDER_ASSETS"

const (
	// patience is long because several packages may start one at the same time
	// on a small machine.
	patience = 2 * time.Minute
	// qps keeps the client's own limiter out of the tests' way.
	qps = 1000
	// collection is GOGC of etcd and kube-apiserver: most of what they make lives for one
	// request. It costs a server some 200 MiB of memory.
	collection = "400"
	// token is the administrator's. A certificate's signature would be verified with every request.
	token = "token-of-the-tests"
)

// clients are those of Client.
var clients sync.Map // of *rest.Config

// Start runs a control plane until the end of the test and returns how to reach
// it as administrator. It takes some seconds: call it once per package. A test
// without the binaries fails: skipped, it would prove nothing.
func Start(t testing.TB) *rest.Config {
	t.Helper()
	return start(t, false, crds(t))
}

// StartAsIs is Start for measurements: the API server has its own defaults, priority and fairness
// and collections of garbage among them. It returns the processes too.
func StartAsIs(t testing.TB) (*rest.Config, *Processes) {
	t.Helper()
	cfg := start(t, true, crds(t))
	return cfg, children(t)
}

func crds(t testing.TB) string {
	return filepath.Join(root(t), "deploy", "helm", "nearflash", "crds")
}

// StartBare is Start without the CRDs.
func StartBare(t testing.TB) *rest.Config {
	t.Helper()
	return start(t, false)
}

// start runs a control plane; asIs leaves the API server its own defaults.
func start(t testing.TB, asIs bool, crds ...string) *rest.Config {
	t.Helper()
	assets := os.Getenv(AssetsVariable)
	if assets == "" {
		t.Fatalf("%s is not set: name a directory with etcd and kube-apiserver, as `make test-unit` does", AssetsVariable)
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory:    assets,
		CRDDirectoryPaths:        crds,
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: patience,
		ControlPlaneStopTimeout:  patience,
	}
	users := filepath.Join(t.TempDir(), "users.csv")
	if err := os.WriteFile(users, []byte(token+",tests,tests,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := env.ControlPlane.GetAPIServer().Configure().Set("token-auth-file", users)
	restore := func() {}
	if !asIs {
		args.Set("enable-priority-and-fairness", "false") // no test is about it
		restore = setenv(t, "GOGC", collection)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop the control plane: %v", err)
		}
	})
	cfg, err := env.Start()
	restore()
	if err != nil {
		t.Fatalf("start the control plane from %s: %v", assets, err)
	}
	cfg.CertData, cfg.KeyData, cfg.BearerToken = nil, nil, token
	cfg.QPS, cfg.Burst = qps, qps
	return cfg
}

// setenv sets what child processes find until restore is called; the test's other children do
// not get it.
func setenv(t testing.TB, name, value string) (restore func()) {
	t.Helper()
	old, was := os.LookupEnv(name)
	if err := os.Setenv(name, value); err != nil {
		t.Fatal(err)
	}
	return func() {
		if was {
			_ = os.Setenv(name, old) // it was accepted before
			return
		}
		_ = os.Unsetenv(name)
	}
}

// Client returns a client that reads from the API server itself and knows the
// types of Kubernetes and of nearflash. For one configuration it is always the same client: each
// new one would ask the API server for all that it serves.
func Client(t testing.TB, cfg *rest.Config) client.WithWatch {
	t.Helper()
	if c, ok := clients.Load(cfg); ok {
		return c.(client.WithWatch)
	}
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	clients.Store(cfg, c)
	return c
}

// root is the directory of go.mod: tests run in the directory of their package.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the package's directory")
		}
		dir = parent
	}
}
