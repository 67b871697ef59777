// Package hydration leads the background copies of warm moves to their end, and replaces a
// source node that is lost (states.md, The warm move).
package hydration

import (
	"context"
	"time"

	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/stack"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/cachemap"
	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Host is the node whose caches are being filled.
type Host interface {
	state.Journal
	// Lock returns a volume's entry under its lock, which is given back in every case. There
	// is none while a request works on the volume.
	Lock(ctx context.Context, id volume.ID) (e *state.Entry, unlock func(), err error)
	// ReadMap reads the map that a hydration began with.
	ReadMap(id volume.ID) (*cachemap.Map, error)
	// LeavePeer ends the session with the source node, and Drop what else a hydration has
	// outside of the devices; the entry forgets it.
	LeavePeer(ctx context.Context, e *state.Entry)
	Drop(ctx context.Context, e *state.Entry, o volume.MoveOutcome, message string)
}

// Devices are this node's, as a part of [devmapper.Client].
type Devices interface {
	Info(ctx context.Context, prefix string) (map[string]devmapper.Info, error)
	Table(ctx context.Context, name string) (devmapper.Table, error)
	CloneStatus(ctx context.Context, name string) (devmapper.CloneStatus, bool, error)
	CloneStatusAll(ctx context.Context) (map[string]devmapper.CloneStatus, error)
	MultipathStatus(ctx context.Context, name string) (devmapper.MultipathStatus, error)
	StatsAll(ctx context.Context, prefix string) (map[string]devmapper.Stats, error)
	LoadReadOnly(ctx context.Context, name string, t devmapper.Table) error
	Clear(ctx context.Context, name string) error
	Resume(ctx context.Context, name string) error
	Message(ctx context.Context, name string, sector uint64, args ...string) error
}

// Config is what a Runner works with.
type Config struct {
	Host    Host
	Devices Devices
	Stack   *stack.Stack
	SSD     *ssd.Group
	// Moves are told of progress, and asked whether the source node still serves; nil if
	// nobody is.
	Moves volume.Moves
	// NodeBandwidth limits all copies together, in bytes per second; 0 is no limit.
	NodeBandwidth func() int64
	// Settle is how long a copy waits for the start of the pod.
	Settle time.Duration
	Now    func() time.Time
}

// Runner runs the hydrations of a node.
type Runner struct {
	Config
	memory *memory
	work   passes.Workers
}

// New returns a Runner that knows of no hydration yet.
func New(c Config) *Runner { return &Runner{Config: c, memory: newMemory()} }

// Begin has Run look at a volume, whose pod is being started since then; zero if it is not, or
// if that is not known.
func (r *Runner) Begin(id volume.ID, since time.Time) { r.memory.begin(id, since) }

// Forget has Run forget a volume.
func (r *Runner) Forget(id volume.ID) { r.memory.forget(id) }

// Count is how many hydrations are under way.
func (r *Runner) Count() int { return len(r.memory.ids()) }
