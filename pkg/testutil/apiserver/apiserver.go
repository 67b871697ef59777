// Package apiserver runs a real etcd and kube-apiserver with the CRDs of this
// repository, for tests whose subject is the API server's own behaviour:
// preconditions, defaulting, validation, list maps.
package apiserver

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// AssetsVariable names the directory with the binaries etcd and kube-apiserver.
// CI sets it; a test that needs them is skipped when it is unset.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// Start runs a control plane until the end of the test and returns how to reach
// it as administrator. It takes some seconds: call it once per package.
func Start(t *testing.T) *rest.Config {
	t.Helper()
	assets := os.Getenv(AssetsVariable)
	if assets == "" {
		t.Skipf("%s is not set: it must name a directory with etcd and kube-apiserver", AssetsVariable)
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     []string{filepath.Join(root(t), "deploy", "helm", "nearflash", "crds")},
		ErrorIfCRDPathMissing: true,
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop the control plane: %v", err)
		}
	})
	cfg, err := env.Start()
	if err != nil {
		t.Fatalf("start the control plane from %s: %v", assets, err)
	}
	return cfg
}

// root is the directory of go.mod: tests run in the directory of their package.
func root(t *testing.T) string {
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
