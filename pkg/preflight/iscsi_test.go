package preflight

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/openiscsi/openiscsitest"
)

// hostOf makes a procfs with an iscsid, whose root has an initiator name.
func hostOf(t *testing.T, program string) *openiscsi.Host {
	t.Helper()
	proc := t.TempDir()
	for pid, comm := range map[string]string{"1": "systemd", "700": "iscsid"} {
		dir := filepath.Join(proc, pid)
		for name, text := range map[string]string{
			"comm": comm, "ns/mnt": "", "root/etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.2026-11.io.example:" + comm + "\n",
			"net/unix": "0: 00000002 00000000 00010000 0001 01 41 @ISCSIADM_ABSTRACT_NAMESPACE\n",
			"status":   "Name:\t" + comm + "\nUid:\t0\t0\t0\t0\nCapEff:\tff\n",
		} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for name, to := range map[string]string{"ns/user": "user:[1]", "exe": program, "fd/3": "socket:[41]"} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &openiscsi.Host{Proc: proc}
}

// TestIscsidUnderstands: a daemon that does not take iscsiadm's orders is found before one is given.
func TestIscsidUnderstands(t *testing.T) {
	const tool, older = "iscsiadm version 2.1.13\n", "iscsid version 2.1.8\n"
	for name, tc := range map[string]struct {
		said   string
		size   int
		handle func(net.Conn)
		nobody bool
		// host is set where the host's iscsiadm is used, own where nearflash brings the daemon.
		host, own bool
		program   string
		want, not []string
	}{
		"one version":                 {said: tool, size: 16136},
		"an older daemon":             {said: tool, size: 16104, want: []string{"do not understand each other", "iscsiadm is 2.1.13, iscsid is 2.1.8", "node.iscsid.run: nsenter", "remedy"}},
		"a newer daemon":              {said: "iscsiadm version 2.1.8\n", size: 16112, want: []string{"waits for more", "iscsiadm is 2.1.8", "remedy"}},
		"a daemon of before":          {said: tool, size: 16104, program: "/usr/sbin/iscsid (deleted)", want: []string{"its program was replaced since it began"}},
		"nearflash's, and an older":   {said: tool, size: 16104, own: true, want: []string{"stop the iscsid of the host"}},
		"the host's after an update":  {said: tool, size: 16104, host: true, want: []string{"systemctl restart iscsid"}, not: []string{"nsenter"}},
		"a version that nobody knows": {said: "iscsiadm version 7.0.1\n", size: 20000},
		"RHEL's":                      {said: "iscsiadm version 6.2.1.9-1\n", size: 16104, host: true},
		"it says nothing":             {said: tool, handle: func(net.Conn) { <-t.Context().Done() }, want: []string{"takes the connection and does not answer for 1s", "systemctl restart iscsid"}},
		"nearflash's says nothing":    {said: tool, handle: func(net.Conn) { <-t.Context().Done() }, own: true, want: []string{"does not answer", "component=iscsid"}, not: []string{"systemctl"}},
		"it says rubbish":             {said: tool, handle: func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.0 400\r\n\r\n")) }, want: []string{"no usable answer"}},
		"none runs":                   {said: tool, nobody: true, want: []string{"iscsid does not run on the node", "systemctl enable"}},
		"none of nearflash's runs":    {said: tool, nobody: true, own: true, want: []string{"iscsid does not run on the node", "component=iscsid"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, run, dir := goodNode(t)
			n.Iscsid = openiscsi.Daemon{Socket: filepath.Join(dir, "other"), Patience: time.Second}
			switch {
			case tc.handle != nil:
				openiscsitest.Handle(t, n.Iscsid.Socket, tc.handle)
			case !tc.nobody:
				openiscsitest.Serve(t, n.Iscsid.Socket, tc.size)
			}
			program := "/usr/sbin/iscsid"
			if tc.program != "" {
				program = tc.program
			}
			n.HostISCSI, n.OwnISCSID = hostOf(t, program), tc.own
			if tc.host {
				n.OpenISCSI, n.InitiatorNameFile = n.HostISCSI, "/etc/iscsi/initiatorname.iscsi"
			}
			run.On("iscsiadm --version").Return(tc.said)
			run.On("/usr/sbin/iscsid --version").Return(older)
			err := n.ISCSI(t.Context())
			if (err != nil) != (len(tc.want) > 0) {
				t.Fatalf("got %v", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
			for _, w := range tc.not {
				if strings.Contains(err.Error(), w) {
					t.Errorf("%q has %q", err, w)
				}
			}
		})
	}
}

// TestHostIscsiadm: with the host's iscsiadm the name is of iscsid's place, and the program is asked
// at each look.
func TestHostIscsiadm(t *testing.T) {
	n, run, _ := goodNode(t)
	n.OpenISCSI, n.InitiatorNameFile, n.Programs = hostOf(t, "/usr/sbin/iscsid"), "/etc/iscsi/initiatorname.iscsi", &Programs{}
	if name, err := n.InitiatorName(); err != nil || name != "iqn.2026-11.io.example:iscsid" {
		t.Errorf("name %q, %v", name, err)
	}
	run.On("iscsiadm --version").Return("iscsiadm version 2.1.13\n").Once()
	if err := n.ISCSI(t.Context()); err != nil {
		t.Error(err)
	}
	run.On("iscsiadm").Fail(127, "no such program")
	err := n.ISCSI(t.Context())
	if err == nil || !strings.Contains(err.Error(), "install open-iscsi on the node") {
		t.Errorf("got %v", err)
	}
	n.InitiatorNameFile = "/etc/iscsi/none"
	if _, err := n.InitiatorName(); !errors.Is(err, ErrInitiatorName) || !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "/proc/") {
		t.Errorf("got %v", err)
	}
	n.OpenISCSI = &openiscsi.Host{Proc: t.TempDir()}
	if _, err := n.InitiatorName(); !errors.Is(err, ErrInitiatorName) || !strings.Contains(err.Error(), "hostPID") {
		t.Errorf("got %v", err)
	}
}
