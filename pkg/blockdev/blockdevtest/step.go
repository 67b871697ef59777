package blockdevtest

import "context"

// Step is told of what a process of a machine does, in words: before and after each change,
// and before each look ("before create x", "after create x", "look at x"). It can end the
// process there by not returning. A nil Step is nobody.
type Step func(what string)

// Change makes a change at once: no process ends between its parts. What comes before one is
// told only of a change that is made.
func (s Step) Change(ctx context.Context, what string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.tell("before " + what)
	err := do()
	s.tell("after " + what)
	return err
}

// Query tells of a look, and returns the error of ctx.
func (s Step) Query(ctx context.Context, what string) error {
	s.tell("look at " + what)
	return ctx.Err()
}

func (s Step) tell(what string) {
	if s != nil {
		s(what)
	}
}
