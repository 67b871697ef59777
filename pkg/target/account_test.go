package target_test

import (
	"testing"

	"github.com/nearflash/nearflash/pkg/target"
)

// TestRotation: a new account is stored before the answer, so that it holds when the node
// learns where to log in, also after a restart; the account of a session at work stays
// until the session has ended (states.md, The account of an admission).
func TestRotation(t *testing.T) {
	m := newMachine(t)
	svc, stop := m.start(t)
	defer func() { stop() }()
	publish := func(who string, generation int64) {
		t.Helper()
		if _, err := svc.ExportVolume(t.Context(), "v1", nodeA, account(who), generation); err != nil {
			t.Fatal(err)
		}
	}
	valid := func(when, who string) {
		t.Helper()
		for _, other := range []string{"a", "b", "c"} {
			if err := m.login("v1", nodeA, other); (err == nil) != (other == who) {
				t.Errorf("%s: login with the account %s: %v; valid is %s alone", when, other, err, who)
			}
		}
	}
	mustCreate(t, svc, "v1", target.Thin)
	publish("a", 1)
	publish("b", 1)
	valid("published again, nobody logged in", "b")

	m.kernel.Session(iqnBase+"v1:g1", nodeA)
	publish("c", 1)
	valid("published again, logged in", "b")
	stop()
	svc, stop = m.start(t)
	valid("after a restart of the service", "b")

	if err := svc.UnexportVolume(t.Context(), "v1", nodeA, ""); err != nil {
		t.Fatal(err)
	}
	publish("c", 2)
	valid("published after the end of the session", "c")
}
