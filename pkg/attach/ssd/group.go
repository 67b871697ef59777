// Package ssd finds, makes, tags and removes the logical volumes of caches in the volume group
// of the node's SSDs (docs/design/states.md, Names on the host). It says what is there; what
// that means for a volume is decided above it.
package ssd

import (
	"context"
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/lvm"
	"github.com/nearflash/nearflash/pkg/pool"
)

// PoolView gives the state of the node's pool as of its last reconciliation.
type PoolView interface {
	View() pool.View
}

// Copies knows which copies of mirrored logical volumes are behind.
type Copies interface {
	// Admit has to be asked before logical volumes are activated, and before those are believed
	// that are active. It notes what is left behind by an activation. Errors: ErrUnavailable if
	// the only copies that are there are behind.
	Admit(ctx context.Context, vg string, lvs ...lvm.LV) error
}

// Blocks is what a Group does to block devices themselves.
type Blocks interface {
	// Open opens a block device with flags of open(2).
	Open(path string, flags int) (blockdev.File, error)
	// ZeroHead zeroes the first n bytes of a device.
	ZeroHead(ctx context.Context, path string, n int64) error
}

// Config is what a Group works with.
type Config struct {
	LVM  lvm.Client
	Pool PoolView
	// Copies may be nil where there are no mirrors.
	Copies Copies
	Blocks Blocks
	Stack  *stack.Stack
	// Sysfs is where the kernel shows its devices.
	Sysfs string
	// CacheTimeout bounds the steps that concern the cache alone, so that an SSD that hangs
	// costs the pod a delay and not its start (I6).
	CacheTimeout time.Duration
	// PollInterval is the time between two looks at what the kernel does with copies.
	PollInterval time.Duration
}

// Group is the volume group of the node's SSDs. Calls for one volume are the caller's to
// serialise.
type Group struct {
	Config
	// alloc serialises the choice of space in the pool: what one stage counts as free must
	// not be taken by another.
	alloc chan struct{}
	// flushes are those of the SSDs.
	flushes stack.Flushes
	// comparisons of copies of mirrored caches that have begun, by activationOf. A process that does not
	// know of one begins another, which does no harm.
	comparisons sync.Map
}

// New returns a Group. It does nothing by itself.
func New(c Config) *Group { return &Group{Config: c, alloc: make(chan struct{}, 1)} }
