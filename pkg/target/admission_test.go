package target_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nearflash/nearflash/pkg/target"
)

// admitted returns the name of the admission that an initiator has to v1.
func admitted(t *testing.T, svc *target.Service, initiator string) string {
	t.Helper()
	v, err := svc.GetVolume(t.Context(), "v1")
	if err != nil || len(v.Exports) != 1 || v.Exports[0].Initiator != initiator || v.Exports[0].Admission == "" {
		t.Fatalf("got %+v, %v; want %s admitted, with a name", v.Exports, err, initiator)
	}
	return v.Exports[0].Admission
}

// TestLateOrder: an order to end an admission comes after the same node was admitted
// again, under the same generation, and ends nothing; restarts of the server change no
// name. (A controller stalls between its question and its order, states.md, "The
// record".)
func TestLateOrder(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	restart := func() {
		t.Helper()
		stop()
		svc, stop = m.start(t)
	}
	export := func() {
		t.Helper()
		if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account("a"), 1); err != nil {
			t.Fatal(err)
		}
	}
	end := func(admission string, wantLogin bool) {
		t.Helper()
		if err := svc.UnexportVolume(t.Context(), "v1", nodeA, admission); err != nil {
			t.Fatal(err)
		}
		if err := m.login("v1", nodeA, "a"); (err == nil) != wantLogin {
			t.Fatalf("login after the end of %s: %v, want login %v", admission, err, wantLogin)
		}
	}
	mustCreate(t, svc, "v1", target.Thin)
	export()
	seen := admitted(t, svc, nodeA)
	restart()
	if again := admitted(t, svc, nodeA); again != seen {
		t.Fatalf("admission %s is called %s after a restart", seen, again)
	}
	export() // the next controller's
	end(seen, true)
	restart()
	end(seen, true)
	end(admitted(t, svc, nodeA), false)

	// One that a version before has stored: asked about, and granted anew meanwhile.
	export()
	of := `{"version":1,"volume":"v1","volumeUUID":"uuid-1","exports":[{"initiator":"` + nodeA + `","username":"user","password":"password-of-a","generation":1}]}`
	if err := os.WriteFile(filepath.Join(m.dir, "v1.json"), []byte(of), 0o600); err != nil {
		t.Fatal(err)
	}
	restart()
	defer func() { stop() }()
	seen = admitted(t, svc, nodeA)
	export()
	end(seen, true)
	end("", false) // and as the controller of a version before asks
}
