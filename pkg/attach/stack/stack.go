// Package stack makes, changes, reads and removes the device-mapper devices of a volume
// (docs/design/states.md, Names on the host): the top device that the pod has, the data
// device and the origin below it, and what a warm move adds. It knows nothing of records, of
// the journal's states or of who may do what: that is decided above it.
package stack

import (
	"context"
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Blocks is what a Stack does to block devices themselves.
type Blocks interface {
	// Open opens a block device with flags of open(2).
	Open(path string, flags int) (blockdev.File, error)
	// RefuseDiscards has a device ("major:minor") refuse discards until its next table.
	RefuseDiscards(devno string) error
	// SetFlushes has a device pass flushes on, or end them, until its next table; PassesFlushes
	// tells which.
	SetFlushes(devno string, pass bool) error
	PassesFlushes(devno string) (bool, error)
}

// Meter takes the counters of volumes.
type Meter interface {
	// Final takes the last counts of a volume whose device is about to go.
	Final(ctx context.Context, id volume.ID)
	// Count takes the counts of all volumes and leaves their saving to later.
	Count(ctx context.Context)
}

// Heat counts how often the parts of volumes are read.
type Heat interface {
	// Begin counts the reads of a cached volume, if they are not counted yet, and Add adds
	// what was counted to what is kept, before a device goes or is longer.
	Begin(ctx context.Context, e *state.Entry)
	Add(ctx context.Context, e *state.Entry)
}

// Config is what a Stack works with.
type Config struct {
	DM     devmapper.Client
	Blocks Blocks
	// Heat is told when the cache of a volume becomes active; nil if nobody counts.
	Heat Heat
	// Meter is told when counters end; nil if nobody counts.
	Meter Meter
	// Sysfs is where the kernel shows its devices.
	Sysfs string
	// PollInterval is the time between two looks at a flush.
	PollInterval time.Duration
}

// Stack is the devices of a node's volumes. Calls for one volume are the caller's to
// serialise; what waits for lost paths may be told to fail beside any of them.
type Stack struct {
	Config
	// queueing has volumes whose devices were told to wait for lost paths (true), or not to:
	// a bool by volume.ID, of whoever holds telling.
	queueing sync.Map
	telling  keylock.Set
}

// New returns a Stack. It does nothing by itself.
func New(c Config) *Stack { return &Stack{Config: c} }
