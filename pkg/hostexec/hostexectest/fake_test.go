package hostexectest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearflash/nearflash/pkg/hostexec"
	"github.com/nearflash/nearflash/pkg/hostexec/hostexectest"
)

// recorder stands in for *testing.T to see what the fake complains about.
type recorder struct {
	errors   []string
	cleanups []func()
}

func (*recorder) Helper()            {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) finish() {
	for _, f := range r.cleanups {
		f()
	}
}

func TestFakeAnswersInOrder(t *testing.T) {
	f := hostexectest.New(t)
	f.On("lvs vg0/a").Fail(5, "not found").Once()
	f.On("lvs vg0/a").Return("there")
	cmd := hostexec.Command("lvs", "vg0/a")
	cmd.Stdin = strings.NewReader("in")

	_, err := f.Run(t.Context(), cmd)
	var exit *hostexec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode != 5 {
		t.Fatalf("first call: %v, want exit code 5", err)
	}
	res, err := f.Run(t.Context(), cmd)
	if err != nil || string(res.Stdout) != "there" {
		t.Fatalf("second call: %q, %v", res.Stdout, err)
	}
	if diff := cmp.Diff([]string{"lvs vg0/a", "lvs vg0/a"}, f.Lines()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := f.Calls()[0].Stdin; got != "in" {
		t.Errorf("stdin %q", got)
	}
}

func TestFakeReportsSurprises(t *testing.T) {
	r := &recorder{}
	f := hostexectest.New(r)
	f.On("lvs").Once()
	if _, err := f.Run(t.Context(), hostexec.Command("lvsx")); err == nil {
		t.Error("an unexpected command succeeded")
	}
	r.finish()
	want := []string{"unexpected command: lvsx", `command "lvs" was expected 1 more time(s)`}
	if diff := cmp.Diff(want, r.errors); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
