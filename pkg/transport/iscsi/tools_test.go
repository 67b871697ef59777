package iscsi

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
	"github.com/nearflash/nearflash/pkg/openiscsi"
	"github.com/nearflash/nearflash/pkg/volume"
)

// ofHost has an initiator use the iscsiadm of a host, whose only process is the first one, with the
// test's folder as its root.
func (h *host) ofHost() {
	h.t.Helper()
	h.write("proc/1/status", "Name:\tinit\nUid:\t0\t0\t0\t0\nCapEff:\tff\n")
	h.write("proc/1/ns/mnt", "")
	h.write("proc/1/net/unix", "")
	if err := os.Symlink(h.dir, filepath.Join(h.dir, "proc/1/root")); err != nil {
		h.t.Fatal(err)
	}
	h.i = New(h.run, Config{Sysfs: filepath.Join(h.dir, "sys"), Dev: filepath.Join(h.dir, "dev"), Records: []string{"/var/nodes", "/etc/nodes"}, LockDir: "/lock",
		Host: &openiscsi.Host{Proc: filepath.Join(h.dir, "proc")}})
}

func (h *host) there(path string) bool {
	_, err := os.Lstat(filepath.Join(h.dir, path))
	return err == nil
}

// TestHostRecords: the host's iscsiadm has its records where it likes, and what the image's has left,
// with a password in it, goes.
func TestHostRecords(t *testing.T) {
	const (
		text    = "# BEGIN RECORD 2.1.8\nnode.name = " + iqn + "\n# END RECORD\n"
		command = "iscsiadm --mode node --targetname " + iqn + " --portal 192.0.2.1:3260"
		ours    = "var/nodes/" + iqn + "/192.0.2.1,3260"
		theirs  = "etc/nodes/" + iqn + "/192.0.2.1,3260,1/default"
	)
	login := func(h *host, record string) {
		h.run.On(command + " --login").Do(func(_ context.Context, c hostexectest.Call) (string, error) {
			b, err := os.ReadFile(filepath.Join(h.dir, record))
			if known, _ := recordedAccount(filepath.Join(h.dir, record)); err != nil || known == nil || known.Password != "top-secret" {
				t.Errorf("the record that iscsiadm reads is %q, %v", b, err)
			}
			h.session("3", "192.0.2.1", "3260")
			h.lunDevice("3", "0", "sda", "naa.1", "2048")
			return "", nil
		}).Once()
	}
	made := func(h *host) {
		h.run.On(command + " --op new").Do(func(context.Context, hostexectest.Call) (string, error) {
			h.write(theirs, text)
			return "", nil
		}).Once()
	}
	cred := &volume.Credentials{Username: "u", Password: "top-secret"}
	for name, prepare := range map[string]func(h *host){
		"no record":  made,
		"the host's": func(h *host) { h.write(theirs, text); h.run.On(command) },
		"the image's, which the host's does not know": func(h *host) {
			h.write(ours, text)
			made(h)
			h.run.On(command).Fail(errNoObjects, "no records")
		},
		"of both": func(h *host) { h.write(ours, text); h.write(theirs, text); made(h) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.ofHost()
			login(h, theirs)
			prepare(h)
			if _, err := h.i.Connect(t.Context(), at("192.0.2.1:3260"), cred); err != nil {
				t.Fatal(err)
			}
			if h.there("var/nodes/" + iqn) {
				t.Error("the image's record is still there")
			}
			if left, err := filepath.Glob(filepath.Join(h.dir, "etc/.nearflash-*")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
	// A volume that was attached by the image's leaves nothing behind.
	h := newHost(t)
	h.ofHost()
	h.write(ours, text)
	h.session("3", "192.0.2.1", "3260")
	h.run.On(command + " --logout").Once()
	h.run.On(command+" --op delete").Fail(errNoObjects, "no records").Once()
	if err := h.i.Disconnect(t.Context(), at("192.0.2.1:3260")); err != nil {
		t.Fatal(err)
	}
	if h.there("var/nodes/" + iqn) {
		t.Error("the image's record is still there")
	}
}
