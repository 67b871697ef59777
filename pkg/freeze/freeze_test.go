package freeze

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/volume"
)

// runner runs a function as guard.
type runner struct {
	guard   func(file, token string) error
	running atomic.Int32
}

func (r *runner) Run(_ context.Context, cmd hostexec.Cmd) (hostexec.Result, error) {
	if !cmd.Changes || cmd.Device != "nf-v" || cmd.Args[0] != Command {
		return hostexec.Result{}, errors.New("no guard of the volume's device: " + cmd.String())
	}
	r.running.Add(1)
	defer r.running.Add(-1)
	return hostexec.Result{}, r.guard(cmd.Args[1], cmd.Args[2])
}

func (r *runner) Await(ctx context.Context, devices ...string) error {
	for r.running.Load() > 0 {
		select {
		case <-ctx.Done():
			return hostexec.ErrRuns
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// obeys is a guard that freezes at once and thaws when its order is gone.
func obeys(file, token string) error {
	if err := writePhase(phaseFile(file), phaseFrozen); err != nil {
		return err
	}
	for wanted(file, token) {
		time.Sleep(time.Millisecond)
	}
	return writePhase(phaseFile(file), "")
}

func fails(said string) error {
	return hostexec.NewExitError(hostexec.Command("freeze"), 1, []byte(said+"\n"))
}

func left(t *testing.T, h *Host) []string {
	t.Helper()
	files, err := os.ReadDir(h.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		out = append(out, f.Name())
	}
	return out
}

var order = Order{ID: "v", Token: "t", Device: "nf-v", DevNo: "0:0", Path: "/none"}

// TestFreeze: a freeze that lasted until it was ended is told from all others, and leaves nothing.
func TestFreeze(t *testing.T) {
	for name, tc := range map[string]struct {
		guard                func(file, token string) error
		wantFreeze, wantThaw string
	}{
		"frozen until then": {guard: obeys},
		"thawed before": {wantThaw: errOver.Error(), guard: func(file, _ string) error {
			_ = writePhase(phaseFile(file), phaseFrozen)
			time.Sleep(3 * look)
			_ = writePhase(phaseFile(file), "")
			return fails(errOver.Error())
		}},
		"guard killed while it is frozen": {wantThaw: "was killed", guard: func(file, _ string) error {
			_ = writePhase(phaseFile(file), phaseFrozen)
			time.Sleep(3 * look)
			return hostexec.NewExitError(hostexec.Command("freeze"), -1, nil)
		}},
		"it cannot be frozen": {wantFreeze: errForeign.Error(), guard: func(string, string) error { return fails(errForeign.Error()) }},
		"guard killed before": {wantFreeze: "was killed", guard: func(file, _ string) error {
			_ = writePhase(phaseFile(file), "freezing")
			return hostexec.NewExitError(hostexec.Command("freeze"), -1, nil)
		}},
		"no program": {wantFreeze: "not installed", guard: func(string, string) error { return hostexec.ErrNotInstalled }},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := Open(&runner{guard: tc.guard}, t.TempDir(), "boot")
			if err != nil {
				t.Fatal(err)
			}
			f, err := h.Freeze(t.Context(), order)
			wantSaid(t, "freeze", err, tc.wantFreeze)
			if err == nil {
				if tc.wantThaw != "" {
					<-f.Done()
				}
				wantSaid(t, "thaw", f.Thaw(t.Context()), tc.wantThaw)
			}
			if files := left(t, h); len(files) > 0 {
				t.Errorf("left %q", files)
			}
		})
	}
}

func wantSaid(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// TestRecover: a process that comes after another one finds what that may have left frozen, and
// has its guard thaw it.
func TestRecover(t *testing.T) {
	for name, tc := range map[string]struct {
		boot  string
		guard func(file, token string) error
	}{
		"the guard is there": {"boot", obeys},
		"the guard was killed": {"boot", func(file, _ string) error {
			_ = writePhase(phaseFile(file), phaseFrozen)
			time.Sleep(3 * look)
			return hostexec.NewExitError(hostexec.Command("freeze"), -1, nil)
		}},
		"another boot": {"later", func(file, _ string) error {
			_ = writePhase(phaseFile(file), phaseFrozen)
			time.Sleep(3 * look)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			run := &runner{guard: tc.guard}
			first, err := Open(run, t.TempDir(), "boot")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := first.Freeze(t.Context(), order); err != nil {
				t.Fatal(err)
			}
			next, err := Open(run, first.Dir, tc.boot)
			if err != nil {
				t.Fatal(err)
			}
			ids, err := next.Left(t.Context())
			if err != nil || !slices.Equal(ids, []volume.ID{"v"}) {
				t.Fatalf("left %q, %v", ids, err)
			}
			if err := next.Recover(t.Context(), "v"); err != nil {
				t.Error(err)
			}
			if files := left(t, next); len(files) > 0 {
				t.Errorf("left %q", files)
			}
			if err := next.Recover(t.Context(), "v"); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}
