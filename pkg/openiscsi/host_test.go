package openiscsi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/openiscsi"
)

// process is one as procfs shows it.
type process struct {
	comm, uid, capabilities, users, exe string
	// socket is the inode of a socket that it has.
	socket string
}

const (
	allRights    = "000001ffffffffff"
	allButTalos  = "000001ffffbeffff" // without CAP_SYS_MODULE and CAP_SYS_BOOT
	rightsOfPods = "00000000a80425fb"
)

// sockets are those of the host, of which 41 is the daemon's, and 42 a connection to it.
const sockets = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01    40 /run/udev/control
0000000000000000: 00000002 00000000 00010000 0001 01    41 @ISCSIADM_ABSTRACT_NAMESPACE
0000000000000000: 00000003 00000000 00000000 0001 03    42 @ISCSIADM_ABSTRACT_NAMESPACE
0000000000000000: 00000003 00000000 00000000 0001 03    43
`

func (p process) write(t *testing.T, proc, pid string) {
	t.Helper()
	dir := filepath.Join(proc, pid)
	for _, d := range []string{"ns", "fd", "net", "root/etc/iscsi"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"comm": p.comm + "\n", "ns/mnt": "", "net/unix": sockets, "root/etc/iscsi/initiatorname.iscsi": "of " + pid,
		"status": "Name:\t" + p.comm + "\nUid:\t1\t" + p.uid + "\t0\t0\nCapEff:\t" + p.capabilities + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"ns/user": "user:[" + p.users + "]", "exe": p.exe, "fd/3": "socket:[" + p.socket + "]"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHost: iscsid's own mount namespace is used where there is one, and never that of a process
// that only has its name.
func TestHost(t *testing.T) {
	first := process{comm: "systemd", uid: "0", capabilities: allRights, users: "1", exe: "/usr/lib/systemd/systemd", socket: "41"}
	iscsid := process{comm: "iscsid", uid: "0", capabilities: allRights, users: "1", exe: "/usr/sbin/iscsid", socket: "41"}
	with := func(change func(*process)) process {
		p := iscsid
		change(&p)
		return p
	}
	for name, tc := range map[string]struct {
		first    process
		others   map[string]process
		want     string
		daemon   string
		replaced bool
		err      string
	}{
		"no iscsid":               {first: first, want: "1"},
		"iscsid":                  {first: first, others: map[string]process{"700": iscsid, "701": {comm: "sh", uid: "0", capabilities: allRights, users: "1", exe: "/bin/sh"}}, want: "700", daemon: "/usr/sbin/iscsid"},
		"that of Talos":           {first: first, others: map[string]process{"700": with(func(p *process) { p.capabilities, p.exe = allButTalos, "/usr/local/sbin/iscsid" })}, want: "700", daemon: "/usr/local/sbin/iscsid"},
		"a pod's process":         {first: first, others: map[string]process{"600": with(func(p *process) { p.capabilities = rightsOfPods }), "700": iscsid}, want: "700", daemon: "/usr/sbin/iscsid"},
		"one that has just begun": {first: first, others: map[string]process{"600": with(func(p *process) { p.socket = "43" }), "700": iscsid}, want: "700", daemon: "/usr/sbin/iscsid"},
		"one that serves nobody":  {first: first, others: map[string]process{"600": with(func(p *process) { p.socket = "42" })}, want: "1"},
		"another user's":          {first: first, others: map[string]process{"700": with(func(p *process) { p.uid = "1000" })}, want: "1"},
		"in a namespace of its":   {first: first, others: map[string]process{"700": with(func(p *process) { p.users = "2" })}, want: "1"},
		"its program has gone":    {first: first, others: map[string]process{"700": with(func(p *process) { p.exe += " (deleted)" })}, want: "700", daemon: "/usr/sbin/iscsid", replaced: true},
		"no process of the host":  {others: map[string]process{"700": iscsid}, err: "hostPID"},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			if tc.first.comm != "" {
				tc.first.write(t, proc, "1")
			}
			for pid, p := range tc.others {
				p.write(t, proc, pid)
			}
			place, err := (&openiscsi.Host{Proc: proc}).Open()
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer place.Close()
			b, err := os.ReadFile(place.Path("/etc/iscsi/initiatorname.iscsi"))
			if err != nil || string(b) != "of "+tc.want {
				t.Errorf("files are %s (%v), want those of %s", b, err, tc.want)
			}
			if program, replaced := place.Daemon(); program != tc.daemon || replaced != tc.replaced {
				t.Errorf("the daemon is %q, replaced %t", program, replaced)
			}
			cmd := place.In(hostexec.Query("iscsiadm", "--version"))
			if cmd.Mounts == nil || cmd.Name != "iscsiadm" {
				t.Errorf("the command is %+v", cmd)
			}
		})
	}
}

// TestOwnPlace: without a host everything is the container's.
func TestOwnPlace(t *testing.T) {
	var none *openiscsi.Host
	place, err := none.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	if got := place.Path("/etc/iscsi"); got != "/etc/iscsi" {
		t.Errorf("path %s", got)
	}
	if cmd := place.In(hostexec.Query("iscsiadm")); cmd.Mounts != nil {
		t.Error("it is run elsewhere")
	}
}
