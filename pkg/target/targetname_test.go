package target_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/target"
)

func mustExport(t *testing.T, svc *target.Service, volume, initiator, who string, generation int64) target.Connection {
	t.Helper()
	c, err := svc.ExportVolume(t.Context(), volume, initiator, account(who), generation)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m *machine) wantTargets(t *testing.T, volume string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, m.targets(volume)); diff != "" {
		t.Errorf("targets of %s (-want +got):\n%s", volume, diff)
	}
}

// TestOldSessionFindsNoTarget: a node that was shut out, and is admitted again later, does
// not get the session of its former admission back (states.md, The record).
func TestOldSessionFindsNoTarget(t *testing.T) {
	svc, m := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	mustExport(t, svc, "v1", nodeA, "a", 5)
	old := m.targets("v1")[0]
	for _, step := range []struct {
		initiator, who string
		generation     int64
	}{{nodeB, "b", 6}, {nodeA, "a", 7}, {nodeA, "a", 8}} {
		if step.initiator != nodeA || step.generation == 7 {
			if err := svc.UnexportVolume(t.Context(), "v1", "", ""); err != nil {
				t.Fatal(err)
			}
			m.wantTargets(t, "v1")
		}
		mustExport(t, svc, "v1", step.initiator, step.who, step.generation)
		if err := m.loginTo(old, nodeA, "a"); err == nil {
			t.Fatalf("generation %d: the session of generation 5 is let in", step.generation)
		}
		if err := m.login("v1", step.initiator, step.who); err != nil {
			t.Errorf("generation %d: %v", step.generation, err)
		}
	}
	m.wantTargets(t, "v1", "v1:g8")
	v, err := svc.GetVolume(t.Context(), "v1")
	if err != nil || len(v.Exports) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestNameOfBefore: the export that an earlier version stored keeps its name as long as it
// is the same admission, so that the node's session goes on; the next one has a new name.
func TestNameOfBefore(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	restart := func() {
		t.Helper()
		stop()
		svc, stop = m.start(t)
	}
	defer func() { stop() }()
	mustCreate(t, svc, "v1", target.Thin)
	mustExport(t, svc, "v1", nodeA, "a", 5)
	record := `{"version":1,"volume":"v1","volumeUUID":"uuid-1","exports":[{"initiator":"` + nodeA + `","username":"user","password":"password-of-a","generation":5}]}`
	if err := os.WriteFile(filepath.Join(m.dir, "v1.json"), []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	restart()
	for range 2 {
		m.wantTargets(t, "v1", "v1")
		// The account of another call is let in by the same name.
		if c := mustExport(t, svc, "v1", nodeA, "new", 5); c.IQN != iqnBase+"v1" {
			t.Errorf("exported again as %s", c.IQN)
		}
		if err := m.loginTo("v1", nodeA, "new"); err != nil {
			t.Error(err)
		}
		restart()
	}
	if v, err := svc.GetVolume(t.Context(), "v1"); err != nil || len(v.Exports) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	mustExport(t, svc, "v1", nodeA, "a", 6)
	m.wantTargets(t, "v1", "v1:g6")
	if err := m.loginTo("v1", nodeA, "a"); err == nil {
		t.Error("the name of before still lets the node in")
	}
}

// TestSameAdmissionSameTarget: what is asked for twice is not made anew, also over a
// restart, and no step of it touches the session.
func TestSameAdmissionSameTarget(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	mustCreate(t, svc, "v1", target.Thin)
	first := mustExport(t, svc, "v1", nodeA, "a", 5)
	changes := len(m.kernel.Changes())
	again := mustExport(t, svc, "v1", nodeA, "a", 5)
	stop()
	svc, stop = m.start(t)
	defer stop()
	third := mustExport(t, svc, "v1", nodeA, "a", 5)
	if first.IQN != again.IQN || first.IQN != third.IQN {
		t.Errorf("names %s, %s, %s", first.IQN, again.IQN, third.IQN)
	}
	if got := m.kernel.Changes()[changes:]; len(got) > 0 {
		t.Errorf("the kernel's tree was changed: %q", got)
	}
}

// TestPrefixVolumes: of volumes whose names begin alike, each keeps its own.
func TestPrefixVolumes(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	defer func() { stop() }()
	names := []string{"v", "v1", "v1-g5", "v1.g5", "v1g5"}
	for _, name := range names {
		mustCreate(t, svc, name, target.Thin)
		mustExport(t, svc, name, nodeA, "a", 5)
	}
	mustExport(t, svc, "v1", nodeA, "a", 6)
	if err := svc.UnexportVolume(t.Context(), "v", "", ""); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		m.wantTargets(t, "v")
		m.wantTargets(t, "v1", "v1:g6")
		for _, name := range names[2:] {
			m.wantTargets(t, name, name+":g5")
		}
	}
	check()
	stop()
	_, stop = m.start(t)
	check()
	stop()
	// A record that nobody has: all targets of that volume go, and no other's.
	if err := os.Remove(filepath.Join(m.dir, "v1.json")); err != nil {
		t.Fatal(err)
	}
	_, stop = m.start(t)
	m.wantTargets(t, "v1")
	m.wantTargets(t, "v1-g5", "v1-g5:g5")
	m.wantTargets(t, "v1g5", "v1g5:g5")
}

// TestTargetsOfAnUnreadableRecord: shutting everybody out needs no record.
func TestTargetsOfAnUnreadableRecord(t *testing.T) {
	svc, m := started(t)
	mustCreate(t, svc, "v1", target.Thin)
	mustExport(t, svc, "v1", nodeA, "a", 5)
	if err := os.WriteFile(filepath.Join(m.dir, "v1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := svc.UnexportVolume(t.Context(), "v1", "", ""); err != nil {
		t.Fatal(err)
	}
	m.wantTargets(t, "v1")
	if err := svc.DeleteVolume(t.Context(), "v1"); err != nil {
		t.Error(err)
	}
}
