package hydration

import (
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// State is what is known of a hydration under way.
type State struct {
	ID                        volume.ID
	TotalBytes, HydratedBytes int64
	// Rate is the mean since the hydration began on this process, in bytes per second.
	Rate  int64
	From  volume.ServedFrom
	Began time.Time
}

// memory is what is remembered of hydrations between two looks. It is lost with the
// process, which costs a look at their devices.
type memory struct {
	mu sync.Mutex
	m  map[volume.ID]*account
	// clones are as they were at the last look.
	clones map[string]devmapper.CloneStatus
	// foundAt is when the journal was last searched for hydrations.
	foundAt time.Time
	// wake receives when a hydration may have begun.
	wake chan struct{}
}

type account struct {
	state State
	// since is when the pod's start began; zero if that is long ago. The mutex of
	// memory guards it.
	since time.Time
	// known is true when onOrigin is.
	known, onOrigin bool
	// tokens are the bytes that may be copied; at is when it was reckoned up, and
	// base what had been copied when the hydration was first seen.
	tokens, base int64
	at           time.Time
	// onTime is how long the copy may run before the next look, 0 for without an end;
	// ranFor how long it ran since the last one, and speed what it copied in that
	// time, in bytes per second.
	onTime, ranFor time.Duration
	speed          float64
	// least is the shortest time in which the kernel has copied anything.
	least time.Duration
	// idle: the copy is far from its bandwidth.
	idle bool
	// ios are what the pod had made at iosAt, and atATime how many bytes the clone may
	// have under way; 0 if that is not known.
	ios      uint64
	iosAt    time.Time
	atATime  int64
	reported time.Time
	retryAt  time.Time
}

func newMemory() *memory {
	return &memory{m: map[volume.ID]*account{}, wake: make(chan struct{}, 1)}
}

func (f *memory) forget(id volume.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.m, id)
}

// begin makes Run look at a volume, whose pod is being started since then; zero if
// it is not, or if that is not known. The journal names a hydration long before its pod is
// started, so that Run may have found it already.
func (f *memory) begin(id volume.ID, since time.Time) {
	f.mu.Lock()
	memo := f.m[id]
	if memo == nil {
		memo = &account{state: State{ID: id}}
		f.m[id] = memo
	}
	if !since.IsZero() {
		memo.since = since
	}
	f.mu.Unlock()
	f.poke()
}

// findDue reports whether the journal is to be searched for hydrations, at the start and every now
// and then.
func (f *memory) findDue(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.foundAt.IsZero() && now.Sub(f.foundAt) < idlePause {
		return false
	}
	f.foundAt = now
	return true
}

// poke makes Run look at once.
func (f *memory) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *memory) ids() []volume.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]volume.ID, 0, len(f.m))
	for id := range f.m {
		out = append(out, id)
	}
	return out
}

func (f *memory) memo(id volume.ID) *account {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m[id]
}

// States returns the hydrations under way.
func (r *Runner) States() []State {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	var out []State
	for _, m := range r.memory.m {
		if m.state.TotalBytes > 0 {
			out = append(out, m.state)
		}
	}
	return out
}
