package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearflash/nearflash/hack/lab/internal/pki"
	"github.com/nearflash/nearflash/pkg/target"
)

// The storage server refuses unknown keys, so its own reader is the judge.
func TestTargetConfiguration(t *testing.T) {
	b, err := json.Marshal(TargetConfiguration("10.88.0.20", "storage", "storage"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := target.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Listen != "10.88.0.20:9443" || !slices.Equal(cfg.TLS.AllowedClientNames, []string{pki.TargetClientName}) {
		t.Errorf("got %+v", cfg)
	}
}
