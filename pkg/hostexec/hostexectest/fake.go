// Package hostexectest has a scripted [hostexec.Runner] for tests that must not
// run host programs.
package hostexectest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// TB is the part of testing.TB that the fake needs.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(f func())
}

// Call is one recorded run.
type Call struct {
	Name  string
	Args  []string
	Stdin string
	Env   []string
	// ReadOnly, Changes and Device are those of the command.
	ReadOnly, Changes bool
	Device            string
}

// Line is name and arguments joined by blanks, not redacted.
func (c Call) Line() string {
	return strings.Join(append([]string{c.Name}, c.Args...), " ")
}

// Handler answers a call; with it a test can keep state between calls.
type Handler func(ctx context.Context, call Call) (stdout string, err error)

// Fake is a Runner that answers by script. Rules are tried in the order they
// were added; the first one that still has uses left and whose prefix matches
// answers. A call without a rule fails the test. It is safe for concurrent use.
type Fake struct {
	t     TB
	mu    sync.Mutex
	rules []*Rule
	calls []Call
}

// Rule is one expectation of a Fake.
type Rule struct {
	prefix string
	handle Handler
	left   int // uses left, -1 without limit
	must   bool
}

var _ hostexec.Runner = (*Fake)(nil)

// New returns a Fake with no rules. At the end of the test it reports rules
// with a use count (see [Rule.Times]) that were not used up.
func New(t TB) *Fake {
	f := &Fake{t: t}
	t.Cleanup(f.checkUsed)
	return f
}

// On adds a rule for command lines that start with prefix (words joined by
// blanks; a whole last word must match). It answers with empty output any
// number of times until told otherwise.
func (f *Fake) On(prefix string) *Rule {
	r := &Rule{prefix: prefix, left: -1, handle: func(context.Context, Call) (string, error) { return "", nil }}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
	return r
}

// Return makes the rule succeed with stdout.
func (r *Rule) Return(stdout string) *Rule {
	return r.Do(func(context.Context, Call) (string, error) { return stdout, nil })
}

// Fail makes the rule end with an exit code and text on stderr.
func (r *Rule) Fail(exitCode int, stderr string) *Rule {
	return r.Do(func(_ context.Context, c Call) (string, error) {
		return "", hostexec.NewExitError(hostexec.Cmd{Name: c.Name, Args: c.Args}, exitCode, []byte(stderr))
	})
}

// Do makes the rule answer with h.
func (r *Rule) Do(h Handler) *Rule {
	r.handle = h
	return r
}

// Times limits the rule to n uses, all of which must happen.
func (r *Rule) Times(n int) *Rule {
	r.left, r.must = n, true
	return r
}

// Once is Times(1).
func (r *Rule) Once() *Rule {
	return r.Times(1)
}

// Run implements hostexec.Runner.
func (f *Fake) Run(ctx context.Context, cmd hostexec.Cmd) (hostexec.Result, error) {
	f.t.Helper()
	call := Call{Name: cmd.Name, Args: slices.Clone(cmd.Args), Env: slices.Clone(cmd.Env), ReadOnly: cmd.ReadOnly, Changes: cmd.Changes, Device: cmd.Device}
	if cmd.Stdin != nil {
		in, err := io.ReadAll(cmd.Stdin)
		if err != nil {
			return hostexec.Result{}, fmt.Errorf("read stdin: %w", err)
		}
		call.Stdin = string(in)
	}
	if err := ctx.Err(); err != nil {
		return hostexec.Result{}, fmt.Errorf("%s: %w", cmd, err)
	}
	handle := f.take(call)
	if handle == nil {
		f.t.Errorf("unexpected command: %s", call.Line())
		return hostexec.Result{}, hostexec.NewExitError(cmd, 127, []byte("unexpected command"))
	}
	out, err := handle(ctx, call)
	return hostexec.Result{Stdout: []byte(out)}, err
}

// Await implements hostexec.Runner: nothing goes on behind a call.
func (f *Fake) Await(context.Context, ...string) error { return nil }

// take records the call and finds its answer. Handlers run without the lock, so
// that they may call the Fake again.
func (f *Fake) take(call Call) Handler {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	line := call.Line()
	for _, r := range f.rules {
		if r.left == 0 || !matches(line, r.prefix) {
			continue
		}
		if r.left > 0 {
			r.left--
		}
		return r.handle
	}
	return nil
}

func matches(line, prefix string) bool {
	rest, ok := strings.CutPrefix(line, prefix)
	return ok && (rest == "" || rest[0] == ' ' || strings.HasSuffix(prefix, " "))
}

// Calls returns all calls so far, oldest first.
func (f *Fake) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Lines returns the command lines of all calls so far, oldest first.
func (f *Fake) Lines() []string {
	lines := []string{}
	for _, c := range f.Calls() {
		lines = append(lines, c.Line())
	}
	return lines
}

// Forget drops the record of calls; rules stay.
func (f *Fake) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

func (f *Fake) checkUsed() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.must && r.left > 0 {
			f.t.Errorf("command %q was expected %d more time(s)", r.prefix, r.left)
		}
	}
}
