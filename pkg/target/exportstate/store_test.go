package exportstate_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/target/exportstate"
)

func record() exportstate.Record {
	return exportstate.Record{
		Version: 1, Volume: "v1", VolumeUUID: "uuid",
		Exports: []exportstate.Export{{Initiator: "iqn.a", Username: "u", Password: "top-secret-word", Generation: 4, Admission: "ABC"}},
	}
}

func open(t *testing.T, dir string) *exportstate.Store {
	t.Helper()
	s, err := exportstate.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSaveLoadDelete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir)
	if err := s.Save(record()); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load("v1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(record(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	info, err := os.Stat(filepath.Join(dir, "v1.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	empty := record()
	empty.Exports = nil
	if err := s.Save(empty); err != nil {
		t.Fatal(err)
	}
	if names, err := s.List(); err != nil || len(names) > 0 {
		t.Errorf("list %v, %v", names, err)
	}
	if got, err = s.Load("v1"); err != nil || got.Volume != "v1" || got.Exports != nil {
		t.Errorf("load of nothing: %+v, %v", got, err)
	}
	if err := s.Delete("v1"); err != nil {
		t.Errorf("second delete: %v", err)
	}
}

func TestOpenLocksAndCleans(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".tmp-123"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(filepath.Join(dir, ".tmp-123")); !os.IsNotExist(err) {
		t.Errorf("the half-written file is still there: %v", err)
	}
	if _, err := exportstate.Open(dir); !errors.Is(err, exportstate.ErrLocked) {
		t.Errorf("second open: %v, want ErrLocked", err)
	}
}

func TestLoadRefusesDamage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for name, content := range map[string]string{
		"not json":       `{"password":"top-secret-word`,
		"other version":  `{"version":2,"volume":"v1"}`,
		"another volume": `{"version":1,"volume":"v2"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, "v1.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.Load("v1")
		if err == nil || strings.Contains(err.Error(), "top-secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, record()); strings.Contains(text, "top-secret") {
			t.Errorf("%s prints the password: %s", format, text)
		}
	}
}

// TestOfBefore: exports that an earlier version stored have a name, always the same.
func TestOfBefore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir)
	of := `{"version":1,"volume":"v1","volumeUUID":"uuid","exports":[{"initiator":"iqn.a","username":"u","password":"p","generation":4}]}`
	if err := os.WriteFile(filepath.Join(dir, "v1.json"), []byte(of), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := s.Load("v1")
		if err != nil || len(got.Exports) != 1 || got.Exports[0].Admission != "generation-4" {
			t.Fatalf("got %+v, %v; want an admission generation-4", got, err)
		}
		if err := s.Save(got); err != nil {
			t.Fatal(err)
		}
	}
}
