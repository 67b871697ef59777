package moves

import (
	"bytes"
	"encoding/base64"
	"errors"
	"regexp"
	"strings"
	"testing"

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
		dst, src := encodeKey(b.PublicKey()), encodeKey(a.PublicKey())
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

// The kernel's target takes NULL for "no password".
func TestNoPasswordCanBeginWithNULL(t *testing.T) {
	if strings.Contains(secretAlphabet, "N") || len(secretAlphabet) != 64 {
		t.Error("the alphabet has an N, or is not one of base64")
	}
	base64.NewEncoding(secretAlphabet) // panics on a letter that is there twice
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
