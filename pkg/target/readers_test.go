package target_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/target"
)

// TestReaders: several initiators read a volume, by one target, and none of them may write; who
// comes or goes leaves the session and the admission of the others alone, and so does a restart of
// the server (states.md, Readers).
func TestReaders(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thin)
	mustExport(t, svc, "v1", nodeA, "a", 1)
	if !m.writable("v1", nodeA) {
		t.Fatal("the owner may not write")
	}
	read := func(initiator, who string) {
		t.Helper()
		if _, err := svc.ExportVolumeReadOnly(t.Context(), "v1", initiator, account(who), 2); err != nil {
			t.Fatal(err)
		}
	}
	exports := func(want ...string) map[string]string {
		t.Helper()
		v, err := svc.GetVolume(t.Context(), "v1")
		if err != nil || len(v.Exports) != len(want) {
			t.Fatalf("%+v, %v; want %q", v.Exports, err, want)
		}
		names := map[string]string{}
		for _, e := range v.Exports {
			names[e.Initiator] = e.Admission
			if !e.ReadOnly || e.Generation != 2 || m.writable("v1", e.Initiator) {
				t.Errorf("%+v is no reader", e)
			}
		}
		return names
	}
	if err := svc.UnexportVolume(t.Context(), "v1", nodeA, ""); err != nil {
		t.Fatal(err)
	}
	read(nodeA, "a")
	m.kernel.Session(iqnBase+"v1:g2", nodeA)
	first := exports(nodeA)
	read(nodeB, "b")
	m.wantTargets(t, "v1", "v1:g2")
	both := exports(nodeA, nodeB)
	if first[nodeA] != both[nodeA] || both[nodeA] == both[nodeB] {
		t.Errorf("admissions %v became %v when another reader came", first, both)
	}
	v, err := svc.GetVolume(t.Context(), "v1")
	if err != nil || !v.Exports[0].LoggedIn {
		t.Errorf("the first reader has lost its session: %+v, %v", v.Exports, err)
	}
	stop()
	m.kernel.Reboot()
	m.lvm.Reboot()
	svc, stop = m.start(t)
	defer func() { stop() }()
	if again := exports(nodeA, nodeB); again[nodeA] != both[nodeA] || again[nodeB] != both[nodeB] {
		t.Errorf("admissions %v became %v with a restart", both, again)
	}
	if err := svc.UnexportVolume(t.Context(), "v1", nodeA, both[nodeA]); err != nil {
		t.Fatal(err)
	}
	exports(nodeB)
	if err := m.login("v1", nodeA, "a"); err == nil {
		t.Error("a reader that was shut out is let in")
	}
	if err := m.login("v1", nodeB, "b"); err != nil {
		t.Errorf("the other reader: %v", err)
	}
	var exported *target.ExportedError
	if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 3); !errors.As(err, &exported) {
		t.Errorf("a writer beside a reader: %v", err)
	}
}

// TestReadersOfEarlierVersion: a server of before there were readers would let all of them write. It
// refuses a record of version 2, as this one does of a version that it does not know.
func TestReadersOfEarlierVersion(t *testing.T) {
	svc, m := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	file := filepath.Join(m.dir, "v1.json")
	for _, c := range []struct {
		export  func() error
		version string
	}{
		{func() error {
			_, err := svc.ExportVolumeReadOnly(t.Context(), "v1", nodeA, account("a"), 1)
			return err
		}, `"version": 2`},
		{func() error { _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 2); return err }, `"version": 1`},
	} {
		if err := c.export(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(b), c.version) {
			t.Errorf("the record of exports has not %s: %v", c.version, err)
		}
	}
}
