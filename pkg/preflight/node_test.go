package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/openiscsi/openiscsitest"
)

// goodNode is a node on which nothing is missing.
func goodNode(t *testing.T) (Node, *hostexectest.Fake, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pf") // a short path for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.MkdirAll(filepath.Join(dir, "sys/class/iscsi_transport/tcp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "initiatorname"), []byte("## a comment\nInitiatorName=iqn.1993-08.org.debian:01:abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	openiscsitest.Serve(t, filepath.Join(dir, "iscsid"), 16136)
	run := hostexectest.New(t)
	return Node{
		Run: run, DM: devmapper.New(run), Sysfs: filepath.Join(dir, "sys"),
		InitiatorNameFile: filepath.Join(dir, "initiatorname"), Iscsid: openiscsi.Daemon{Socket: filepath.Join(dir, "iscsid"), Patience: time.Second},
	}, run, dir
}

func TestNodePreflight(t *testing.T) {
	const targets = "cache            v2.4.0\nlinear           v1.5.0\n"
	const lvm = "  LVM version:     2.03.31(2) (2025-02-27)\n"
	cases := map[string]struct {
		targets, lvm string
		spoil        func(dir string) error
		// wantISCSI and wantCache are words of the findings; none for a pass. Nothing essential
		// is ever missing.
		wantISCSI, wantCache []string
	}{
		"all there":       {targets: targets, lvm: lvm},
		"no cache target": {targets: "linear v1.5.0\n", lvm: lvm, wantCache: []string{"no target cache", "dm-cache"}},
		"old kernel":      {targets: "cache v1.9.0\nlinear v1.3.0\n", lvm: lvm, wantCache: []string{"1.9.0", "2.0.0", "4.12"}},
		"old lvm":         {targets: targets, lvm: "  LVM version:     2.03.11(2) (2021-01-08)\n", wantCache: []string{"2.03.11", "2.03.12"}},
		"no iscsid": {targets: targets, lvm: lvm, spoil: func(dir string) error { return os.Remove(filepath.Join(dir, "iscsid")) },
			wantISCSI: []string{"iscsid", "systemctl"}},
		"no transport": {targets: targets, lvm: lvm, spoil: func(dir string) error { return os.RemoveAll(filepath.Join(dir, "sys")) },
			wantISCSI: []string{"iscsi_tcp"}},
		"no initiator name": {targets: targets, lvm: lvm, spoil: func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "initiatorname"), []byte("GenerateName=yes\n"), 0o600)
		}, wantISCSI: []string{"initiator name", "open-iscsi"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n, run, dir := goodNode(t)
			run.On("dmsetup targets").Return(tc.targets)
			run.On("lvm version").Return(tc.lvm)
			run.On("iscsiadm --version").Return("iscsiadm version 2.1.13\n")
			run.On("cache_check -V")
			if tc.spoil != nil {
				if err := tc.spoil(dir); err != nil {
					t.Fatal(err)
				}
			}
			for what, c := range map[string]struct {
				err  error
				want []string
			}{
				"Essential": {n.Essential(t.Context()), nil},
				"ISCSI":     {n.ISCSI(t.Context()), tc.wantISCSI},
				"Cache":     {n.Cache(t.Context()), tc.wantCache},
			} {
				if (c.err != nil) != (len(c.want) > 0) {
					t.Errorf("%s: %v", what, c.err)
					continue
				}
				for _, w := range c.want {
					if !strings.Contains(c.err.Error(), w) {
						t.Errorf("%s: %q lacks %q", what, c.err, w)
					}
				}
			}
		})
	}
}

func TestWarmMove(t *testing.T) {
	const targets = "cache v2.4.0\nclone v1.0.0\nlinear v1.5.0\nmultipath v1.15.0\nzero v1.2.0\n"
	cases := map[string]struct {
		targets string
		without []string
		tools   func(run *hostexectest.Fake)
		exports error
		// want are words of the finding; none for a pass.
		want []string
	}{
		"all there": {targets: targets},
		"old kernel": {targets: "cache v2.4.0\nlinear v1.5.0\n",
			want: []string{"no target clone", "dm-clone", "no target multipath", "CONFIG_DM_MULTIPATH", "no target zero", "dm-zero"}},
		"told to do without clone": {targets: targets, without: []string{"clone"},
			want: []string{"target clone counts as absent", "--without-targets"}},
		"told to do without exports": {targets: targets, without: []string{"iscsi"}, exports: errors.New("the kernel was asked"),
			want: []string{"target iscsi counts as absent", "node.withoutTargets"}},
		"no tools": {targets: targets, tools: func(run *hostexectest.Fake) {
			run.On("cache_dump -V").Fail(127, "not found")
			run.On("cache_restore -V").Fail(127, "not found")
		}, want: []string{"cache_dump", "cache_restore", "image"}},
		"no export": {targets: targets, exports: errors.New("kernel module iscsi_target_mod is missing; remedy: another kernel"),
			want: []string{"iscsi_target_mod"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n, run, _ := goodNode(t)
			run.On("dmsetup targets").Return(tc.targets)
			if tc.tools == nil {
				run.On("cache_dump -V")
				run.On("cache_restore -V")
			} else {
				tc.tools(run)
			}
			n.Exports = func(context.Context) error { return tc.exports }
			n.Without = tc.without
			err := n.WarmMove(t.Context())
			if (err != nil) != (len(tc.want) > 0) {
				t.Fatalf("got %v", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) || !strings.Contains(err.Error(), "remedy") {
					t.Errorf("%q lacks %q", err, w)
				}
			}
			if tc.without != nil && strings.Contains(err.Error(), "was asked") {
				t.Errorf("a target that counts as absent was made ready: %v", err)
			}
		})
	}
}

// TestIntegrity: a kernel without dm-integrity is told, for pools that ask for it.
func TestIntegrity(t *testing.T) {
	for targets, want := range map[string]string{"cache v2.4.0\nintegrity v1.13.0\n": "", "cache v2.4.0\n": "CONFIG_DM_INTEGRITY"} {
		n, f, _ := goodNode(t)
		f.On("dmsetup targets").Return(targets)
		if err := n.Integrity(t.Context()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", targets, err, want)
		}
	}
}

// TestSending: a kernel without dm-clone sends caches all the same, and one without dm-zero does not.
func TestSending(t *testing.T) {
	for name, tc := range map[string]struct {
		targets string
		without []string
		want    string
	}{
		"all there":             {targets: "cache v2.4.0\nclone v1.0.0\nlinear v1.5.0\nmultipath v1.15.0\nzero v1.2.0\n"},
		"what a stream needs":   {targets: "cache v2.4.0\nlinear v1.5.0\nzero v1.2.0\n"},
		"clone is withheld":     {targets: "cache v2.4.0\nzero v1.2.0\n", without: []string{"clone", "iscsi"}},
		"no zero":               {targets: "cache v2.4.0\nclone v1.0.0\nmultipath v1.15.0\n", want: "no target zero; remedy: load the module dm-zero"},
		"zero counts as absent": {targets: "zero v1.2.0\n", without: []string{"zero"}, want: "target zero counts as absent"},
	} {
		t.Run(name, func(t *testing.T) {
			n, run, _ := goodNode(t)
			run.On("dmsetup targets").Return(tc.targets)
			n.Without = tc.without
			err := n.Sending(t.Context())
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "clone") {
				t.Errorf("a stream needs no clone: %v", err)
			}
		})
	}
}

func TestMoveTargets(t *testing.T) {
	if got := strings.Join(MoveTargets(), ", "); got != "clone, iscsi, multipath, zero" {
		t.Errorf("got %s", got)
	}
}

// TestExamine: a look costs one question to the kernel, and of the programs only those
// that could not be used are asked again.
func TestExamine(t *testing.T) {
	n, run, _ := goodNode(t)
	n.Programs, n.Exports = &Programs{}, func(context.Context) error { return nil }
	run.On("dmsetup targets").Return("cache v2.4.0\nclone v1.0.0\nlinear v1.5.0\nmultipath v1.15.0\nzero v1.2.0\n")
	run.On("lvm version").Return("  LVM version:     2.03.31(2) (2025-02-27)\n")
	run.On("iscsiadm --version").Return("iscsiadm version 2.1.13\n")
	run.On("cache_check -V")
	run.On("cache_dump -V")
	run.On("cache_restore -V").Fail(127, "not found")
	for look, want := range []string{
		"dmsetup targets, iscsiadm --version, lvm version, cache_check -V, cache_dump -V, cache_restore -V",
		"dmsetup targets, cache_restore -V",
	} {
		before := len(run.Lines())
		got := n.Examine(t.Context())
		if err := errors.Join(got.Essential, got.ISCSI, got.Cache); err != nil {
			t.Errorf("look %d: %v", look, err)
		}
		if got.WarmMove == nil || !strings.Contains(got.WarmMove.Error(), "cache_restore") {
			t.Errorf("look %d: the missing program was found: %v", look, got.WarmMove)
		}
		if asked := strings.Join(run.Lines()[before:], ", "); asked != want {
			t.Errorf("look %d asked for %q, want %q", look, asked, want)
		}
	}
}

func TestLoadModules(t *testing.T) {
	n, run, _ := goodNode(t)
	run.On("modprobe").Fail(1, "built in")
	n.LoadModules(t.Context())
	asked := strings.Join(run.Lines(), "\n")
	for _, m := range []string{"dm-cache", "dm-clone", "dm-zero", "configfs", "target_core_mod", "target_core_iblock", "iscsi_target_mod"} {
		if !strings.Contains(asked, " "+m) {
			t.Errorf("%s is not loaded: %s", m, asked)
		}
	}
}

func TestInitiatorName(t *testing.T) {
	n, _, _ := goodNode(t)
	if got, err := n.InitiatorName(); err != nil || got != "iqn.1993-08.org.debian:01:abc" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestInitiatorNameForm: what no target takes is told here.
func TestInitiatorNameForm(t *testing.T) {
	n, _, _ := goodNode(t)
	for name, good := range map[string]bool{
		"iqn.1993-08.org.debian:01:abc": true, "IQN.2026-11.io.Example:a_b": true, "eui.02004567a425678d": true, "naa.52004567ba64678d": true,
		"iqn." + strings.Repeat("a", 219): true, "iqn." + strings.Repeat("a", 220): false, "node-a": false, "iqn.": false, "iqn.2026-11.io.example:a b": false, "xiqn.2026-11.io.example": false,
	} {
		if err := os.WriteFile(n.InitiatorNameFile, []byte("InitiatorName="+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := n.InitiatorName()
		if good && (err != nil || got != name) || !good && (!errors.Is(err, ErrInitiatorName) || !strings.Contains(err.Error(), "remedy")) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}
