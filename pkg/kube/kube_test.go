package kube

import (
	"os"
	"path/filepath"
	"testing"
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
