package attach

import (
	"context"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/devmapper"
)

// UseDM has a process go on with another kernel.
func (a *Attacher) UseDM(c devmapper.Client) {
	a.DM, a.stack.DM, a.leases.Devices, a.hydrations.Devices = c, c, c, c
}

// UseBlocks has a process go on with other devices.
func (a *Attacher) UseBlocks(b Blocks) {
	a.Blocks, a.stack.Blocks, a.ssd.Blocks, a.leases.Discard = b, b, b, b.Discard
}

// UsePool has a process go on with another pool.
func (a *Attacher) UsePool(p PoolView) { a.Pool, a.ssd.Pool = p, p }

// StepPrewarms looks at the requests to prewarm once.
func (a *Attacher) StepPrewarms(ctx context.Context) { a.stepPrewarms(ctx) }

// Prewarming is how many copies are under way.
func (a *Attacher) Prewarming() int { return a.prewarms.count() }

// DetachCache has a volume go on without a cache that fails.
func (a *Attacher) DetachCache(ctx context.Context, e *state.Entry, cause string) error {
	return a.detachCache(ctx, e, cause)
}

// LeaveVanished removes the devices of a volume whose origin is gone.
func (a *Attacher) LeaveVanished(ctx context.Context, e *state.Entry) (left bool, err error) {
	return a.leaveVanished(ctx, e)
}
