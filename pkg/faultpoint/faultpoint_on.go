//go:build faultpoints

package faultpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Enabled reports whether this build honours fault files.
const Enabled = true

// DirEnv names the directory of fault files. Without it no point does anything.
const DirEnv = "NEARFLASH_FAULT_DIR"

// hit consumes the file <dir>/<name>, if there is one. An empty file kills this
// process with SIGKILL; "sleep 5s" makes it wait instead. The file is removed
// durably first, so that the restarted process passes the point.
func hit(name string) {
	dir := os.Getenv(DirEnv)
	if dir == "" {
		return
	}
	path := filepath.Join(dir, name)
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = consume(dir, path)
	}
	if err != nil {
		// A test that armed a point must not pass because it could not fire.
		panic(fmt.Sprintf("faultpoint %s: %v", name, err))
	}
	if wait, ok := strings.CutPrefix(strings.TrimSpace(string(content)), "sleep "); ok {
		d, err := time.ParseDuration(wait)
		if err != nil {
			panic(fmt.Sprintf("faultpoint %s: %v", name, err))
		}
		time.Sleep(d)
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal ends the process; no step may follow
}

// on reports whether a defect is asked for.
func on(name string) bool {
	dir := os.Getenv(DirEnv)
	if dir == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		panic(fmt.Sprintf("faultpoint %s: %v", name, err))
	}
	return err == nil
}

func consume(dir, path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
