package attach

import (
	"context"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// StepFills is one turn of RunFills.
func (a *Attacher) StepFills(ctx context.Context) { a.turnFills(ctx) }

// BeginFill makes RunFills know of a fill.
func (a *Attacher) BeginFill(id volume.ID) { a.fills.begin(id, time.Time{}) }
