package attach

import (
	"context"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// StepHydrations is one turn of RunHydrations.
func (a *Attacher) StepHydrations(ctx context.Context) { a.turnHydrations(ctx) }

// BeginHydration makes RunHydrations know of a hydration.
func (a *Attacher) BeginHydration(id volume.ID) { a.hydrations.begin(id, time.Time{}) }

// UseDM has a process go on with another kernel.
func (a *Attacher) UseDM(c devmapper.Client) { a.DM, a.stack.DM = c, c }

// UseBlocks has a process go on with other devices.
func (a *Attacher) UseBlocks(b Blocks) { a.Blocks, a.stack.Blocks, a.ssd.Blocks = b, b, b }

// UsePool has a process go on with another pool.
func (a *Attacher) UsePool(p PoolView) { a.Pool, a.ssd.Pool = p, p }
