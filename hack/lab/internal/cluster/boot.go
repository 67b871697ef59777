package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// Packages of this project that the lab builds for its guests.
const (
	agentPackage  = "./hack/lab/agent"
	targetPackage = "./cmd/nearflash-target"
)

// makeBoot makes the folder that a guest's kernel takes as its first root.
func (l *Lab) makeBoot(ctx context.Context, dir string) error {
	for _, sub := range []string{"dev", agentapi.NewRoot} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return fmt.Errorf("boot folder: %w", err)
		}
	}
	return l.goBuild(ctx, agentPackage, filepath.Join(dir, agentapi.AgentFile))
}

// goBuild builds a static program of this checkout. The file is replaced, not
// overwritten: a guest may be running the old one.
func (l *Lab) goBuild(ctx context.Context, pkg, out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	tmp := out + ".new"
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", tmp, pkg)
	cmd.Dir = l.Checkout
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, msg)
	}
	if err := os.Rename(tmp, out); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	return nil
}

// writeConfig leaves the agent's configuration in a guest's share.
func writeConfig(share string, cfg agentapi.Config) error {
	b, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("configuration of %s: %w", cfg.Node, err)
	}
	if err := os.WriteFile(filepath.Join(share, agentapi.ConfigFile), b, 0o600); err != nil {
		return fmt.Errorf("configuration of %s: %w", cfg.Node, err)
	}
	return nil
}
