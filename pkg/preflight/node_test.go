package preflight

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
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
	l, err := net.Listen("unix", filepath.Join(dir, "iscsid"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	run := hostexectest.New(t)
	return Node{
		Run: run, DM: devmapper.New(run), Sysfs: filepath.Join(dir, "sys"),
		InitiatorNameFile: filepath.Join(dir, "initiatorname"), IscsidSocket: filepath.Join(dir, "iscsid"),
	}, run, dir
}

func TestNodePreflight(t *testing.T) {
	const targets = "cache            v2.4.0\nlinear           v1.5.0\n"
	const lvm = "  LVM version:     2.03.31(2) (2025-02-27)\n"
	cases := map[string]struct {
		targets, lvm string
		spoil        func(dir string) error
		// wantEssential and wantCache are words of the findings; none for a pass.
		wantEssential, wantCache []string
	}{
		"all there":       {targets: targets, lvm: lvm},
		"no cache target": {targets: "linear v1.5.0\n", lvm: lvm, wantCache: []string{"no target cache", "dm-cache"}},
		"old kernel":      {targets: "cache v1.9.0\nlinear v1.3.0\n", lvm: lvm, wantCache: []string{"1.9.0", "2.0.0", "4.12"}},
		"old lvm":         {targets: targets, lvm: "  LVM version:     2.03.11(2) (2021-01-08)\n", wantCache: []string{"2.03.11", "2.03.12"}},
		"no iscsid": {targets: targets, lvm: lvm, spoil: func(dir string) error { return os.Remove(filepath.Join(dir, "iscsid")) },
			wantEssential: []string{"iscsid", "systemctl"}},
		"no transport": {targets: targets, lvm: lvm, spoil: func(dir string) error { return os.RemoveAll(filepath.Join(dir, "sys")) },
			wantEssential: []string{"iscsi_tcp"}},
		"no initiator name": {targets: targets, lvm: lvm, spoil: func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "initiatorname"), []byte("GenerateName=yes\n"), 0o600)
		}, wantEssential: []string{"initiator name", "open-iscsi"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n, run, dir := goodNode(t)
			run.On("dmsetup targets").Return(tc.targets)
			run.On("lvm version").Return(tc.lvm)
			run.On("iscsiadm --version")
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
				"Essential": {n.Essential(t.Context()), tc.wantEssential},
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

func TestInitiatorName(t *testing.T) {
	n, _, _ := goodNode(t)
	if got, err := n.InitiatorName(); err != nil || got != "iqn.1993-08.org.debian:01:abc" {
		t.Errorf("got %q, %v", got, err)
	}
}
