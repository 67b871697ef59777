package moves

import (
	"bytes"
	"encoding/base64"
	"errors"
	"regexp"
	"testing"

	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/volume"
)

func TestBothSidesAgree(t *testing.T) {
	m := volume.MoveID{Name: "v-2", UID: "5f0c2d0a-0000-4000-8000-000000000001"}
	form := regexp.MustCompile(`^[\x21-\x7e]{16}$`)
	seen := map[string]bool{}
	for range 200 {
		b, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		a, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		dst, src := b.Public(), a.Public()
		atB, err := agree(b, src, m, dst, src)
		if err != nil {
			t.Fatal(err)
		}
		atA, err := agree(a, dst, m, dst, src)
		if err != nil {
			t.Fatal(err)
		}
		if !atA.Equal(atB) || atA.Username != m.Name {
			t.Fatalf("the nodes derived different credentials for %s", atA.Username)
		}
		if !form.MatchString(atA.Password) || seen[atA.Password] {
			t.Fatalf("password of %d characters, seen before: %v", len(atA.Password), seen[atA.Password])
		}
		seen[atA.Password] = true
		other, err := agree(a, dst, volume.MoveID{Name: m.Name, UID: "5f0c2d0a-0000-4000-8000-000000000002"}, dst, src)
		if err != nil || other.Password == atA.Password {
			t.Fatalf("the secret is not bound to the object: %v", err)
		}
	}
}

// TestVector: nodes of two versions derive the same, before an upgrade and after it. The keys are
// those of RFC 7748, 6.1; the password was computed by hand, with hmac of Python.
func TestVector(t *testing.T) {
	own, err := keyagreement.Parse("dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=")
	if err != nil {
		t.Fatal(err)
	}
	const peer = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08="
	got, err := agree(own, peer, volume.MoveID{Name: "v-2", UID: "5f0c2d0a-0000-4000-8000-000000000001"}, own.Public(), peer)
	if want := (volume.Credentials{Username: "v-2", Password: "kc9OWIGeavOY8AYS"}); err != nil || !got.Equal(want) {
		t.Errorf("%s %s, want %s %s (%v)", got.Username, got.Password, want.Username, want.Password, err)
	}
}

func TestBadKeys(t *testing.T) {
	own, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "no base64": "***", "short": base64.StdEncoding.EncodeToString([]byte("short")),
		"low order": base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0}, 32)),
	} {
		if _, err := agree(own, text, volume.MoveID{Name: "v-2", UID: "u"}, text, text); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
