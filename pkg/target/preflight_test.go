package target_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
	"github.com/nearflash/nearflash/pkg/target"
)

// machineRoot makes a root directory with the given directories and mounts.
func machineRoot(t *testing.T, mounts string, dirs ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, d := range append(dirs, "proc/self") {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/self/mounts"), []byte(mounts), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

const configfsMounted = "none /sys/kernel/config configfs rw 0 0\n"

func TestPreflight(t *testing.T) {
	const lvmNow = "  LVM version:     2.03.31(2) (2025-02-27)\n  Library version: 1.02.205 (2025-02-27)\n"
	all := []string{"sys/kernel/config/target/core", "sys/module/target_core_iblock", "sys/module/iscsi_target_mod"}
	cases := map[string]struct {
		mounts string
		dirs   []string
		script func(*hostexectest.Fake)
		mount  error
		want   []string // parts of the error; none: success
	}{
		"all there": {mounts: configfsMounted, dirs: all, script: func(f *hostexectest.Fake) { f.On("lvm version").Return(lvmNow) }},
		"configfs mounted by us": {dirs: all, script: func(f *hostexectest.Fake) {
			f.On("modprobe configfs").Once()
			f.On("lvm version").Return(lvmNow)
		}},
		"no configfs": {dirs: all, mount: errors.New("no such device"), script: func(f *hostexectest.Fake) {
			f.On("modprobe configfs").Fail(1, "modprobe: FATAL: Module configfs not found")
			f.On("lvm version").Return(lvmNow)
		}, want: []string{"configfs", "CONFIGFS_FS", "Module configfs not found"}},
		"no target modules, old LVM": {mounts: configfsMounted, dirs: []string{"sys/kernel/config"}, script: func(f *hostexectest.Fake) {
			f.On("modprobe").Fail(1, "modprobe: FATAL: Module not found")
			f.On("lvm version").Return("  LVM version:     2.02.98(2) (2012-10-15)\n")
		}, want: []string{"target_core_mod", "target_core_iblock", "iscsi_target_mod", "ISCSI_TARGET", `LVM "2.02.98"`, "2.03.12"}},
		"no LVM": {mounts: configfsMounted, dirs: all, script: func(f *hostexectest.Fake) {
			f.On("lvm version").Do(func(_ context.Context, _ hostexectest.Call) (string, error) { return "", hostexec.ErrNotInstalled })
		}, want: []string{"LVM is missing", "lvm2"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			run := hostexectest.New(t)
			tc.script(run)
			h := target.Host{Root: machineRoot(t, tc.mounts, tc.dirs...), Run: run, Mount: func(string) error { return tc.mount }}
			err := h.Preflight(t.Context())
			if (err == nil) != (len(tc.want) == 0) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) || !strings.Contains(err.Error(), "remedy") {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
		})
	}
}
