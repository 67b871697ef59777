package attach

import "context"

// StepFills looks at every fill that the journal knows once, as RunFills does.
func (a *Attacher) StepFills(ctx context.Context) {
	a.findFills(ctx)
	a.stepFills(ctx)
}
