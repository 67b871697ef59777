package hosttools

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
	"github.com/nearflash/nearflash/pkg/pool"
	"github.com/nearflash/nearflash/pkg/volume"
)

// host is a procfs with a host's root in it, of files by their paths below the root.
func host(t *testing.T, files map[string]string) (proc, root string) {
	t.Helper()
	proc = t.TempDir()
	root = filepath.Join(proc, "1/root")
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return proc, root
}

func problems(t *testing.T, h Host) error {
	t.Helper()
	_, err := h.Look(t.Context())
	return err
}

func runs(t *testing.T, proc, pid, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(proc, pid), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestHost(t *testing.T) {
	proc, root := host(t, map[string]string{
		"run/udev/control":                    "",
		"usr/lib/udev/rules.d/69-lvm.rules":   lvmRule,
		"usr/lib/udev/rules.d/64-md.rules":    mdRule,
		"usr/lib/udev/rules.d/README":         bcacheRule,
		"etc/udev/rules.d/64-md.rules":        "",
		"etc/lvm/lvm.conf":                    "",
		"etc/lvm/devices/system.devices":      "",
		"usr/lib/udev/rules.d/64-btrfs.rules": btrfsRule,
	})
	for link, to := range map[string]string{"lib": "usr/lib", "etc/udev/rules.d/64-btrfs.rules": "/dev/null"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	runs(t, proc, "1", "systemd")
	runs(t, proc, "77", "multipathd")
	run := hostexectest.New(t)
	run.On("lvm lvmconfig --type full devices/filter devices/global_filter global/event_activation").Return(lvmDefault)
	run.On("lvm lvmconfig devices/use_devicesfile").Return("use_devicesfile=0\n").Once()
	h := Host{Run: run, Proc: proc, Multipathd: func(context.Context) (string, error) { return sample(t, "multipath-default.txt"), nil }}
	judge(t, problems(t, h), []string{"hands it to LVM:"}, []string{"multipathd", "MD RAID", "btrfs"})
	for _, c := range run.Calls() {
		if want := "LVM_SYSTEM_DIR=" + filepath.Join(root, "etc/lvm"); len(c.Env) != 1 || c.Env[0] != want || !c.ReadOnly {
			t.Errorf("%s: environment %q, want %s", c.Line(), c.Env, want)
		}
	}

	run.On("lvm lvmconfig devices/use_devicesfile").Fail(5, "Configuration node devices/use_devicesfile not found")
	judge(t, problems(t, h), []string{"/dev/disk"}, []string{"LVM"})

	if err := PlaceRule(filepath.Join(root, RuleDir), true); err != nil {
		t.Fatal(err)
	}
	judge(t, problems(t, h), nil, nil)
	if err := os.WriteFile(filepath.Join(root, "etc/udev/rules.d", RuleFile), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	judge(t, problems(t, h), []string{"not the one of this version"}, nil)
}

// TestNoHost: what cannot be looked at is not taken for right.
func TestNoHost(t *testing.T) {
	judge(t, problems(t, Host{Proc: t.TempDir()}), []string{"cannot be looked at", "hostPID"}, nil)
}

// TestNothingToKeepOut: a host without udev and multipathd, which is not asked.
func TestNothingToKeepOut(t *testing.T) {
	proc, _ := host(t, map[string]string{"etc/hostname": "a"})
	h := Host{Proc: proc, Multipathd: func(context.Context) (string, error) { t.Error("asked"); return "", nil }}
	judge(t, problems(t, h), nil, nil)
}

// TestScanningTools: LVM and mdadm are looked at without udev too, by their programs, and what keeps
// them away is found.
func TestScanningTools(t *testing.T) {
	files := map[string]string{"usr/sbin/lvm": "", "sbin/mdadm": "", "etc/lvm/lvm.conf": ""}
	proc, root := host(t, files)
	run := hostexectest.New(t)
	answer := run.On("lvm lvmconfig --type full devices/filter devices/global_filter global/event_activation").Return(lvmDefault)
	run.On("lvm lvmconfig devices/use_devicesfile").Fail(5, "not found")
	h := Host{Run: run, Proc: proc}
	judge(t, problems(t, h), []string{"no udev", "LVM and MD RAID", "global_filter", "AUTO -all"}, nil)
	answer.Return(lvmOwnDisks)
	for name, text := range map[string]string{"etc/mdadm/mdadm.conf": "DEVICE partitions\nAUTO -all\n", RuleDir[1:] + "/" + RuleFile: rule} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	judge(t, problems(t, h), nil, nil)
	answer.Return(lvmDefault)
	judge(t, problems(t, h), []string{"LVM", "global_filter"}, []string{"MD RAID", "mdadm"})
	if err := os.WriteFile(filepath.Join(root, "run/udev/control"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	note, err := h.Look(t.Context())
	judge(t, err, nil, nil)
	judge(t, errors.New(note), []string{"vgchange", "global_filter", page}, []string{"mdadm"})
}

func TestAskMultipathd(t *testing.T) {
	long := strings.Repeat("x", 100_000) + "\n"
	for name, tc := range map[string]struct {
		answer []byte
		want   string
		err    string
	}{
		"an answer":   {answer: packet(long + "\x00"), want: long},
		"nothing":     {err: "multipathd's answer"},
		"cut off":     {answer: packet("defaults\x00")[:12], err: "multipathd's answer"},
		"without end": {answer: binary.NativeEndian.AppendUint64(nil, 1<<40), err: "accepted are"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "mp") // a short path for the socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			address := filepath.Join(dir, "s")
			l, err := net.Listen("unix", address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			got := make(chan []byte, 1)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				request := make([]byte, len(packet("show config\x00")))
				_, _ = io.ReadFull(conn, request)
				got <- request
				_, _ = conn.Write(tc.answer)
			}()
			text, err := askMultipathd(t.Context(), address)
			if text != tc.want || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %d bytes, %v", len(text), err)
			}
			if request := <-got; string(request) != string(packet("show config\x00")) {
				t.Errorf("asked %q", request)
			}
		})
	}
	if _, err := askMultipathd(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("nobody answered")
	}
}

func packet(s string) []byte {
	return append(binary.NativeEndian.AppendUint64(nil, uint64(len(s))), s...)
}

func TestPlaceRule(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rules.d")
	path := filepath.Join(dir, RuleFile)
	if err := PlaceRule(dir, false); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
	if err := PlaceRule(dir, true); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := PlaceRule(dir, true); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a rule that was right was written again: %v", err)
	}
	if err := os.WriteFile(path, []byte("KERNEL==\"x\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := PlaceRule(dir, true); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != Rule() {
		t.Errorf("%q, %v", text, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := PlaceRule(dir, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestNames: the rule knows devices and targets by the names that they have.
func TestNames(t *testing.T) {
	for what, name := range map[string][2]string{
		"device":       {layout.UUID(volume.Fence{UID: "u"}, layout.Top), `ATTR{dm/uuid}=="`},
		"volume group": {strings.ReplaceAll(pool.VolumeGroupPrefix, "-", "--") + "0123456789-x.data", `ATTR{dm/name}=="`},
		"export":       {"ip-192.0.2.1:3262-iscsi-" + volume.ExportIQN("a", "x"), `ENV{ID_PATH}=="`},
	} {
		_, rest, _ := strings.Cut(rule, name[1])
		pattern, _, _ := strings.Cut(rest, `"`)
		if ok, err := filepath.Match(pattern, name[0]); !ok || err != nil {
			t.Errorf("%s: %q does not match %q: %v", what, pattern, name[0], err)
		}
	}
}
