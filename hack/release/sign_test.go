package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
)

// TestSign: whoever releases the chart can sign it with helm, and who installs it can verify that. An
// archive that was changed since, or that another key has signed, is refused.
func TestSign(t *testing.T) {
	const signer = "A Releaser"
	dir := t.TempDir()
	secret, public := keyrings(t, dir, signer)
	_, stranger := keyrings(t, t.TempDir(), signer)
	r := release{root: root, out: filepath.Join(dir, "release"), version: "v1.2.3"}
	if err := os.Mkdir(r.out, 0o700); err != nil {
		t.Fatal(err)
	}
	program := cmp.Or(os.Getenv("HELM"), "helm")
	if err := r.chart(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	helm := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		return string(out), err
	}
	// helm signs while it packs: the chart is unpacked and packed again, as it is.
	unpacked := filepath.Join(dir, "unpacked")
	if err := os.Mkdir(unpacked, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(r.out, "nearflash-1.2.3.tgz"), "-C", unpacked).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := helm("package", filepath.Join(unpacked, "nearflash"), "--destination", dir, "--sign", "--key", signer, "--keyring", secret); err != nil {
		t.Fatalf("sign: %v: %s", err, out)
	}
	archive := filepath.Join(dir, "nearflash-1.2.3.tgz")
	if out, err := helm("verify", archive, "--keyring", public); err != nil || !strings.Contains(out, signer) {
		t.Errorf("verify: %v: %s", err, out)
	}
	if out, err := helm("verify", archive, "--keyring", stranger); err == nil {
		t.Errorf("the key of somebody else verifies: %s", out)
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(archive, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := helm("verify", archive, "--keyring", public); err == nil || !strings.Contains(out, "sum does not match") {
		t.Errorf("a changed archive: %v: %s", err, out)
	}
}

// keyrings makes a key without a passphrase, and returns the files of its secret and public part.
func keyrings(t *testing.T, dir, name string) (secret, public string) {
	t.Helper()
	key, err := openpgp.NewEntity(name, "", "releaser@example.org", nil)
	if err != nil {
		t.Fatal(err)
	}
	secret, public = filepath.Join(dir, "secret.gpg"), filepath.Join(dir, "public.gpg")
	for path, write := range map[string]func(*os.File) error{
		secret: func(f *os.File) error { return key.SerializePrivate(f, nil) },
		public: func(f *os.File) error { return key.Serialize(f) },
	} {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(f); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return secret, public
}
