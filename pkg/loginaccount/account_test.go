package loginaccount

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/volume"
)

// The keys of RFC 7748, 6.1: one is the controller's, the other one a node's.
const (
	controllerText = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo="
	nodeText       = "XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os="
)

func parse(t *testing.T, text string) *keyagreement.Key {
	t.Helper()
	k, err := keyagreement.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func other(t *testing.T) *keyagreement.Key {
	t.Helper()
	k, err := keyagreement.New()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func admission() Admission {
	return Admission{Volume: "pvc-1", Fence: volume.Fence{UID: "5f0c2d0a-0000-4000-8000-000000000001", Generation: 3, Node: "node-a"}}
}

// TestVector: the account of a version outlives it: servers and attachments keep what it is
// derived of. It was computed by hand, with hmac of Python.
func TestVector(t *testing.T) {
	controller, node := parse(t, controllerText), parse(t, nodeText)
	want := volume.Credentials{Username: "nf-nuz4uh64-opfmrbqf", Password: "uSBt8OXVzmUqyUS7"}
	at, errNode := AtNode(node, controller.Public(), admission())
	for_, errController := ForNode(controller, node.Public(), admission())
	if err := errors.Join(errNode, errController); err != nil || !at.Equal(want) || !for_.Equal(want) {
		t.Errorf("at the node %s %s, at the controller %s %s, want %s (%v)", at.Username, at.Password, for_.Username, for_.Password, want.Username, err)
	}
	// As nearflash-target and open-iscsi take it.
	if form := regexp.MustCompile(`^nf-[a-z2-7]{8}-[a-z2-7]{8}$`); !form.MatchString(at.Username) {
		t.Errorf("name %q", at.Username)
	}
}

// TestBound: each part of an admission, and each key, makes another password.
func TestBound(t *testing.T) {
	controller, node := parse(t, controllerText), parse(t, nodeText)
	base := admission()
	seen := map[string]string{}
	add := func(what string, own *keyagreement.Key, peer string, a Admission) {
		t.Helper()
		c, err := ForNode(own, peer, a)
		if err != nil {
			t.Fatal(err)
		}
		if before, twice := seen[c.Password]; twice {
			t.Errorf("%s and %s have one password", what, before)
		}
		seen[c.Password] = what
	}
	add("the account", controller, node.Public(), base)
	for what, change := range map[string]func(*Admission){
		"another volume":     func(a *Admission) { a.Volume = "pvc-2" },
		"another record":     func(a *Admission) { a.Fence.UID = "other" },
		"another node":       func(a *Admission) { a.Fence.Node = "node-b" },
		"another generation": func(a *Admission) { a.Fence.Generation++ },
		"shifted parts":      func(a *Admission) { a.Volume, a.Fence.Node = "pvc-1n", "ode-a" },
	} {
		a := base
		change(&a)
		add(what, controller, node.Public(), a)
	}
	add("another key of the node", controller, other(t).Public(), base)
	add("another key of the controller", other(t), node.Public(), base)
}

// TestOtherNode: what a node knows, its key, every public half and every admission, does not
// give it the account of another node.
func TestOtherNode(t *testing.T) {
	controller, node, evil := other(t), other(t), other(t)
	want, err := ForNode(controller, node.Public(), admission())
	if err != nil {
		t.Fatal(err)
	}
	for name, peer := range map[string]string{"the controller's half": controller.Public(), "the node's half": node.Public()} {
		for _, halves := range [][2]string{{controller.Public(), node.Public()}, {node.Public(), controller.Public()}, {controller.Public(), evil.Public()}} {
			got, err := derive(evil, peer, admission(), halves[0], halves[1])
			if err != nil || got.Password == want.Password {
				t.Errorf("%s gives the password (%v)", name, err)
			}
		}
	}
}

func TestNoKey(t *testing.T) {
	for _, peer := range []string{"", "x", "AAAA"} {
		if c, err := ForNode(other(t), peer, admission()); !errors.Is(err, volume.ErrInvalid) || c.Password != "" {
			t.Errorf("%q at the controller: %v", peer, err)
		}
		if c, err := AtNode(other(t), peer, admission()); !errors.Is(err, volume.ErrInvalid) || c.Password != "" {
			t.Errorf("%q at the node: %v", peer, err)
		}
	}
}

// TestNodeKeyChanged is the table "A node has another key" of states.md.
func TestNodeKeyChanged(t *testing.T) {
	controller, node := parse(t, controllerText).Public(), parse(t, nodeText).Public()
	c2, n2 := other(t).Public(), other(t).Public()
	for what, tc := range map[string]struct {
		username string
		want     bool
	}{
		"as they are":                           {name(controller, node), false},
		"another key of the node":               {name(controller, n2), true},
		"another key of the controller":         {name(c2, node), false},
		"other keys of both":                    {name(c2, n2), false},
		"the Secret's":                          {"nearflash", false},
		"the Secret's, that looks like one":     {"nf-" + short(controller), false},
		"a server that does not tell its name":  {"", false},
		"derived by another form than this one": {"nf2-" + short(controller) + "-" + short(n2), false},
	} {
		if got := NodeKeyChanged(tc.username, controller, node); got != tc.want {
			t.Errorf("%s: %v, want %v", what, got, tc.want)
		}
	}
}

// TestOpenKey: a node that is started again has the same key; a file that is no key is
// replaced.
func TestOpenKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "login.key")
	open := func() string {
		t.Helper()
		key, err := OpenKey(file)
		if err != nil {
			t.Fatal(err)
		}
		return key.Public()
	}
	first := open()
	if again := open(); again != first {
		t.Errorf("key %q after a restart, it was %q", again, first)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(file, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if next := open(); next == first || next != open() {
		t.Errorf("in place of a broken file: %q", next)
	}
	if _, err := OpenKey(t.TempDir()); err == nil {
		t.Error("a folder is a key")
	}
}
