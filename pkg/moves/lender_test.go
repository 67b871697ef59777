package moves_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// lender is a volume.Lender that keeps the rules of the real one and lends nothing.
type lender struct {
	mu sync.Mutex
	// retained caches are the generations that this node has.
	retainedCaches map[volume.ID]int64
	loans          map[volume.ID]volume.LoanRequest
	// looks is how often all loans were asked for.
	looks     int
	lends     []volume.LoanRequest
	reclaimed []volume.MoveID
	// busy is how many requests are answered with ErrBusy first.
	busy int
	// delay is how long a request takes; running and most count them.
	delay         time.Duration
	running, most int
	// killed makes the caller's process die after the loan, before the answer.
	killed func()
	// atWork is called before anything is lent.
	atWork func()
	// tracked is the record of writes of every loan.
	tracked *volume.Tracked
	// left are the loans that the other node has no session with; released those that
	// ended without being reclaimed, and early the ones that had a session then.
	left            map[volume.ID]bool
	released, early []volume.MoveID
	// busyReleases is how many releases are answered with ErrBusy first.
	busyReleases int
}

var _ volume.Lender = (*lender)(nil)

func newLender(retainedCaches map[volume.ID]int64) *lender {
	return &lender{retainedCaches: retainedCaches, loans: map[volume.ID]volume.LoanRequest{}, left: map[volume.ID]bool{}}
}

func (l *lender) Lend(_ context.Context, r volume.LoanRequest) (volume.Loan, error) {
	l.enter()
	time.Sleep(l.delay)
	if l.atWork != nil {
		l.atWork()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.lends = append(l.lends, r)
	if l.busy > 0 {
		l.busy--
		return volume.Loan{}, fmt.Errorf("%w: the volume's lock is held", volume.ErrBusy)
	}
	if g, ok := l.retainedCaches[r.Volume]; !ok || g != r.Generation {
		return volume.Loan{}, fmt.Errorf("%w: no retained cache of generation %d", volume.ErrNotFound, r.Generation)
	}
	l.loans[r.Volume] = r
	if l.killed != nil {
		l.killed()
	}
	return volume.Loan{
		Move: r.Move, Source: volume.ISCSI{Portals: []string{"192.0.2.1:3260"}, IQN: "iqn.2026-11.io.nearflash:lend.0." + string(r.Volume)},
		Credentials: r.Credentials, ChunkSectors: 512, MetaBytes: 8 << 20, DataBytes: 1 << 30, Tracked: l.tracked,
	}, nil
}

func (l *lender) enter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running++
	l.most = max(l.most, l.running)
}

func (l *lender) Reclaim(_ context.Context, id volume.ID, m volume.MoveID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reclaimed = append(l.reclaimed, m)
	if l.loans[id].Move == m {
		delete(l.loans, id)
		delete(l.retainedCaches, id)
	}
	return nil
}

func (l *lender) Loans(context.Context) (map[volume.ID]volume.MoveID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	out := map[volume.ID]volume.MoveID{}
	for id, r := range l.loans {
		out[id] = r.Move
	}
	return out, nil
}

func (l *lender) Loan(_ context.Context, id volume.ID) (volume.MoveID, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, served := l.loans[id]
	return r.Move, served, nil
}

func (l *lender) InUse(_ context.Context, id volume.ID) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, lent := l.loans[id]
	return lent && !l.left[id], nil
}

func (l *lender) Release(_ context.Context, id volume.ID, m volume.MoveID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busyReleases > 0 {
		l.busyReleases--
		return fmt.Errorf("%w: the volume's lock is held", volume.ErrBusy)
	}
	l.released = append(l.released, m)
	if !l.left[id] {
		l.early = append(l.early, m)
	}
	delete(l.loans, id)
	return nil
}

// leave ends the other node's session.
func (l *lender) leave(id volume.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left[id] = true
}

// loan returns what is lent of a volume.
func (l *lender) loan(id volume.ID) (volume.LoanRequest, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.loans[id]
	return r, ok
}

func (l *lender) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lends)
}

// restart is what a reboot of the node leaves.
func (l *lender) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.retainedCaches, func(id volume.ID, _ int64) bool { _, lent := l.loans[id]; return lent })
	clear(l.loans)
}

func (l *lender) has(m volume.MoveID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.reclaimed {
		if r == m {
			return true
		}
	}
	return false
}
