package scrub

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/hostexec"
)

// place is a machine whose guard is a function, and whose device may be left suspended.
type place struct {
	*Guards

	guard     func(Order) (Result, error)
	suspended bool
	resumed   int
	runs      error
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{guard: func(o Order) (Result, error) { return Result{Judgements: make([]Judgement, len(o.Pieces))}, nil }}
	g, err := Open(p, p, t.TempDir()+"/scrubs", "boot")
	if err != nil {
		t.Fatal(err)
	}
	p.Guards = g
	return p
}

func (p *place) Run(_ context.Context, cmd hostexec.Cmd) (hostexec.Result, error) {
	if !cmd.Changes || cmd.Device != "nf-v" || cmd.Args[0] != Command {
		return hostexec.Result{}, errors.New("no guard of the volume's device: " + cmd.String())
	}
	o, err := readOrder(cmd.Args[1])
	if err != nil {
		return hostexec.Result{}, err
	}
	r, err := p.guard(o)
	if err != nil {
		return hostexec.Result{}, err
	}
	b, err := json.Marshal(r)
	return hostexec.Result{Stdout: b}, err
}

func (p *place) Await(context.Context, ...string) error { return p.runs }

func (p *place) Info(context.Context, string) (map[string]devmapper.Info, error) {
	return map[string]devmapper.Info{"nf-v": {Name: "nf-v", HasLive: true, Suspended: p.suspended}}, nil
}

func (p *place) Resume(context.Context, string) error {
	p.suspended = false
	p.resumed++
	return nil
}

func (p *place) wantLeft(t *testing.T, want int) {
	t.Helper()
	left, err := p.Left(t.Context())
	if err != nil || len(left) != want {
		t.Errorf("left %v, %v", left, err)
	}
}

var testOrder = Order{ID: "v", Device: "nf-v", Pieces: make([]Piece, 2)}

func TestGuards(t *testing.T) {
	p := newPlace(t)
	p.guard = func(o Order) (Result, error) {
		if p.wantLeft(t, 1); o.Boot != "boot" {
			t.Errorf("%+v", o)
		}
		return Result{Judgements: []Judgement{Same, Corrupted}}, nil
	}
	r, err := p.Judge(t.Context(), testOrder)
	if err != nil || len(r.Judgements) != 2 || r.Judgements[1] != Corrupted || p.resumed > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	p.wantLeft(t, 0)

	p.Outside = func() error { return errors.New("no hostPID") }
	p.guard = func(Order) (Result, error) {
		t.Error("a guard that would end with the container")
		return Result{}, nil
	}
	if _, err := p.Judge(t.Context(), testOrder); err == nil || err.Error() != "no hostPID" {
		t.Errorf("got %v", err)
	}
	p.Outside = nil
	p.guard = func(Order) (Result, error) { return Result{Judgements: []Judgement{Same}}, nil }
	if _, err := p.Judge(t.Context(), testOrder); err == nil {
		t.Error("judgements of some pieces were taken for those of all")
	}
}

// TestGuardsKilled: a guard that was killed leaves the device suspended; whoever began it resumes it.
func TestGuardsKilled(t *testing.T) {
	p := newPlace(t)
	p.guard = func(Order) (Result, error) {
		p.suspended = true
		return Result{}, hostexec.NewExitError(hostexec.Command("scrub"), -1, nil)
	}
	_, err := p.Judge(t.Context(), testOrder)
	if err == nil || !strings.Contains(err.Error(), "was killed") || p.suspended {
		t.Errorf("%v, suspended %t", err, p.suspended)
	}
	p.wantLeft(t, 0)

	p.guard = func(Order) (Result, error) {
		return Result{}, hostexec.NewExitError(hostexec.Command("scrub"), 1, []byte("it does not come to rest\n"))
	}
	if _, err := p.Judge(t.Context(), testOrder); err == nil || err.Error() != "it does not come to rest" {
		t.Errorf("got %v", err)
	}
}

// TestGuardsLeft: the next plugin waits for the guard, resumes what is suspended, and leaves devices of
// another boot alone.
func TestGuardsLeft(t *testing.T) {
	for boot, want := range map[string]int{"boot": 1, "before": 0} {
		p := newPlace(t)
		p.suspended = true
		b, err := json.Marshal(Order{ID: "v", Device: "nf-v", Boot: boot})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.file("v"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if boot == "boot" {
			p.runs = hostexec.ErrRuns
			if err := p.Recover(t.Context(), "v"); !errors.Is(err, hostexec.ErrRuns) || p.resumed > 0 {
				t.Errorf("a guard at work was not waited for: %v", err)
			}
			p.wantLeft(t, 1)
			p.runs = nil
		}
		if err := p.Recover(t.Context(), "v"); err != nil || p.resumed != want {
			t.Errorf("boot %s: resumed %d times, %v", boot, p.resumed, err)
		}
		p.wantLeft(t, 0)
		if err := p.Recover(t.Context(), "v"); err != nil {
			t.Errorf("nothing is left: %v", err)
		}
	}
}

// TestGuardsHeld: nobody resumes a device whose guard lives, whatever has become of the command that
// began it; and no guard begins whose order is another's.
func TestGuardsHeld(t *testing.T) {
	p := newPlace(t)
	p.suspended, p.Patience = true, 60*time.Millisecond
	b, err := json.Marshal(Order{ID: "v", Device: "nf-v", Boot: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.file("v"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	guard, err := holdOrder(p.file("v"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Recover(t.Context(), "v"); !errors.Is(err, hostexec.ErrRuns) || p.resumed > 0 {
		t.Errorf("a guard at work was not waited for: %v, resumed %d times", err, p.resumed)
	}
	p.wantLeft(t, 1)
	if _, err := runGuard([]string{p.file("v")}); !errors.Is(err, errHeld) {
		t.Errorf("a second guard: %v", err)
	}
	p.Patience = 0
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = guard.Close()
	}()
	if err := p.Recover(t.Context(), "v"); err != nil || p.resumed != 1 {
		t.Errorf("%v, resumed %d times", err, p.resumed)
	}
	p.wantLeft(t, 0)
	if _, err := runGuard([]string{p.file("v")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a guard without an order: %v", err)
	}
}

// TestGuardHolds: a guard has the lock of its order while it decides, and gives a bad one back.
func TestGuardHolds(t *testing.T) {
	p := newPlace(t)
	if err := os.WriteFile(p.file("v"), []byte(`{"blockBytes":65536,"pieces":[{"offset":65536,"length":65536}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := runGuard([]string{p.file("v")}); !errors.Is(err, errOrder) {
		t.Errorf("a piece behind its block: %v", err)
	}
	f, err := holdOrder(p.file("v"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := os.Remove(p.file("v")); err != nil {
		t.Fatal(err)
	}
	if err := stillNamed(f, p.file("v")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an order that was removed: %v", err)
	}
	if err := os.WriteFile(p.file("v"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := stillNamed(f, p.file("v")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an order that was replaced: %v", err)
	}
}

// TestGuardsUnreadable: an order that says nothing still has its device resumed.
func TestGuardsUnreadable(t *testing.T) {
	for _, text := range []string{"", "{", "\x00\x00\x00"} {
		p := newPlace(t)
		p.suspended = true
		if err := os.WriteFile(p.file("v"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.Recover(t.Context(), "v"); err != nil || p.resumed != 1 {
			t.Errorf("%q: %v, resumed %d times", text, err, p.resumed)
		}
		p.wantLeft(t, 0)
	}
}
