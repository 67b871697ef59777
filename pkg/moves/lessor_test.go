package moves_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// lessor is a volume.Lessor that keeps the rules of the real one and exports nothing.
type lessor struct {
	mu sync.Mutex
	// node is the name of the one whose caches these are; iqn is what it says that it
	// exports, "" for the truth.
	node, iqn string
	// retained caches are the generations that this node has.
	retainedCaches map[volume.ID]int64
	leases         map[volume.ID]volume.LeaseRequest
	// looks is how often all leases were asked for.
	looks    int
	exports  []volume.LeaseRequest
	released []volume.MoveID
	// busy is how many requests are answered with ErrBusy first.
	busy int
	// delay is how long a request takes; running and most count them.
	delay         time.Duration
	running, most int
	// killed makes the caller's process die after the lease, before the answer.
	killed func()
	// atWork is called before anything is exported.
	atWork func()
	// wwid is the identity of the LUN of every lease.
	wwid string
	// through is true if the caches of all leases were never in writeback mode.
	through bool
	// tracked is the record of writes of every lease.
	tracked *volume.Tracked
	// left are the leases that the other node has no session with; kept are those
	// that were ended and whose cache stays, and early the ones that had a session then.
	left        map[volume.ID]bool
	kept, early []volume.MoveID
	// busyReleases is how many releases are answered with ErrBusy first.
	busyReleases int
}

var _ volume.Lessor = (*lessor)(nil)

func newLessor(retainedCaches map[volume.ID]int64) *lessor {
	return &lessor{retainedCaches: retainedCaches, leases: map[volume.ID]volume.LeaseRequest{}, left: map[volume.ID]bool{}}
}

func (l *lessor) Export(_ context.Context, r volume.LeaseRequest) (volume.Lease, error) {
	l.enter()
	time.Sleep(l.delay)
	if l.atWork != nil {
		l.atWork()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.exports = append(l.exports, r)
	if l.busy > 0 {
		l.busy--
		return volume.Lease{}, fmt.Errorf("%w: the volume's lock is held", volume.ErrBusy)
	}
	if g, ok := l.retainedCaches[r.Volume]; !ok || g != r.Generation {
		return volume.Lease{}, fmt.Errorf("%w: no retained cache of generation %d", volume.ErrNotFound, r.Generation)
	}
	l.leases[r.Volume] = r
	if l.killed != nil {
		l.killed()
	}
	return volume.Lease{
		Move: r.Move, Source: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: cmp.Or(l.iqn, volume.ExportIQN(l.node, r.Volume))},
		Credentials: r.Credentials, ChunkSectors: 512, MetaBytes: 8 << 20, DataBytes: 1 << 30, WWID: l.wwid, WrittenThrough: l.through, Tracked: l.tracked,
	}, nil
}

func (l *lessor) enter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running++
	l.most = max(l.most, l.running)
}

func (l *lessor) Release(_ context.Context, id volume.ID, m volume.MoveID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = append(l.released, m)
	if l.leases[id].Move == m {
		delete(l.leases, id)
		delete(l.retainedCaches, id)
	}
	return nil
}

func (l *lessor) Leases(context.Context) (map[volume.ID]volume.MoveID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	out := map[volume.ID]volume.MoveID{}
	for id, r := range l.leases {
		out[id] = r.Move
	}
	return out, nil
}

func (l *lessor) Lease(_ context.Context, id volume.ID) (volume.MoveID, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, served := l.leases[id]
	return r.Move, served, nil
}

func (l *lessor) InUse(_ context.Context, id volume.ID) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session(id), nil
}

func (l *lessor) EndLease(_ context.Context, id volume.ID, m volume.MoveID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busyReleases > 0 {
		l.busyReleases--
		return fmt.Errorf("%w: the volume's lock is held", volume.ErrBusy)
	}
	l.kept = append(l.kept, m)
	if l.session(id) {
		l.early = append(l.early, m)
	}
	delete(l.leases, id)
	return nil
}

// session tells that the other node has one with an export. A stream has none. It is called with
// the lock held.
func (l *lessor) session(id volume.ID) bool {
	r, exported := l.leases[id]
	return exported && r.Method != volume.MethodStream && !l.left[id]
}

// leave ends the other node's session.
func (l *lessor) leave(id volume.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left[id] = true
}

// lease returns what is exported of a volume.
func (l *lessor) lease(id volume.ID) (volume.LeaseRequest, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.leases[id]
	return r, ok
}

func (l *lessor) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.exports)
}

// restart is what a reboot of the node leaves.
func (l *lessor) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.retainedCaches, func(id volume.ID, _ int64) bool { _, exported := l.leases[id]; return exported })
	clear(l.leases)
}

func (l *lessor) has(m volume.MoveID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.released {
		if r == m {
			return true
		}
	}
	return false
}
