package peerexport_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/peerexport"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lio/liotest"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	device    = "/dev/dm-7"
	initiator = "iqn.1993-08.org.debian:01:b"
)

func account(password string) volume.Credentials {
	return volume.Credentials{Username: "pvc-1-3", Password: password}
}

func exporter(k *liotest.Kernel, node string) *peerexport.Exporter {
	return &peerexport.Exporter{Tree: lio.NewTree(k), Node: node, NodeIP: "192.0.2.7"}
}

func TestExport(t *testing.T) {
	k := liotest.New()
	e := exporter(k, "node-a")
	got, err := e.Export(t.Context(), "pvc-1", device, strings.ToUpper(initiator), account("a-password-of-16"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Portals) != 1 || got.Portals[0] != "192.0.2.7:3260" || got.LUN != 0 {
		t.Errorf("export %+v", got)
	}
	login := func(who, password string) error {
		dev, err := k.Login(got.IQN, got.Portals[0], who, "pvc-1-3", password)
		if err == nil && dev != device {
			t.Errorf("the LUN is %s", dev)
		}
		return err
	}
	if err := login(initiator, "a-password-of-16"); err != nil || k.Writable(got.IQN, initiator) {
		t.Errorf("login: %v, writable: %v", err, k.Writable(got.IQN, initiator))
	}
	if login(initiator, "another-password") == nil || login("iqn.1993-08.org.debian:01:c", "a-password-of-16") == nil {
		t.Error("somebody else is let in")
	}
	before := len(k.Changes())
	if again, err := e.Export(t.Context(), "pvc-1", device, initiator, account("a-password-of-16")); err != nil || again.IQN != got.IQN || len(k.Changes()) != before {
		t.Errorf("again: %v, changed %v", err, k.Changes()[before:])
	}
	if _, err := e.Export(t.Context(), "pvc-1", device, initiator, account("another-password")); err != nil {
		t.Fatal(err)
	}
	if login(initiator, "a-password-of-16") == nil || login(initiator, "another-password") != nil {
		t.Error("the new password did not replace the old one")
	}
	if changes := k.Changes()[before:]; len(changes) != 1 {
		t.Errorf("a new password changed %v", changes)
	}
}

func TestUnexportAndList(t *testing.T) {
	k := liotest.New()
	a, b := exporter(k, "node-a"), exporter(k, "node-b")
	for _, e := range []*peerexport.Exporter{a, b} {
		for _, name := range []string{"v2", "v1"} {
			if _, err := e.Export(t.Context(), name, device, initiator, account("a-password-of-16")); err != nil {
				t.Fatal(err)
			}
		}
	}
	list := func(e *peerexport.Exporter, want ...string) {
		t.Helper()
		if got, err := e.List(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("list %v, %v, want %v", got, err, want)
		}
	}
	list(a, "v1", "v2")
	for range 2 {
		if err := a.Unexport(t.Context(), "v1"); err != nil {
			t.Fatal(err)
		}
		list(a, "v2")
	}
	list(b, "v1", "v2")

	// A crash in the middle leaves a half that is listed, and can be removed.
	crash := errors.New("crash")
	left := 3
	k.Step = func(string) error {
		if left--; left < 0 {
			return crash
		}
		return nil
	}
	if _, err := a.Export(t.Context(), "v3", device, initiator, account("a-password-of-16")); !errors.Is(err, volume.ErrUnavailable) || !errors.Is(err, crash) {
		t.Errorf("got %v", err)
	}
	k.Step = nil
	list(a, "v2", "v3")
	if err := a.Unexport(t.Context(), "v3"); err != nil {
		t.Fatal(err)
	}
	list(a, "v2")
}

// nearflash-target on the same machine removes what it does not know of its own.
func TestNamesAreNotThoseOfTheStorageServer(t *testing.T) {
	k := liotest.New()
	if _, err := exporter(k, "node-a").Export(t.Context(), "v1", device, initiator, account("a-password-of-16")); err != nil {
		t.Fatal(err)
	}
	tree := lio.NewTree(k)
	for _, server := range []string{"lend", "lend.", "s1"} {
		targets, terr := tree.Targets("iqn.2026-11.io.nearflash:" + server + ":")
		stores, serr := tree.Backstores(server + ":")
		if err := errors.Join(terr, serr); err != nil || len(targets)+len(stores) > 0 {
			t.Errorf("server %s would take %v, %v: %v", server, targets, stores, err)
		}
	}
}

func TestExportErrors(t *testing.T) {
	cases := map[string]struct {
		name    string
		change  func(*peerexport.Exporter)
		want    error
		wantSay string
	}{
		"bad name":   {"../x", func(*peerexport.Exporter) {}, volume.ErrInvalid, "volume ID"},
		"no address": {"v1", func(e *peerexport.Exporter) { e.NodeIP = "" }, volume.ErrInvalid, "address"},
		"no LIO": {"v1", func(e *peerexport.Exporter) {
			e.Prepare = func(context.Context) error { return errors.New("kernel module iscsi_target_mod is missing") }
		}, volume.ErrUnavailable, "iscsi_target_mod"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			k := liotest.New()
			e := exporter(k, "node-a")
			tc.change(e)
			_, err := e.Export(t.Context(), tc.name, device, initiator, account("a-password-of-16"))
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.wantSay) || len(k.Changes()) > 0 {
				t.Errorf("got %v, changed %v", err, k.Changes())
			}
		})
	}
}

func TestIPv6Portal(t *testing.T) {
	k := liotest.New()
	e := exporter(k, "node-a")
	e.NodeIP, e.Port = "2001:db8::7", 13260
	got, err := e.Export(t.Context(), "v1", device, initiator, account("a-password-of-16"))
	if err != nil || got.Portals[0] != "[2001:db8::7]:13260" {
		t.Errorf("got %+v, %v", got, err)
	}
}
