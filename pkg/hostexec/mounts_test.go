package hostexec_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// TestRunInMounts: a program of another mount namespace is looked for there, by the paths of hosts,
// and one that is not there is told as such.
func TestRunInMounts(t *testing.T) {
	dir := t.TempDir()
	fake := `#!/bin/sh
echo "$@"
echo "$PATH"
readlink /proc/self/fd/3
case "$*" in *missing*) echo "nsenter: failed to execute missing" >&2; exit 127;; *refuse*) exit 6;; esac
`
	if err := os.WriteFile(filepath.Join(dir, "nsenter"), []byte(fake), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ns, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.Close() }()
	in := func(cmd hostexec.Cmd) hostexec.Cmd {
		cmd.Mounts = ns
		return cmd
	}
	run := hostexec.New()
	res, err := run.Run(t.Context(), in(hostexec.Query("iscsiadm", "--version")))
	lines := strings.Split(string(res.Stdout), "\n")
	if err != nil || len(lines) < 3 || lines[0] != "--mount=/proc/self/fd/3 -- iscsiadm --version" ||
		!strings.HasPrefix(lines[1], "/usr/local/sbin:") || !strings.HasPrefix(lines[2], "mnt:[") {
		t.Errorf("got %q, %v", lines, err)
	}
	if _, err := run.Run(t.Context(), in(hostexec.Command("missing"))); !errors.Is(err, hostexec.ErrNotInstalled) || !strings.Contains(err.Error(), "on the host") {
		t.Errorf("a missing program: %v", err)
	}
	var exit *hostexec.ExitError
	if _, err := run.Run(t.Context(), in(hostexec.Command("iscsiadm", "refuse"))); !errors.As(err, &exit) || exit.ExitCode != 6 || exit.Name != "iscsiadm" {
		t.Errorf("one that fails: %v", err)
	}
	if _, err := run.Run(t.Context(), in(hostexec.Change("d", "dmsetup"))); err == nil {
		t.Error("a change was run elsewhere")
	}
}
