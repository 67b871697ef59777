package lio_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lio/liotest"
)

const (
	iqn    = "iqn.2026-11.io.nearflash:s1:v1"
	portal = "192.0.2.1:3260"
	nodeA  = "iqn.1993-08.org.debian:01:a"
	nodeB  = "iqn.1993-08.org.debian:01:b"
)

func target() lio.Target {
	return lio.Target{
		IQN: iqn, Backstore: "v1", Device: "/dev/vg/nf-v1", Serial: strings.Repeat("0123456789abcdef", 2),
		Product: "nf-1", Unmap: true, Portals: []string{portal},
		ACLs: []lio.ACL{{Initiator: nodeA, Username: "user", Password: "password-of-a"}},
	}
}

func TestEnsureThenRemove(t *testing.T) {
	k := liotest.New()
	tree := lio.NewTree(k)
	if err := tree.Ensure(t.Context(), target()); err != nil {
		t.Fatal(err)
	}
	if dev, err := k.Login(iqn, portal, nodeA, "user", "password-of-a"); err != nil || dev != "/dev/vg/nf-v1" {
		t.Errorf("login: %q, %v", dev, err)
	}
	if _, err := k.Login(iqn, portal, nodeA, "user", "wrong"); err == nil {
		t.Error("a wrong password was accepted")
	}
	if _, err := k.Login(iqn, portal, nodeB, "user", "password-of-a"); err == nil {
		t.Error("another initiator was accepted")
	}
	before := len(k.Changes())
	if err := tree.Ensure(t.Context(), target()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{}, k.Changes()[before:]); diff != "" {
		t.Errorf("the second Ensure changed something (-want +got):\n%s", diff)
	}
	if err := tree.Remove(t.Context(), iqn, "v1"); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, tree)
	if err := tree.Remove(t.Context(), iqn, "v1"); err != nil {
		t.Errorf("the second Remove: %v", err)
	}
}

func wantEmpty(t *testing.T, tree *lio.Tree) {
	t.Helper()
	targets, err := tree.Targets("iqn.")
	if err != nil {
		t.Fatal(err)
	}
	stores, err := tree.Backstores("")
	if err != nil {
		t.Fatal(err)
	}
	if len(targets) > 0 || len(stores) > 0 {
		t.Errorf("left behind: targets %v, backstores %v", targets, stores)
	}
}

// product is the attribute of the target's backstore.
const product = "core/iblock_26110/v1/wwn/product_id"

// TestProduct: a LUN that is in use keeps the product that it has, unless that is
// one of ours for something else.
func TestProduct(t *testing.T) {
	k := liotest.New()
	tree := lio.NewTree(k)
	old := target()
	old.Product = ""
	if err := tree.Ensure(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	before := len(k.Changes())
	if err := tree.Ensure(t.Context(), target()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{}, k.Changes()[before:]); diff != "" {
		t.Errorf("a LUN in use was changed (-want +got):\n%s", diff)
	}
	if err := tree.Remove(t.Context(), iqn, "v1"); err != nil {
		t.Fatal(err)
	}
	if err := tree.Ensure(t.Context(), target()); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Read(product); err != nil || got != "nf-1" {
		t.Errorf("product %q, %v", got, err)
	}
}

func TestEnsureConverges(t *testing.T) {
	cases := map[string]func(*lio.Target){
		"other initiator":      func(w *lio.Target) { w.ACLs[0].Initiator = nodeB },
		"other password":       func(w *lio.Target) { w.ACLs[0].Password = "another-password" },
		"second portal":        func(w *lio.Target) { w.Portals = append(w.Portals, "[2001:db8::1]:3260") },
		"portal moved":         func(w *lio.Target) { w.Portals = []string{"192.0.2.2:3260"} },
		"device replaced":      func(w *lio.Target) { w.Device = "/dev/vg/other" },
		"another volume there": func(w *lio.Target) { w.Serial = strings.Repeat("f", 32) },
		"no discard":           func(w *lio.Target) { w.Unmap = false },
		"read-only":            func(w *lio.Target) { w.ReadOnly = true },
		"other product":        func(w *lio.Target) { w.Product = "nf-2" },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			k := liotest.New()
			tree := lio.NewTree(k)
			if err := tree.Ensure(t.Context(), target()); err != nil {
				t.Fatal(err)
			}
			want := target()
			change(&want)
			if err := tree.Ensure(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			for _, p := range want.Portals {
				dev, err := k.Login(iqn, p, want.ACLs[0].Initiator, "user", want.ACLs[0].Password)
				if err != nil || dev != want.Device {
					t.Errorf("login through %s: %q, %v", p, dev, err)
				}
			}
			if got, err := k.Read(product); err != nil || got != want.Product {
				t.Errorf("product %q, %v; want %q", got, err, want.Product)
			}
			if k.Writable(iqn, want.ACLs[0].Initiator) == want.ReadOnly {
				t.Errorf("writable is %v", !want.ReadOnly)
			}
			if want.ACLs[0].Initiator != nodeA {
				if _, err := k.Login(iqn, portal, nodeA, "user", "password-of-a"); err == nil {
					t.Error("the former initiator still gets in")
				}
			}
			if want.Portals[0] != portal {
				if _, err := k.Login(iqn, portal, nodeA, "user", "password-of-a"); err == nil {
					t.Error("the former portal still listens")
				}
			}
		})
	}
}

// A target for reading must be one from the first moment, and a volume that was
// exported must become writable again where it is exported for writing.
func TestReadOnly(t *testing.T) {
	for stop := 0; ; stop++ {
		k := liotest.New()
		tree := lio.NewTree(k)
		want := target()
		want.ReadOnly = true
		left := stop
		k.Step = func(string) error {
			if left == 0 {
				return errors.New("crash")
			}
			left--
			return nil
		}
		err := tree.Ensure(t.Context(), want)
		if k.Writable(iqn, nodeA) {
			t.Fatalf("stopped at change %d: writable", stop)
		}
		if err != nil {
			continue
		}
		k.Step = nil
		before := len(k.Changes())
		if err := tree.Ensure(t.Context(), want); err != nil || len(k.Changes()) != before {
			t.Errorf("the second Ensure changed %v, %v", k.Changes()[before:], err)
		}
		if err := tree.Ensure(t.Context(), target()); err != nil || !k.Writable(iqn, nodeA) {
			t.Errorf("for writing: %v, writable %v", err, k.Writable(iqn, nodeA))
		}
		return
	}
}

// TestCrashAnywhere stops after every single change of building and of removing a
// target, and expects both directions to finish from there.
func TestCrashAnywhere(t *testing.T) {
	crash := errors.New("crash")
	for _, first := range []string{"ensure", "remove"} {
		for stop := 0; ; stop++ {
			finished := false
			for _, then := range []string{"ensure", "remove"} {
				k := liotest.New()
				tree := lio.NewTree(k)
				run := map[string]func() error{
					"ensure": func() error { return tree.Ensure(t.Context(), target()) },
					"remove": func() error { return tree.Remove(t.Context(), iqn, "v1") },
				}
				if first == "remove" {
					if err := run["ensure"](); err != nil {
						t.Fatal(err)
					}
				}
				left := stop
				k.Step = func(string) error {
					if left == 0 {
						return crash
					}
					left--
					return nil
				}
				err := run[first]()
				finished = err == nil
				if !finished && !errors.Is(err, crash) {
					t.Fatalf("%s stopped at %d: %v", first, stop, err)
				}
				k.Step = nil
				if err := run[then](); err != nil {
					t.Errorf("%s after %s stopped at change %d: %v", then, first, stop, err)
				}
				if then == "remove" {
					wantEmpty(t, tree)
				} else if _, err := k.Login(iqn, portal, nodeA, "user", "password-of-a"); err != nil {
					t.Errorf("%s after %s stopped at change %d: %v", then, first, stop, err)
				}
			}
			if finished {
				if stop < 9 {
					t.Errorf("%s took only %d changes: the test did not see them", first, stop)
				}
				break
			}
		}
	}
}

// A target never lets anybody in without password while it is being built.
func TestNeverOpenWhileBuilding(t *testing.T) {
	for stop := 0; stop < 60; stop++ {
		k := liotest.New()
		left := stop
		k.Step = func(string) error {
			if left == 0 {
				return errors.New("crash")
			}
			left--
			return nil
		}
		err := lio.NewTree(k).Ensure(t.Context(), target())
		if _, lerr := k.Login(iqn, portal, nodeA, "", ""); lerr == nil {
			t.Fatalf("stopped at change %d: login without an account", stop)
		}
		if err == nil {
			return
		}
	}
	t.Error("never finished")
}

func TestEnsureWithoutDiscard(t *testing.T) {
	k := liotest.New()
	k.NoDiscard["/dev/vg/nf-v1"] = true
	if err := lio.NewTree(k).Ensure(t.Context(), target()); err != nil {
		t.Errorf("a device that cannot discard must still be exported: %v", err)
	}
}

func TestEnsureRefusesBadNames(t *testing.T) {
	cases := map[string]func(*lio.Target){
		"initiator leaves the tree": func(w *lio.Target) { w.ACLs[0].Initiator = "../../x" },
		"backstore leaves the tree": func(w *lio.Target) { w.Backstore = "a/b" },
		"no account":                func(w *lio.Target) { w.ACLs[0].Password = "" },
		"nobody":                    func(w *lio.Target) { w.ACLs = nil },
		"no portal":                 func(w *lio.Target) { w.Portals = nil },
		"short serial":              func(w *lio.Target) { w.Serial = "ab" },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			k := liotest.New()
			want := target()
			change(&want)
			if err := lio.NewTree(k).Ensure(t.Context(), want); err == nil {
				t.Error("was accepted")
			}
			if len(k.Changes()) > 0 {
				t.Errorf("changed %v", k.Changes())
			}
		})
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, target().ACLs); strings.Contains(text, "password-of-a") {
			t.Errorf("%s prints the password: %s", format, text)
		}
	}
}

func TestWWID(t *testing.T) {
	// Seen on Linux 7.2: serial 0123456789abcdef0123456789abcdef.
	want := "naa.60014050123456789abcdef012345678"
	if got := lio.WWID("0123456789abcdef0123456789abcdef"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
