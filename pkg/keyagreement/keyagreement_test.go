package keyagreement

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// alice and bob have the keys of RFC 7748, 6.1.
const (
	alice       = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo="
	alicePublic = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
	bob         = "XasIfmJKikt54X+Lg4AO5m87sSkmGLb9HC+LJ/+I4Os="
	bobPublic   = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08="
)

func parse(t *testing.T, text string) *Key {
	t.Helper()
	k, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestVector: what is derived today is derived by every later version: the passwords of what
// is admitted rest on it.
func TestVector(t *testing.T) {
	a, b := parse(t, alice), parse(t, bob+"\n")
	if a.Public() != alicePublic || b.Public() != bobPublic || a.Text() != alice {
		t.Errorf("public halves %s and %s", a.Public(), b.Public())
	}
	for info, want := range map[string]string{"one": wantOne, "two": wantTwo} {
		atA, errA := a.Password(bobPublic, info)
		atB, errB := b.Password(alicePublic, info)
		if err := errors.Join(errA, errB); err != nil || atA != atB || atA != want {
			t.Errorf("%s: %q and %q, want %q (%v)", info, atA, atB, want, err)
		}
	}
}

// HKDF of the shared secret that RFC 7748 gives, computed by hand with hmac of Python.
const wantOne, wantTwo = "54dbk3u3IqGT1sfC", "t4X9LdafOzy3Q3LM"

func TestBothSidesAgree(t *testing.T) {
	form := regexp.MustCompile(`^[\x21-\x7e]{16}$`)
	seen := map[string]bool{}
	for range 200 {
		a, errA := New()
		b, errB := New()
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		atA, errA := a.Password(b.Public(), "info")
		atB, errB := parse(t, b.Text()).Password(a.Public(), "info")
		if err := errors.Join(errA, errB); err != nil || atA != atB || !form.MatchString(atA) || seen[atA] {
			t.Fatalf("%d characters, both the same: %v, seen before: %v (%v)", len(atA), atA == atB, seen[atA], err)
		}
		seen[atA] = true
	}
}

// The kernel's target takes NULL for "no password".
func TestNoPasswordCanBeginWithNULL(t *testing.T) {
	if strings.Contains(alphabet, "N") || len(alphabet) != 64 {
		t.Error("the alphabet has an N, or is not one of base64")
	}
	base64.NewEncoding(alphabet) // panics on a letter that is there twice
}

func TestBadKeys(t *testing.T) {
	own := parse(t, alice)
	short := base64.StdEncoding.EncodeToString([]byte("short"))
	for name, text := range map[string]string{
		"empty": "", "no base64": "***", "short": short,
		"low order": base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0}, 32)),
	} {
		if _, err := own.Password(text, "info"); !errors.Is(err, ErrKey) {
			t.Errorf("public half, %s: %v", name, err)
		}
	}
	for _, text := range []string{"", "***", short, alice + "AAAA"} {
		if _, err := Parse(text); !errors.Is(err, ErrKey) || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("private half: %v", err)
		}
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	k := parse(t, alice)
	text, err := json.Marshal(map[string]any{"key": k})
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{string(text), fmt.Sprint(k), fmt.Sprintf("%v %+v %#v %s %x", k, k, k, k, k), fmt.Sprintf("%+v", struct{ K *Key }{k})} {
		if strings.Contains(shown, alice[:8]) || !strings.Contains(shown, "redacted") {
			t.Errorf("shown: %s", shown)
		}
	}
}
