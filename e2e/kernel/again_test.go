//go:build kernel

package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/target"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/transport/iscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// TestKernelAdmittedAgain: a node is shut out while its devices and a pod stay, another one
// writes, and the node is admitted again before anybody has asked its plugin. Its session of
// the earlier admission stays lost, so that what is behind it writes nothing over what is
// newer; the next stage ends it (states.md, The record).
func TestKernelAdmittedAgain(t *testing.T) {
	m := newMachine(t)
	n := m.node(t.TempDir(), onOneSSD())
	modes := []volume.CacheMode{volume.ModeWriteback}
	if every() {
		modes = append(modes, volume.ModeWritethrough, volume.ModeNone)
	}
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			m.t = t
			m.admitAgain(n, mode)
		})
	}
	m.t = t
}

func (m *machine) admitAgain(n *node, mode volume.CacheMode) {
	t, ctx := m.t, m.t.Context()
	d := m.volume(n, "again-"+string(mode), 64*mib, cached(mode, 32*mib))
	// A volume of which the same happens, but that stays the node's: it tells how long the
	// initiator needs.
	same := m.volume(n, "same-"+string(mode), 16*mib, cached(volume.ModeNone, 0))
	d.req.Block, same.req.Block = true, true
	d.stage()
	same.stage()
	old := d.target().IQN
	d.writeDirty(d.device(), pattern(1, 8*mib))
	stray := openDirect(t, d.device())

	m.patience("45") // long after what follows
	for _, v := range []*disk{d, same} {
		mustPass(t, "shut out", m.svc.UnexportVolume(ctx, string(v.req.ID), "", ""))
	}
	written := make(chan error, 1)
	go func() { // in writeback it is in the cache alone
		_, err := stray.WriteAt(aligned(4*mib), 0)
		written <- err
	}()
	newer := pattern(2, 16*mib)
	m.writeAs(initiatorB, d, 2, newer)

	d.publish(3)
	if mode == volume.ModeWriteback { // and now it may go to the origin
		m.must("dmsetup", "message", "nf-"+string(d.req.ID), "0", "migration_threshold", "2048")
	}
	begun := time.Now()
	same.publish(1)
	soon(t, "a session of the same admission is there again", func() bool { return sessionState(t, same.target().IQN) == "LOGGED_IN" })
	time.Sleep(3*time.Since(begun) + 3*time.Second)
	if got := sessionState(t, old); got == "LOGGED_IN" || got == "" {
		t.Errorf("the session of the earlier admission is %q", got)
	}
	// As the storage server sees it, and as an initiator would.
	if err := compare("/dev/"+storageVG+"/nf-"+string(d.req.ID), newer, 0); err != nil {
		t.Errorf("what the second owner wrote is gone: %v", err)
	}

	if err := <-written; err == nil && mode != volume.ModeWriteback {
		t.Error("the stray pod's write went somewhere")
	}
	mustPass(t, "close", stray.Close())
	// udev looks at what has been written to, and waits for the lost session as long as that
	// may come back. The kubelet repeats the stage.
	soon(t, "the volume is staged", func() bool { return d.n.Stage(ctx, d.req) == nil })
	if got := sessionState(t, old); old == d.target().IQN || got != "" {
		t.Errorf("the stage left the session with %s %q", old, got)
	}
	check(t, d.device(), newer, 0)
	for _, v := range []*disk{d, same} {
		v.unstage()
		v.remove()
	}
}

// writeAs writes to a volume as another node that has it for a while.
func (m *machine) writeAs(initiator string, d *disk, generation int64, data []byte) {
	t, ctx := m.t, m.t.Context()
	t.Helper()
	c, err := m.svc.ExportVolume(ctx, string(d.req.ID), initiator, target.Account{Username: chapUser, Password: chapWord}, generation)
	mustPass(t, "export", err)
	at := transport.Target{Source: volume.Source{ISCSI: volume.ISCSI{Portals: c.Portals, IQN: c.IQN, LUN: int(c.LUN)}}}
	i := iscsi.New(hostexec.New(), iscsi.Config{InitiatorName: initiator})
	if c.IQN == d.target().IQN {
		// One initiator has one session with a target: the other node's is elsewhere.
		write(t, "/dev/"+storageVG+"/nf-"+string(d.req.ID), data, 0, true)
	} else {
		o, err := i.Connect(ctx, at, &volume.Credentials{Username: chapUser, Password: chapWord})
		mustPass(t, "connect", err)
		write(t, o.Paths[0], data, 0, true)
		mustPass(t, "disconnect", i.Disconnect(ctx, at))
	}
	mustPass(t, "unexport", m.svc.UnexportVolume(ctx, string(d.req.ID), "", ""))
}

// sessionState is what the initiator says of its session with a target, "" if it has none.
func sessionState(t *testing.T, iqn string) string {
	t.Helper()
	names, err := filepath.Glob("/sys/class/iscsi_session/*/targetname")
	mustPass(t, "sessions", err)
	for _, f := range names {
		if b, err := os.ReadFile(f); err != nil || strings.TrimSpace(string(b)) != iqn {
			continue
		}
		b, err := os.ReadFile(filepath.Join(filepath.Dir(f), "state"))
		mustPass(t, "state", err)
		return strings.TrimSpace(string(b))
	}
	return ""
}

// patience is for how many seconds requests wait for a session that is lost from now on: it
// is two minutes otherwise.
func (m *machine) patience(seconds string) {
	m.t.Helper()
	files, err := filepath.Glob("/sys/class/iscsi_session/*/recovery_tmo")
	mustPass(m.t, "sessions", err)
	for _, f := range files {
		mustPass(m.t, "patience", os.WriteFile(f, []byte(seconds), 0))
	}
}
