package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type record struct {
	State string
	N     int64
}

func open(t *testing.T, dir string) *Store[record] {
	t.Helper()
	s, err := Open[record](dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSaveLoadDelete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	s := open(t, dir)
	if _, err := s.Load("pvc-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Load of nothing: %v", err)
	}
	want := record{State: "Staged", N: 7}
	for _, r := range []record{{State: "Staging", N: 7}, want} {
		if err := s.Save("pvc-1", r); err != nil {
			t.Fatal(err)
		}
	}
	// A new process sees what the old one saved.
	if got, err := open(t, dir).Load("pvc-1"); err != nil || got != want {
		t.Errorf("Load = %+v, %v; want %+v", got, err, want)
	}
	for range 2 { // a missing record is success
		if err := s.Delete("pvc-1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Load("pvc-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Load after Delete: %v", err)
	}
}

// TestEarlierVersion: records of the version before are read.
func TestEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old.json"), []byte(`{"version":1,"key":"old","record":{"State":"Staged","N":7}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, dir).Load("old"); err != nil || got != (record{State: "Staged", N: 7}) {
		t.Errorf("Load = %+v, %v", got, err)
	}
}

func TestWhatACrashLeaves(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.Save("a", record{N: 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".tmp-123"), []byte(`{"half`), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if list, err := s.List(); err != nil || len(list) != 1 {
		t.Errorf("List = %v, %v", list, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the temporary file is left: %v, %v", entries, err)
	}
}

func TestCorrupt(t *testing.T) {
	cases := map[string]string{
		"empty":       "",
		"cut off":     `{"version":1,"key":"bad","record":{"Sta`,
		"no version":  `{"key":"bad","record":{}}`,
		"old version": `{"version":0,"key":"bad","record":{}}`,
		"other key":   `{"version":1,"key":"good","record":{}}`,
		"no record":   `{"version":1,"key":"bad"}`,
		"null":        `{"version":1,"key":"bad","record":null}`,
		"other type":  `{"version":1,"key":"bad","record":{"N":"x"}}`,
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			if err := s.Save("good", record{N: 1}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "bad.json")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Load("bad"); !errors.Is(err, ErrCorrupt) {
				t.Errorf("Load: %v, want ErrCorrupt", err)
			}
			list, err := s.List()
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "bad") {
				t.Errorf("List: %v, want ErrCorrupt with the name", err)
			}
			if diff := cmp.Diff([]record{{N: 1}}, list); diff != "" {
				t.Errorf("one bad record hides the others:\n%s", diff)
			}
			// Saving again keeps the evidence.
			if err := s.Save("bad", record{N: 2}); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(file + ".corrupt"); err != nil || string(b) != text {
				t.Errorf("evidence: %q, %v", b, err)
			}
			if got, err := s.Load("bad"); err != nil || got.N != 2 {
				t.Errorf("Load after Save: %+v, %v", got, err)
			}
			if keys, err := s.Keys(); err != nil || len(keys) != 2 {
				t.Errorf("Keys = %v, %v", keys, err)
			}
		})
	}
}

// Check implements Checker.
func (r record) Check() error {
	if r.State == "FromTheFuture" {
		return errors.New("unknown state FromTheFuture")
	}
	return nil
}

// TestNewer: what a newer program has written is neither read, nor replaced, nor
// removed, and the records beside it can be worked with.
func TestNewer(t *testing.T) {
	for name, text := range map[string]string{
		"format":       `{"version":11,"key":"new","record":{"State":"Staged","N":1}}`,
		"other format": `{"version":11,"records":[1,2,3]}`,
		"value":        `{"version":1,"key":"new","record":{"State":"FromTheFuture"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "new.json")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			s := open(t, dir)
			if err := s.Save("good", record{N: 1}); err != nil {
				t.Fatal(err)
			}
			_, loadErr := s.Load("new")
			for doing, err := range map[string]error{"Load": loadErr, "Save": s.Save("new", record{N: 2}), "Delete": s.Delete("new")} {
				if !errors.Is(err, ErrNewer) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "new") || !strings.Contains(err.Error(), "install that version again") {
					t.Errorf("%s: %v", doing, err)
				}
			}
			list, err := s.List()
			if !errors.Is(err, ErrNewer) {
				t.Errorf("List: %v, want ErrNewer", err)
			}
			if diff := cmp.Diff([]record{{N: 1}}, list); diff != "" {
				t.Errorf("one newer record hides the others:\n%s", diff)
			}
			if err := s.Delete("good"); err != nil {
				t.Error(err)
			}
			entries, err := os.ReadDir(dir)
			if b, rerr := os.ReadFile(file); err != nil || rerr != nil || string(b) != text || len(entries) != 1 {
				t.Errorf("the newer record is %q, %v; %v, %v", b, rerr, entries, err)
			}
		})
	}
}

func TestKeysThatAreNoFileNames(t *testing.T) {
	s := open(t, t.TempDir())
	for _, key := range []string{"", ".", "..", "../x", "a/b", ".hidden", strings.Repeat("a", 201)} {
		if err := s.Save(key, record{}); !errors.Is(err, ErrKey) {
			t.Errorf("Save(%q): %v, want ErrKey", key, err)
		}
		if _, err := s.Load(key); !errors.Is(err, ErrKey) {
			t.Errorf("Load(%q): %v, want ErrKey", key, err)
		}
	}
}

func TestRecordsAreForRootAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "j")
	s := open(t, dir)
	if err := s.Save("a", record{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "a.json"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"key":"k","record":{"State":"Staged","N":1}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decode[record]("k", b); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
			t.Errorf("error %v wraps neither ErrCorrupt nor ErrNewer", err)
		}
	})
}

// needy needs a format of its own.
type needy struct {
	record
	Least int
}

func (n needy) Format() int { return n.Least }

// TestFormatted: a record is written in the format that it needs, and no higher one, so that an
// older program reads what it can.
func TestFormatted(t *testing.T) {
	dir := t.TempDir()
	s, err := Open[needy](dir)
	if err != nil {
		t.Fatal(err)
	}
	for least, want := range map[int]string{0: `"version":6`, 6: `"version":6`, 7: `"version":7`, 8: `"version":8`} {
		if err := s.Save("a", needy{Least: least}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "a.json"))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%d: %s, %v; want %s", least, text, err, want)
		}
		if got, err := s.Load("a"); err != nil || got.Least != least {
			t.Errorf("%d: %+v, %v", least, got, err)
		}
	}
}
