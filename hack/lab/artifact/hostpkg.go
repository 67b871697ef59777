package artifact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// hostTool is a program that the host must have, with the Debian package that
// brings it.
type hostTool struct {
	program string
	pkg     string
}

// treeTools make a Debian tree.
func treeTools() []hostTool { return []hostTool{{"mmdebstrap", "mmdebstrap"}, {"gpgv", "gpgv"}} }

// imageTools make and check an ext4 image.
func imageTools() []hostTool {
	return []hostTool{{"mke2fs", "e2fsprogs"}, {"e2fsck", "e2fsprogs"}, {"debugfs", "e2fsprogs"}}
}

// kernelTools make the guest kernel find its libc.
func kernelTools() []hostTool { return []hostTool{{"patchelf", "patchelf"}} }

// networkTools join the nodes of a running lab.
func networkTools() []hostTool {
	return []hostTool{
		{"ip", "iproute2"},
		{"nft", "nftables"},
	}
}

// ErrHostTool says that the host lacks a program and that it could not be
// installed. The text names the program and the remedy.
var ErrHostTool = errors.New("missing on this host")

// ensureHostTools installs what is missing. Packages are installed by root with
// apt-get only; anybody else is told what to install.
func (s *store) ensureHostTools(ctx context.Context, tools []hostTool) error {
	s.installing.Lock()
	defer s.installing.Unlock()
	missing := missingTools(tools)
	if len(missing) == 0 {
		return nil
	}
	var programs, pkgs []string
	for _, t := range missing {
		programs = append(programs, t.program)
		if !slices.Contains(pkgs, t.pkg) {
			pkgs = append(pkgs, t.pkg)
		}
	}
	remedy := fmt.Errorf("%w: %s (install the packages that bring them, on Debian: apt-get install %s)",
		ErrHostTool, strings.Join(programs, ", "), strings.Join(pkgs, " "))
	if os.Geteuid() != 0 {
		return remedy
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return remedy
	}
	err := s.step(ctx, "install "+strings.Join(pkgs, " "), func(ctx context.Context) error {
		return aptInstall(ctx, pkgs)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", remedy, err)
	}
	if len(missingTools(tools)) > 0 {
		return remedy
	}
	return nil
}

func missingTools(tools []hostTool) []hostTool {
	var missing []hostTool
	for _, t := range tools {
		if findTool(t.program) == "" {
			missing = append(missing, t)
		}
	}
	return missing
}

// findTool looks a program up in PATH and in the system directories, which an
// ordinary user's PATH often lacks.
func findTool(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if path := filepath.Join(dir, program); exists(path) {
			return path
		}
	}
	return ""
}

// aptInstall installs packages; the lists are fetched only when the first try
// fails, for most hosts have them.
func aptInstall(ctx context.Context, pkgs []string) error {
	install := func() error {
		args := append([]string{"install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, pkgs...)
		cmd := newCommand(ctx, "apt-get", args...)
		cmd.Env = append(cmd.Env, "DEBIAN_FRONTEND=noninteractive")
		_, err := run(ctx, cmd)
		return err
	}
	err := install()
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, updateErr := run(ctx, newCommand(ctx, "apt-get", "update")); updateErr != nil {
		return errors.Join(err, updateErr)
	}
	return install()
}
