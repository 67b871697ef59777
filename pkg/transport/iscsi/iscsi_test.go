package iscsi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

const iqn = "iqn.2026-11.io.nearflash:s1:pvc-1"

// host is a machine without sessions: an empty sysfs and record database.
type host struct {
	t   *testing.T
	dir string
	run *hostexectest.Fake
	i   *Initiator
	// die is the login during which the plugin is killed, -1 for none.
	die int
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir(), run: hostexectest.New(t)}
	h.i = New(h.run, Config{Sysfs: filepath.Join(h.dir, "sys"), Dev: filepath.Join(h.dir, "dev"), Records: []string{filepath.Join(h.dir, "nodes")}, LockDir: filepath.Join(h.dir, "lock")})
	return h
}

// tools are the open-iscsi of a call.
func (h *host) tools() tools {
	h.t.Helper()
	tools, err := h.i.tools()
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(tools.place.Close)
	return tools
}

func (h *host) write(path, text string) {
	h.t.Helper()
	path = filepath.Join(h.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) link(path, to string) {
	h.t.Helper()
	path = filepath.Join(h.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(h.dir, to), path); err != nil {
		h.t.Fatal(err)
	}
}

// session adds a session of the target through a portal, as the kernel shows it.
func (h *host) session(n, address, port string) {
	h.t.Helper()
	class := "sys/class/iscsi_session/session" + n
	h.write(class+"/targetname", iqn+"\n")
	h.write("sys/devices/platform/host"+n+"/session"+n+"/power", "")
	h.link(class+"/device", "sys/devices/platform/host"+n+"/session"+n)
	h.write("sys/class/iscsi_connection/connection"+n+":0/persistent_address", address+"\n")
	h.write("sys/class/iscsi_connection/connection"+n+":0/persistent_port", port+"\n")
	h.write("sys/class/scsi_host/host"+n+"/scan", "")
}

// lunDevice adds a disk to a session.
func (h *host) lunDevice(n, lun, name, wwid string, sectors string) {
	h.t.Helper()
	dir := "sys/devices/platform/host" + n + "/session" + n + "/target" + n + ":0:0/" + n + ":0:0:" + lun
	h.write(dir+"/wwid", wwid+"\n")
	h.write(dir+"/model", "product of "+name+" \n")
	h.write(dir+"/delete", "")
	h.write(dir+"/rescan", "")
	h.write(dir+"/block/"+name+"/dev", "8:"+n+"\n")
	h.write(dir+"/block/"+name+"/size", sectors+"\n")
	h.write(dir+"/block/"+name+"/queue/logical_block_size", "512\n")
	h.write("dev/"+name, "")
}

func at(portals ...string) transport.Target {
	return transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: portals, IQN: iqn, LUN: 0}}}
}

func TestConnectLogsInWithoutSecretOnTheCommandLine(t *testing.T) {
	h := newHost(t)
	record := "nodes/" + iqn + "/192.0.2.1,3260"
	h.write("nodes/.nearflash-123", "node.session.auth.password = old")
	h.write(".nearflash-124", "node.session.auth.password = old")
	// What a killed plugin left is gone before iscsiadm runs, which fails at it.
	wantSwept := func() {
		t.Helper()
		for _, dir := range []string{h.dir, filepath.Join(h.dir, "nodes")} {
			if left, err := filepath.Glob(filepath.Join(dir, ".nearflash-*")); err != nil || len(left) > 0 {
				t.Errorf("left beside the records: %v, %v", left, err)
			}
		}
	}
	h.run.On("iscsiadm --mode node --targetname " + iqn + " --portal 192.0.2.1:3260 --op new").Do(
		func(context.Context, hostexectest.Call) (string, error) {
			wantSwept()
			h.write(record, "# BEGIN RECORD 2.1.11\nnode.name = "+iqn+"\nnode.startup = automatic\nnode.session.auth.password = old\n# END RECORD\n")
			return "", nil
		}).Once()
	h.run.On("iscsiadm --mode node --targetname " + iqn + " --portal 192.0.2.1:3260 --login").Do(
		func(context.Context, hostexectest.Call) (string, error) {
			h.session("3", "192.0.2.1", "3260")
			h.lunDevice("3", "0", "sda", "naa.1", "2048")
			return "", nil
		}).Once()
	cred := &volume.Credentials{Username: "u", Password: "top-secret"}
	o, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), cred)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Paths) != 1 || o.Paths[0] != "/dev/sda" || o.DevNos[0] != "8:3" || o.SizeBytes != 1<<20 || o.LogicalBlock != 512 || o.WWID != "naa.1" ||
		len(o.Products) != 1 || o.Products[0] != "product of sda" {
		t.Errorf("origin = %+v", o)
	}
	for _, line := range h.run.Lines() {
		if strings.Contains(line, "top-secret") {
			t.Errorf("the secret is on the command line: %s", line)
		}
	}
	b, err := os.ReadFile(filepath.Join(h.dir, record))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{"node.session.auth.password = top-secret\n", "node.session.auth.username = u\n", "node.startup = manual\n", "node.session.scan = manual\n", "node.name = " + iqn} {
		if !strings.Contains(text, want) {
			t.Errorf("the record lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "automatic") || strings.Contains(text, "= old") || !strings.HasSuffix(text, "# END RECORD\n") {
		t.Errorf("record:\n%s", text)
	}
	if info, err := os.Stat(filepath.Join(h.dir, record)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the record: %v, %v", info.Mode(), err)
	}
	wantSwept()
	// A second call finds everything and runs nothing.
	h.run.Forget()
	if _, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), cred); err != nil || len(h.run.Lines()) != 0 {
		t.Errorf("second Connect: %v, ran %v", err, h.run.Lines())
	}
}

func TestConnectErrors(t *testing.T) {
	cases := map[string]struct {
		exit int
		want error
	}{
		"wrong secret":   {errLoginAuth, transport.ErrAuth},
		"no such target": {errTargetNotFound, transport.ErrNoTarget},
		"dead portal":    {errTransTimeout, transport.ErrUnreachable},
		"no daemon":      {errNotConnected, transport.ErrNoDaemon},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.write("nodes/"+iqn+"/192.0.2.1,3260,1/default", "# END RECORD\n")
			h.run.On("iscsiadm").Fail(tc.exit, "iscsiadm: words")
			if _, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), nil); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// How long a path waits is in its record: open-iscsi has no other place for it.
func TestPatience(t *testing.T) {
	portals := []string{"192.0.2.1:3260", "192.0.2.2:3260"}
	cases := map[string]struct {
		target transport.Target
		want   map[string]string
		absent string
	}{
		"one path": {
			target: at(portals[:1]...), absent: "noop_out",
			want: map[string]string{"node.session.timeo.replacement_timeout": "120", "node.session.initial_login_retry_max": "2", "node.conn[0].timeo.login_timeout": "8"},
		},
		"two paths": {
			target: at(portals...), absent: "noop_out",
			want: map[string]string{"node.session.timeo.replacement_timeout": "15", "node.session.initial_login_retry_max": "2"},
		},
		"fail fast": {
			target: transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: portals[:1], IQN: iqn}}, FailFast: true},
			want: map[string]string{
				"node.session.timeo.replacement_timeout": "1", "node.session.initial_login_retry_max": "1", "node.conn[0].timeo.login_timeout": "5",
				"node.conn[0].timeo.logout_timeout": "1", "node.conn[0].timeo.noop_out_interval": "1", "node.conn[0].timeo.noop_out_timeout": "1",
				"node.session.err_timeo.abort_timeout": "1", "node.session.err_timeo.lu_reset_timeout": "1", "node.session.err_timeo.tgt_reset_timeout": "1",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			for _, p := range tc.target.Portals {
				h.write("nodes/"+iqn+"/"+strings.Replace(p, ":", ",", 1), "node.session.timeo.replacement_timeout = 77\n# END RECORD\n")
			}
			h.run.On("iscsiadm").Fail(errTransTimeout, "timed out")
			if _, err := h.i.Connect(t.Context(), tc.target, nil); !errors.Is(err, transport.ErrUnreachable) {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(h.dir, "nodes", iqn, "192.0.2.1,3260"))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range tc.want {
				if strings.Count(string(b), k+" = ") != 1 || !strings.Contains(string(b), k+" = "+v+"\n") {
					t.Errorf("%s is not %s:\n%s", k, v, b)
				}
			}
			if tc.absent != "" && strings.Contains(string(b), tc.absent) {
				t.Errorf("%s is not left to open-iscsi:\n%s", tc.absent, b)
			}
		})
	}
}

// Nodes that share a kernel share an iscsid, whose name would be that of all of them.
func TestRecordNamesTheInitiator(t *testing.T) {
	const own = "iqn.2026-11.io.nearflash.test:node-b"
	cases := map[string]struct{ name, record, want string }{
		"own name":     {own, "iface.initiatorname = iqn.1993-08.org.debian:other\n", "iface.initiatorname = " + own + "\n"},
		"none in it":   {own, "", "iface.initiatorname = " + own + "\n"},
		"iscsid's own": {"", "iface.initiatorname = <empty>\n", "iface.initiatorname = <empty>\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.i = New(h.run, Config{Sysfs: filepath.Join(h.dir, "sys"), Records: []string{filepath.Join(h.dir, "nodes")}, LockDir: filepath.Join(h.dir, "lock"), InitiatorName: tc.name})
			h.write("nodes/"+iqn+"/192.0.2.1,3260", tc.record+"# END RECORD\n")
			h.run.On("iscsiadm").Fail(errTransTimeout, "timed out")
			if _, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), nil); !errors.Is(err, transport.ErrUnreachable) {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(h.dir, "nodes", iqn, "192.0.2.1,3260"))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(string(b), "iface.initiatorname") != 1 || !strings.Contains(string(b), tc.want) {
				t.Errorf("want %q in the record:\n%s", tc.want, b)
			}
		})
	}
}

// A login that met the record of another volume just going away is repeated: for a
// warm start the failure would be for good.
func TestLoginBesideOthersThatLeave(t *testing.T) {
	h := newHost(t)
	h.write("nodes/"+iqn+"/192.0.2.1,3260", "# END RECORD\n")
	h.run.On("iscsiadm").Fail(errDatabase, "iscsiadm: iface iter could not stat").Times(3)
	h.run.On("iscsiadm").Do(func(context.Context, hostexectest.Call) (string, error) {
		h.session("1", "192.0.2.1", "3260")
		h.lunDevice("1", "0", "sda", "naa.1", "2048")
		return "", nil
	}).Once()
	if o, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), nil); err != nil || len(o.Paths) != 1 {
		t.Errorf("got %+v, %v", o, err)
	}
}

// A database that is broken is not asked for ever.
func TestBrokenDatabase(t *testing.T) {
	h := newHost(t)
	h.write("nodes/"+iqn+"/192.0.2.1,3260", "# END RECORD\n")
	h.run.On("iscsiadm").Fail(errDatabase, "iscsiadm: database failure").Times(1 + databaseTries)
	if _, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), nil); exitCode(err) != errDatabase {
		t.Errorf("got %v", err)
	}
}

func TestOnePathOfTwoIsEnough(t *testing.T) {
	h := newHost(t)
	h.write("nodes/"+iqn+"/192.0.2.2,3260", "# END RECORD\n")
	h.session("1", "192.0.2.1", "3260")
	h.lunDevice("1", "0", "sda", "naa.1", "2048")
	h.run.On("iscsiadm").Fail(errTransTimeout, "timed out")
	o, err := h.i.Connect(t.Context(), at("192.0.2.1:3260", "192.0.2.2:3260"), nil)
	if err != nil || len(o.Paths) != 1 {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestPathsMustLeadToOneDevice(t *testing.T) {
	for name, wwid := range map[string]string{"another device": "naa.2", "no identity": ""} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.session("1", "192.0.2.1", "3260")
			h.lunDevice("1", "0", "sda", "naa.1", "2048")
			h.session("2", "192.0.2.2", "3260")
			h.lunDevice("2", "0", "sdb", wwid, "2048")
			if _, _, err := h.i.Lookup(t.Context(), at("192.0.2.1:3260", "192.0.2.2:3260")); !errors.Is(err, transport.ErrMismatch) {
				t.Errorf("got %v, want ErrMismatch", err)
			}
		})
	}
}

// Two volumes may be LUNs of one target: the session must stay for the other.
func TestDisconnectLeavesASharedSession(t *testing.T) {
	h := newHost(t)
	h.session("1", "192.0.2.1", "3260")
	h.lunDevice("1", "0", "sda", "naa.1", "2048")
	h.lunDevice("1", "1", "sdb", "naa.2", "2048")
	if err := h.i.Disconnect(t.Context(), at("192.0.2.1:3260")); err != nil {
		t.Fatal(err)
	}
	deleted, err := os.ReadFile(filepath.Join(h.dir, "sys/devices/platform/host1/session1/target1:0:0/1:0:0:0/delete"))
	if err != nil || string(deleted) != "1" {
		t.Errorf("the LUN was not taken away: %q, %v", deleted, err)
	}
	other, err := os.ReadFile(filepath.Join(h.dir, "sys/devices/platform/host1/session1/target1:0:0/1:0:0:1/delete"))
	if err != nil || string(other) != "" {
		t.Errorf("the other volume's LUN was taken away: %q, %v", other, err)
	}
}

func TestInvalidTargets(t *testing.T) {
	cases := map[string]volume.ISCSI{
		"no portal":       {IQN: iqn},
		"no port":         {IQN: iqn, Portals: []string{"192.0.2.1"}},
		"port 0":          {IQN: iqn, Portals: []string{"192.0.2.1:0"}},
		"path in the IQN": {IQN: "iqn.2026-11.x:../../etc", Portals: []string{"192.0.2.1:3260"}},
		"not an IQN":      {IQN: "disk", Portals: []string{"192.0.2.1:3260"}},
		"LUN":             {IQN: iqn, Portals: []string{"192.0.2.1:3260"}, LUN: -1},
	}
	for name, target := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if _, err := h.i.Connect(t.Context(), transport.Target{Source: volume.Source{ISCSI: target}}, nil); !errors.Is(err, transport.ErrInvalid) {
				t.Errorf("Connect: %v, want ErrInvalid", err)
			}
			if err := h.i.Disconnect(t.Context(), transport.Target{Source: volume.Source{ISCSI: target}}); !errors.Is(err, transport.ErrInvalid) {
				t.Errorf("Disconnect: %v, want ErrInvalid", err)
			}
		})
	}
}

func TestSecretWithLineBreakIsRefusedUnseen(t *testing.T) {
	h := newHost(t)
	h.write("nodes/"+iqn+"/192.0.2.1,3260", "# END RECORD\n")
	_, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), &volume.Credentials{Username: "u", Password: "a\nnode.startup = automatic"})
	if !errors.Is(err, transport.ErrInvalid) || strings.Contains(err.Error(), "automatic") {
		t.Errorf("got %v", err)
	}
}

// The kernel adds the attributes of a disk one by one; half of them is no origin.
func TestHalfMadeDiskIsNotAnOrigin(t *testing.T) {
	h := newHost(t)
	h.session("1", "192.0.2.1", "3260")
	h.lunDevice("1", "0", "sda", "naa.1", "2048")
	late := filepath.Join(h.dir, "sys/devices/platform/host1/session1/target1:0:0/1:0:0:0/block/sda/queue/logical_block_size")
	if err := os.Remove(late); err != nil {
		t.Fatal(err)
	}
	if o, found, err := h.i.Lookup(t.Context(), at("192.0.2.1:3260")); err != nil || found {
		t.Errorf("Lookup = %+v, %t, %v", o, found, err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = os.WriteFile(late, []byte("512\n"), 0o600) })
	if o, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), nil); err != nil || o.LogicalBlock != 512 {
		t.Errorf("Connect = %+v, %v", o, err)
	}
}

// Nor is one that cannot be opened yet.
func TestClosedDiskIsNotAnOrigin(t *testing.T) {
	h := newHost(t)
	h.session("1", "192.0.2.1", "3260")
	h.lunDevice("1", "0", "sda", "naa.1", "2048")
	late := filepath.Join(h.dir, "sys/devices/platform/host1/session1/target1:0:0/1:0:0:0/block/sda/queue/logical_block_size")
	node := filepath.Join(h.dir, "dev/sda")
	if err := errors.Join(os.Remove(late), os.Remove(node)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	time.AfterFunc(100*time.Millisecond, func() { _ = os.WriteFile(late, []byte("512\n"), 0o600) })
	time.AfterFunc(400*time.Millisecond, func() { _ = os.WriteFile(node, nil, 0o600) })
	if _, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), nil); err != nil || time.Since(start) < 400*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// A killed iscsiadm leaves the lock of the database; a working one holds it for
// a moment.
func TestStaleLockIsRemoved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("lock/lock.write", "")
	lock := filepath.Join(h.dir, "lock/lock.write")
	if err := h.tools().removeStaleLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(lock); err != nil {
		t.Errorf("a fresh lock was removed: %v", err)
	}
	time.Sleep(lockHeld + 100*time.Millisecond) // the change time cannot be set by hand
	if err := h.tools().removeStaleLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(lock); !os.IsNotExist(err) {
		t.Errorf("a stale lock is left: %v", err)
	}
}

// A caller that gives up must not kill an iscsiadm that holds the lock.
func TestCommandOutlivesItsCaller(t *testing.T) {
	h := newHost(t)
	h.write("nodes/"+iqn+"/192.0.2.1,3260", "# END RECORD\n")
	ctx, cancel := context.WithCancel(t.Context())
	h.run.On("iscsiadm").Do(func(ctx context.Context, _ hostexectest.Call) (string, error) {
		cancel()
		return "", ctx.Err()
	})
	if _, err := h.tools().iscsiadm(ctx, iqn, "192.0.2.1:3260", "--logout"); err != nil {
		t.Errorf("the command ended with its caller: %v", err)
	}
}

// TestMarks: an error, a new connection, and a LUN that was found anew are seen.
func TestMarks(t *testing.T) {
	h := newHost(t)
	target := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: []string{"10.0.0.1:3260", "10.0.0.2:3260"}, IQN: iqn}}}
	if m, err := h.i.Marks(t.Context(), target); err != nil || len(m) != 0 {
		t.Errorf("not attached: %v, %v", m, err)
	}
	h.session("1", "10.0.0.1", "3260")
	h.lunDevice("1", "0", "sda", "naa.1", "2048")
	lunDevice := "sys/devices/platform/host1/session1/target1:0:0/1:0:0:0"
	port := "sys/class/iscsi_connection/connection1:0/local_port"
	for _, missing := range []string{lunDevice + "/ioerr_cnt", port} {
		if m, err := h.i.Marks(t.Context(), target); err == nil {
			t.Errorf("without %s: %v", missing, m)
		}
		h.write(missing, "0x1f\n")
	}
	base, err := h.i.Marks(t.Context(), target)
	if err != nil || len(base) != 1 || base["10.0.0.1:3260"].Errors != 31 {
		t.Fatalf("marks: %+v, %v", base, err)
	}
	want := func(what string, f transport.Failed) {
		t.Helper()
		m, err := h.i.Marks(t.Context(), target)
		if got, why := m.Since(base, nil); err != nil || got != f {
			t.Errorf("%s: %s (%s), %v, want %s", what, got, why, err, f)
		}
	}
	want("nothing", transport.FailedNo)
	h.write(lunDevice+"/ioerr_cnt", "0x20\n")
	want("an error", transport.FailedYes)
	h.write(lunDevice+"/ioerr_cnt", "0x1f\n")
	h.write(lunDevice+"/iotmo_cnt", "0x0\n")
	want("no timeout", transport.FailedNo)
	h.write(lunDevice+"/iotmo_cnt", "0x1\n")
	want("a timeout", transport.FailedYes)
	h.write(lunDevice+"/iotmo_cnt", "0x0\n")
	h.write(port, "51000\n")
	want("a new connection", transport.FailedUnknown)
}
