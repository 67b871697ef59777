//go:build kernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/preflight"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelIscsidAsked: a real iscsid takes a request of the size that is known of its version, and
// of no other; one that hangs is found; and all that leaves it as it was.
func TestKernelIscsidAsked(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "iscsiadm", "--version").Output()
	mustPass(t, "iscsiadm", err)
	version, text, known := openiscsi.ParseVersion(string(out))
	size := openiscsi.RequestSize(version)
	if !known || size == 0 {
		t.Fatalf("pkg/openiscsi does not know the requests of open-iscsi %s: add their size", text)
	}
	d := openiscsi.Daemon{}
	for _, right := range []int{size, 0, size} {
		mustPass(t, "ask", d.Ask(t.Context(), right))
	}
	for _, wrong := range []int{size - 8, size + 8} {
		if err := d.Ask(t.Context(), wrong); !errors.Is(err, openiscsi.ErrRequestSize) {
			t.Errorf("a request of %d bytes, where %d are right: %v", wrong, size, err)
		}
		mustPass(t, "ask after it", d.Ask(t.Context(), size))
	}
	place, err := (&openiscsi.Host{Proc: "/proc"}).Open()
	mustPass(t, "iscsid's place", err)
	if program, replaced := place.Daemon(); filepath.Base(program) != "iscsid" || replaced {
		t.Errorf("iscsid is %q, replaced %t", program, replaced)
	}
	place.Close()

	pids, err := exec.CommandContext(t.Context(), "pidof", "iscsid").Output()
	mustPass(t, "pidof", err)
	signal := func(s string) {
		t.Helper()
		_, err := exec.CommandContext(context.WithoutCancel(t.Context()), "kill", append([]string{"-" + s}, strings.Fields(string(pids))...)...).Output()
		mustPass(t, s, err)
	}
	signal("STOP")
	defer signal("CONT")
	if err := (openiscsi.Daemon{Patience: 2 * time.Second}).Ask(t.Context(), size); !errors.Is(err, openiscsi.ErrSilent) {
		t.Errorf("iscsid is stopped: %v", err)
	}
	signal("CONT")
	mustPass(t, "ask it again", d.Ask(t.Context(), size))
}

// TestKernelHostIscsiadm: the iscsiadm that is used is that of iscsid's mount namespace, as of one
// that runs in a container of its own: name and records are there, and nowhere else.
func TestKernelHostIscsiadm(t *testing.T) {
	const name = "iqn.2026-11.io.nearflash.test:contained"
	m := newMachine(t)
	contained(t, name)
	host := &openiscsi.Host{Proc: "/proc"}
	node := preflight.Node{Run: hostexec.New(), Sysfs: "/sys", InitiatorNameFile: "/etc/iscsi/initiatorname.iscsi", OpenISCSI: host}
	mustPass(t, "preflight", node.ISCSI(t.Context()))
	if got, err := node.InitiatorName(); got != name || err != nil {
		t.Errorf("the initiator is %q, %v", got, err)
	}
	const id = "contained"
	_, err := m.svc.CreateVolume(t.Context(), id, 16*mib, target.Thin)
	mustPass(t, "create", err)
	c, err := m.svc.ExportVolume(t.Context(), id, name, target.Account{Username: chapUser, Password: chapWord}, 1)
	mustPass(t, "export", err)
	at := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}}}
	i := iscsi.New(hostexec.New(), iscsi.Config{InitiatorName: name, Host: host})
	o, err := i.Connect(t.Context(), at, &volume.Credentials{Username: chapUser, Password: chapWord})
	mustPass(t, "connect", err)
	if o.SizeBytes != 16*mib {
		t.Errorf("origin %+v", o)
	}
	place, err := host.Open()
	mustPass(t, "iscsid's place", err)
	defer place.Close()
	record := filepath.Join("/var/lib/iscsi/nodes", c.IQN)
	if _, err := os.Stat(place.Path(record)); err != nil {
		t.Errorf("the record in iscsid's place: %v", err)
	}
	if _, err := os.Stat(record); err == nil {
		t.Error("there is a record here")
	}
	mustPass(t, "disconnect", i.Disconnect(t.Context(), at))
	if _, err := os.Stat(place.Path(record)); err == nil {
		t.Error("the record is left")
	}
	mustPass(t, "unexport", m.svc.UnexportVolume(t.Context(), id, "", ""))
	mustPass(t, "delete", m.svc.DeleteVolume(t.Context(), id))
}

// contained replaces the guest's iscsid, until the test ends, by one whose files are its own.
func contained(t *testing.T, name string) {
	t.Helper()
	// One that is asked to end takes its process group with it, which is the agent's.
	const script = `set -e
for dir in /etc/iscsi /var/lib/iscsi; do mount -t tmpfs none $dir; done
echo "InitiatorName=$1" > /etc/iscsi/initiatorname.iscsi
kill -KILL $(pidof iscsid)
while pidof iscsid; do sleep 0.05; done
exec iscsid -f`
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", name)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	mustPass(t, "start an iscsid", cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		// The guest's agent starts its own again.
		awaitIscsid(t, func(place *openiscsi.Place) bool { return (openiscsi.Daemon{}).Ask(context.Background(), 0) == nil })
	})
	awaitIscsid(t, func(place *openiscsi.Place) bool {
		b, err := os.ReadFile(place.Path("/etc/iscsi/initiatorname.iscsi"))
		program, _ := place.Daemon()
		select {
		case err := <-ended:
			t.Fatalf("iscsid has ended: %v: %s", err, said.String())
		default:
		}
		return err == nil && program != "" && strings.Contains(string(b), name) && (openiscsi.Daemon{}).Ask(t.Context(), 0) == nil
	})
}

func awaitIscsid(t *testing.T, good func(*openiscsi.Place) bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		place, err := (&openiscsi.Host{Proc: "/proc"}).Open()
		if err != nil {
			t.Fatal(err)
		}
		done := good(place)
		place.Close()
		if done {
			return
		}
	}
	t.Fatal("iscsid is not as it should be after a minute")
}
