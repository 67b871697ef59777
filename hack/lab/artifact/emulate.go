package artifact

import (
	"context"
	_ "embed" // emulate.sh
	"os/exec"
	"syscall"
)

//go:embed emulate.sh
var emulateScript string

// arm64 is what both Go and Debian call that architecture.
const arm64 = "arm64"

// emulatorOf is the program that runs those of another architecture.
func emulatorOf(arch string) hostTool {
	return map[string]hostTool{arm64: {"qemu-aarch64-static", "qemu-user-static"}}[arch]
}

// ids is how many users and groups a Debian tree may have.
const ids = 1 << 16

// emulate prepares a command that may run programs of the architecture, also below a chroot.
// It needs root, whom the namespace maps to itself; the machine outside is not changed.
func emulate(ctx context.Context, arch, name string, args ...string) *exec.Cmd {
	script := []string{"-c", emulateScript, "emulate.sh", findTool(emulatorOf(arch).program), name}
	cmd := newCommand(ctx, "sh", append(script, args...)...)
	all := []syscall.SysProcIDMap{{Size: ids}}
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = all, all
	cmd.SysProcAttr.GidMappingsEnableSetgroups = true
	return cmd
}
