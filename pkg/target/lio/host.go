package lio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// Host is a machine whose kernel is to export devices; the zero value of Root is
// the real one.
type Host struct {
	Root string
	Run  hostexec.Runner
	// Mount mounts configfs at a path.
	Mount func(path string) error
}

// NewHost returns the machine the process runs on.
func NewHost(run hostexec.Runner) Host {
	return Host{Run: run, Mount: func(path string) error {
		return syscall.Mount("none", path, "configfs", 0, "")
	}}
}

// Prepare makes sure that the kernel's target and its iSCSI fabric can be used
// through [DefaultRoot]. It loads modules and mounts configfs if it can. The error
// joins everything that is missing, each with the remedy.
func (h Host) Prepare(ctx context.Context) error {
	return errors.Join(h.configfs(ctx), h.modules(ctx))
}

func (h Host) path(p string) string {
	return filepath.Join(h.Root, p)
}

func (h Host) configfs(ctx context.Context) error {
	if h.mounted() {
		return nil
	}
	// The module may be built in: then modprobe fails and the mount works.
	_, modErr := h.Run.Run(ctx, hostexec.Change("module configfs", "modprobe", "configfs"))
	if h.mounted() { // systemd mounts it when the module appears
		return nil
	}
	if err := h.Mount(h.path("/sys/kernel/config")); err != nil {
		return fmt.Errorf("configfs is not mounted and cannot be: %w; remedy: run as root with a kernel that has CONFIGFS_FS, or `mount -t configfs none /sys/kernel/config`",
			errors.Join(err, modErr))
	}
	return nil
}

func (h Host) mounted() bool {
	b, err := os.ReadFile(h.path("/proc/self/mounts"))
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "configfs" && f[1] == "/sys/kernel/config" {
			return true
		}
	}
	return false
}

// modules checks by what the modules make, since they may be built in.
func (h Host) modules(ctx context.Context) error {
	var errs []error
	for _, m := range []struct{ name, made, option string }{
		{"target_core_mod", "/sys/kernel/config/target/core", "TARGET_CORE"},
		{"target_core_iblock", "/sys/module/target_core_iblock", "TCM_IBLOCK"},
		{"iscsi_target_mod", "/sys/module/iscsi_target_mod", "ISCSI_TARGET"},
	} {
		if h.exists(m.made) {
			continue
		}
		_, err := h.Run.Run(ctx, hostexec.Change("module "+m.name, "modprobe", m.name))
		if err == nil || h.exists(m.made) {
			continue
		}
		errs = append(errs, fmt.Errorf("kernel module %s is missing: %w; remedy: install the kernel's extra modules or use a kernel with %s",
			m.name, err, m.option))
	}
	// The directory makes the fabric's attributes appear; on a kernel without it
	// this is where it shows.
	err := os.Mkdir(h.path("/sys/kernel/config/target/iscsi"), 0o755) // configfs ignores the mode
	if len(errs) == 0 && err != nil && !errors.Is(err, fs.ErrExist) {
		errs = append(errs, fmt.Errorf("the kernel's iSCSI target cannot be used: %w; remedy: run as root on the machine itself, with iscsi_target_mod loaded", err))
	}
	return errors.Join(errs...)
}

func (h Host) exists(p string) bool {
	_, err := os.Stat(h.path(p))
	return err == nil
}
