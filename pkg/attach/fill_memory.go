package attach

import (
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/devmapper"
	"github.com/nearflash/nearflash/pkg/volume"
)

// FillState is what is known of a fill under way.
type FillState struct {
	ID                        volume.ID
	TotalBytes, HydratedBytes int64
	// Rate is the mean since the fill began on this process, in bytes per second.
	Rate  int64
	From  volume.ServedFrom
	Began time.Time
}

// fillMemory is what is remembered of fills between two looks. It is lost with the
// process, which costs a look at their devices.
type fillMemory struct {
	mu sync.Mutex
	m  map[volume.ID]*fillMemo
	// clones are as they were at the last look.
	clones map[string]devmapper.CloneStatus
	// foundAt is when the journal was last searched for fills.
	foundAt time.Time
	// wake receives when a fill may have begun.
	wake chan struct{}
}

type fillMemo struct {
	state FillState
	// since is when the pod's start began; zero if that is long ago. The mutex of
	// fillMemory guards it.
	since time.Time
	// known is true when onOrigin is.
	known, onOrigin bool
	// credit are the bytes that may be copied; at is when it was reckoned up, and
	// base what had been copied when the fill was first seen.
	credit, base int64
	at           time.Time
	// pulse is how long the copy may run before the next look, 0 for without an end;
	// pulsed how long it ran since the last one, and speed what it copied in that
	// time, in bytes per second.
	pulse, pulsed time.Duration
	speed         float64
	// least is the shortest time in which the kernel has copied anything.
	least time.Duration
	// calm: the copy is far from its bandwidth.
	calm bool
	// ios are what the pod had made at iosAt, and atATime how many bytes the clone may
	// have under way; 0 if that is not known.
	ios      uint64
	iosAt    time.Time
	atATime  int64
	reported time.Time
	retryAt  time.Time
}

func newFillMemory() *fillMemory {
	return &fillMemory{m: map[volume.ID]*fillMemo{}, wake: make(chan struct{}, 1)}
}

func (f *fillMemory) forget(id volume.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.m, id)
}

// begin makes RunFills look at a volume, whose pod is being started since then; zero if
// it is not, or if that is not known. The journal names a fill long before its pod is
// started, so that RunFills may have found it already.
func (f *fillMemory) begin(id volume.ID, since time.Time) {
	f.mu.Lock()
	memo := f.m[id]
	if memo == nil {
		memo = &fillMemo{state: FillState{ID: id}}
		f.m[id] = memo
	}
	if !since.IsZero() {
		memo.since = since
	}
	f.mu.Unlock()
	f.poke()
}

// findDue tells whether the journal is to be searched for fills, at the start and every now
// and then.
func (f *fillMemory) findDue(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.foundAt.IsZero() && now.Sub(f.foundAt) < fillIdle {
		return false
	}
	f.foundAt = now
	return true
}

// poke makes RunFills look at once.
func (f *fillMemory) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fillMemory) ids() []volume.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]volume.ID, 0, len(f.m))
	for id := range f.m {
		out = append(out, id)
	}
	return out
}

func (f *fillMemory) memo(id volume.ID) *fillMemo {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m[id]
}

// Fills returns the fills under way.
func (a *Attacher) Fills() []FillState {
	a.fills.mu.Lock()
	defer a.fills.mu.Unlock()
	var out []FillState
	for _, m := range a.fills.m {
		if m.state.TotalBytes > 0 {
			out = append(out, m.state)
		}
	}
	return out
}
