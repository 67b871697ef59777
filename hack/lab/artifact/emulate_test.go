package artifact

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestEmulateScript: the emulator is registered in a binfmt_misc of its own if there is one;
// otherwise the machine's has to know it, and if nobody does, the command is not run.
func TestEmulateScript(t *testing.T) {
	// What stands for mount(8) makes what the kernel would show, or refuses.
	const mounted, refused = "#!/bin/sh\nshift 3; : >\"$1/register\"\n", "#!/bin/sh\nexit 1\n"
	for name, tc := range map[string]struct {
		mount, machine string
		registers      bool
		wantErr        string
	}{
		"own":               {mount: mounted, registers: true},
		"own, before known": {mount: mounted, machine: "enabled\n", registers: true},
		"known":             {mount: refused, machine: "enabled\ninterpreter /usr/bin/qemu-aarch64\n"},
		"switched off":      {mount: refused, machine: "disabled\n", wantErr: "needs Linux 6.7"},
		"nobody":            {mount: refused, wantErr: "needs Linux 6.7"},
	} {
		t.Run(name, func(t *testing.T) {
			bin, binfmt := t.TempDir(), t.TempDir()
			if err := os.WriteFile(filepath.Join(bin, "mount"), []byte(tc.mount), 0o755); err != nil {
				t.Fatal(err)
			}
			if tc.machine != "" {
				if err := os.WriteFile(filepath.Join(binfmt, "qemu-aarch64"), []byte(tc.machine), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", emulateScript, "emulate.sh", "/opt/emulator", "echo", "a b", "c")
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "BINFMT_DIR="+binfmt)
			out, err := cmd.CombinedOutput()
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(string(out), tc.wantErr) || strings.Contains(string(out), "a b") {
					t.Errorf("%v, %q, want no command and %q", err, out, tc.wantErr)
				}
				return
			}
			if err != nil || string(out) != "a b c\n" {
				t.Errorf("%v, %q, want the command", err, out)
			}
			line, err := os.ReadFile(filepath.Join(binfmt, "register"))
			if tc.registers != (err == nil) {
				t.Fatalf("registered: %q, %v", line, err)
			}
			if tc.registers && (!strings.HasPrefix(string(line), `:qemu-aarch64:M::\x7fELF\x02`) || !strings.HasSuffix(string(line), ":/opt/emulator:OCF")) {
				t.Errorf("registered %q", line)
			}
		})
	}
}

// TestEmulateNamespaces: what is registered and mounted is not the machine's, and a tree may
// have all users.
func TestEmulateNamespaces(t *testing.T) {
	attr := emulate(t.Context(), arm64, "true").SysProcAttr
	if attr.Cloneflags&syscall.CLONE_NEWUSER == 0 || attr.Unshareflags&syscall.CLONE_NEWNS == 0 {
		t.Errorf("flags %#x, %#x, want a user namespace and a mount namespace", attr.Cloneflags, attr.Unshareflags)
	}
	for _, m := range [][]syscall.SysProcIDMap{attr.UidMappings, attr.GidMappings} {
		if len(m) != 1 || m[0] != (syscall.SysProcIDMap{Size: 65536}) {
			t.Errorf("maps %v, want each of 65536 to itself", m)
		}
	}
	if emulatorOf(arm64).program == "" {
		t.Error("no emulator")
	}
}
