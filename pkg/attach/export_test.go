package attach

import (
	"context"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// StepHydrations is one turn of RunHydrations.
func (a *Attacher) StepHydrations(ctx context.Context) { a.turnHydrations(ctx) }

// BeginHydration makes RunHydrations know of a hydration.
func (a *Attacher) BeginHydration(id volume.ID) { a.hydrations.begin(id, time.Time{}) }
