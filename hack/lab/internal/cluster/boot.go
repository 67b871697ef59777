package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nearflash/nearflash/hack/lab/artifact"
	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// Packages of this checkout that the lab builds for its guests.
const (
	agentPackage  = "hack/lab/agent"
	targetPackage = "cmd/nearflash-target"
)

// makeBoot makes the folder that a guest's kernel takes as its first root.
func (l *Lab) makeBoot(ctx context.Context, dir string) error {
	for _, sub := range []string{"dev", agentapi.NewRoot} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return fmt.Errorf("boot folder: %w", err)
		}
	}
	_, err := l.install(ctx, agentPackage, filepath.Join(dir, agentapi.AgentFile))
	return err
}

// install builds a static program of this checkout, with fault points, into a
// file, and tells whether it is another one than before. The build's own result
// stays in the checkout, so that the go command links nothing again that has not
// changed.
func (l *Lab) install(ctx context.Context, pkg, file string) (changed bool, err error) {
	dir := filepath.Join(l.Checkout, "_output", "lab-bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("build %s: %w", pkg, err)
	}
	unlock, err := flock(filepath.Join(dir, ".lock"), os.O_CREATE, 0)
	if err != nil {
		return false, fmt.Errorf("build %s: %w", pkg, err)
	}
	defer unlock()
	out := filepath.Join(dir, filepath.Base(pkg))
	// As the artifacts, so that what these share with it is not compiled again; in its own
	// folder, because of the module that it belongs to.
	cmd := artifact.GoCommand(ctx, filepath.Join(l.Checkout, pkg), "build", "-trimpath", "-tags=faultpoints", "-ldflags=-s -w", "-o", out)
	if msg, err := cmd.CombinedOutput(); err != nil {
		return false, fmt.Errorf("build %s: %w: %s", pkg, err, msg)
	}
	sum, err := fileDigest(out)
	if err != nil {
		return false, err
	}
	// Absent, or unreadable: it is replaced.
	if old, err := fileDigest(file); err == nil && old == sum {
		return false, nil
	}
	return true, replaceFile(out, file)
}

// replaceFile copies a program to a place where the old one may be running.
func replaceFile(src, dst string) (err error) {
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return fmt.Errorf("copy %s: %w", filepath.Base(src), err)
	}
	in, err := os.Open(src)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer in.Close()
	tmp := dst + ".new"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copy %s: %w", filepath.Base(src), err)
	}
	if err := os.Rename(tmp, dst); err != nil {
		return fmt.Errorf("copy %s: %w", filepath.Base(src), err)
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
