package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// runScript runs the guest's one command and leaves its exit code in the share.
func (g *guest) runScript(ctx context.Context) error {
	if err := g.setupCommon(ctx); err != nil {
		return err
	}
	if err := g.startISCSI(ctx, "iqn.2026-01.io.nearflash.lab:"+g.cfg.Node); err != nil {
		return err
	}
	share := agentapi.ShareDir
	open := func(name string) (*os.File, error) {
		return os.OpenFile(filepath.Join(share, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	}
	stdout, err := open(agentapi.StdoutFile)
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	defer stdout.Close()
	stderr, err := open(agentapi.StderrFile)
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	defer stderr.Close()
	s := g.cfg.Script
	cmd := exec.CommandContext(ctx, s.Argv[0], s.Argv[1:]...)
	cmd.Env, cmd.Dir = append(environment(), s.Env...), s.Dir
	cmd.Stdout, cmd.Stderr = stdout, stderr
	go beat(ctx, filepath.Join(share, agentapi.BeatFile))
	code, err := exitCode(cmd.Run())
	if err != nil {
		fmt.Fprintln(stderr, "agent:", err)
	}
	tmp := filepath.Join(share, agentapi.ExitFile+".tmp")
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(code)), 0o600); err != nil {
		return fmt.Errorf("exit code: %w", err)
	}
	return os.Rename(tmp, filepath.Join(share, agentapi.ExitFile))
}

// beat shows the host that the guest lives.
func beat(ctx context.Context, file string) {
	for n := 0; ctx.Err() == nil; n++ {
		_ = os.WriteFile(file, []byte(strconv.Itoa(n)), 0o600) // a beat that is missed shows
		time.Sleep(agentapi.BeatInterval)
	}
}

// exitCode turns the result of a run into a shell's exit code. The error is set
// when the command did not run at all; the code is then 127.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		// The latter: it ended well, but something that it left in the background
		// still holds its output open.
		return 0, nil
	case !errors.As(err, &exit):
		return 127, err
	case exit.ExitCode() >= 0:
		return exit.ExitCode(), nil
	}
	// Ended by a signal: what a shell reports.
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return 127, err
}
