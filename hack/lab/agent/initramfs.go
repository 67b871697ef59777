package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/hack/lab/internal/agentapi"
)

// diskLimit is how long a driver may take to find its disks.
const diskLimit = 2 * time.Minute

// enterRoot leaves the kernel's first root for the guest's own.
func enterRoot() error {
	newRoot := "/" + agentapi.NewRoot
	root := os.Getenv(agentapi.RootEnv)
	if root == "" {
		if err := unix.Mount(rootDevice, newRoot, "ext4", unix.MS_NOATIME, ""); err != nil {
			return fmt.Errorf("mount %s: %w", rootDevice, err)
		}
		return pivot(newRoot)
	}
	if err := loadBootModules("/" + agentapi.BootModules); err != nil {
		return err
	}
	modules := os.Getenv(agentapi.ModulesEnv)
	// The last disk of all: the others are there when it is.
	if err := awaitDisk(modules); err != nil {
		return err
	}
	for _, m := range []struct {
		device, target string
		flags          uintptr
	}{{root, newRoot, unix.MS_NOATIME}, {modules, newRoot + "/usr/lib/modules", unix.MS_RDONLY}} {
		if err := unix.Mount(m.device, m.target, "ext4", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.device, err)
		}
	}
	return switchRoot(newRoot)
}

// loadBootModules loads the modules of a folder in the order of its list.
func loadBootModules(dir string) error {
	list, err := os.ReadFile(filepath.Join(dir, agentapi.BootOrder))
	if err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	for _, name := range strings.Fields(string(list)) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("modules: %w", err)
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		// One that this processor has no use for says so.
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
			return errors.Join(fmt.Errorf("load %s: %w", name, err), f.Close())
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

func awaitDisk(device string) error {
	for limit := time.Now().Add(diskLimit); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(device)
		if err == nil {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("disk: %w", err)
		}
	}
}

// switchRoot makes dir the root of a process that an initramfs, which cannot be left by
// pivot_root(2), is the root of (Documentation/filesystems/ramfs-rootfs-initramfs.rst).
func switchRoot(dir string) error {
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("new root: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("new root: %w", err)
	}
	return nil
}
