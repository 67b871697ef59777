package state

import (
	"context"

	"github.com/nearflash/nearflash/pkg/volume"
)

// Journal is that of a node, as the loops beside stage and unstage use it.
type Journal interface {
	// Entries are those of all its volumes; on error those that can be read. Entry is one of
	// them, nil if there is none.
	Entries() ([]Entry, error)
	Entry(id volume.ID) (*Entry, error)
	// Save writes an entry with a state, under the volume's lock.
	Save(ctx context.Context, e *Entry, s State) error
}
