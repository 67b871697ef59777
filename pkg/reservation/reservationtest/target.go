// Package reservationtest has a LUN in memory with persistent reservations, and the suite
// that holds it to a real one.
package reservationtest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/nearflash/nearflash/pkg/reservation"
)

// Target is a LUN in memory.
type Target struct {
	// Unsupported makes it a LUN without persistent reservations.
	Unsupported bool
	// OnePathPerHost makes it forget, as Linux's own target does of sessions within one
	// portal group, that a host may have several paths: the holder's host has no
	// other registrant.
	OnePathPerHost bool

	mu            sync.Mutex
	registrations []registration
	holder        *Nexus
	down          map[*Nexus]bool
	reads         map[*Nexus]bool
	wedged        map[*Nexus]bool
	before        func()
}

type registration struct {
	nexus *Nexus
	key   reservation.Key
}

// Nexus is a path of a host to the target.
type Nexus struct {
	target *Target
	host   string
}

var _ reservation.LUN = (*Nexus)(nil)

// Nexus makes a path of a host.
func (t *Target) Nexus(host string) *Nexus { return &Nexus{target: t, host: host} }

// Restart makes the target forget everything, as one does that does not keep its state.
func (t *Target) Restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.registrations, t.holder = nil, nil
}

// Before is called before the next change of another path, once.
func (t *Target) Before(f func()) { t.before = f }

// Down makes a path fail, or answer again.
func (t *Target) Down(n *Nexus, down bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down == nil {
		t.down = map[*Nexus]bool{}
	}
	t.down[n] = down
}

// Reads makes a path have a read under way, or none.
func (t *Target) Reads(n *Nexus, reads bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reads == nil {
		t.reads, t.wedged = map[*Nexus]bool{}, map[*Nexus]bool{}
	}
	t.reads[n] = reads
}

func (n *Nexus) lock() (unlock func(), err error) {
	n.target.mu.Lock()
	switch {
	case n.target.wedged[n]:
		err = fmt.Errorf("%w: it waits for itself", reservation.ErrPath)
	case n.target.down[n]:
		err = fmt.Errorf("%w: it is down", reservation.ErrPath)
	case n.target.Unsupported:
		err = reservation.ErrUnsupported
	default:
		return n.target.mu.Unlock, nil
	}
	n.target.mu.Unlock()
	return nil, err
}

// change is lock for a command that changes something.
func (n *Nexus) change() (unlock func(), err error) {
	if f := n.target.before; f != nil {
		n.target.before = nil
		f()
	}
	return n.lock()
}

func (t *Target) key(n *Nexus) reservation.Key {
	for _, r := range t.registrations {
		if r.nexus == n {
			return r.key
		}
	}
	return 0
}

// registrant reports whether the target takes the path for one.
func (t *Target) registrant(n *Nexus) bool {
	if t.OnePathPerHost && t.holder != nil && t.holder != n && t.holder.host == n.host {
		return false
	}
	return t.key(n) != 0
}

// remove ends registrations, and with the holder's the reservation.
func (t *Target) remove(gone func(registration) bool) (removed int) {
	before := len(t.registrations)
	t.registrations = slices.DeleteFunc(t.registrations, gone)
	if t.holder != nil && t.key(t.holder) == 0 {
		t.holder = nil
	}
	return before - len(t.registrations)
}

// Write reports whether the target takes a write by the path.
func (n *Nexus) Write(context.Context) error {
	unlock, err := n.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if n.target.holder != nil && !n.target.registrant(n) {
		return reservation.ErrConflict
	}
	return nil
}

// Supported implements reservation.LUN.
func (n *Nexus) Supported(context.Context) error {
	unlock, err := n.lock()
	if err == nil {
		unlock()
	}
	return err
}

// Keys implements reservation.LUN.
func (n *Nexus) Keys(context.Context) ([]reservation.Key, error) {
	unlock, err := n.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var out []reservation.Key
	for _, r := range n.target.registrations {
		out = append(out, r.key)
	}
	return out, nil
}

// Reservation implements reservation.LUN.
func (n *Nexus) Reservation(context.Context) (reservation.Held, bool, error) {
	unlock, err := n.lock()
	if err != nil {
		return reservation.Held{}, false, err
	}
	defer unlock()
	if n.target.holder == nil {
		return reservation.Held{}, false, nil
	}
	return reservation.Held{Key: n.target.key(n.target.holder), Type: reservation.WriteExclusiveRegistrantsOnly}, true, nil
}

// Register implements reservation.LUN.
func (n *Nexus) Register(_ context.Context, key reservation.Key) error {
	unlock, err := n.change()
	if err != nil {
		return err
	}
	defer unlock()
	t := n.target
	if key == 0 {
		t.remove(func(r registration) bool { return r.nexus == n })
		return nil
	}
	for i := range t.registrations {
		if t.registrations[i].nexus == n {
			t.registrations[i].key = key
			return nil
		}
	}
	t.registrations = append(t.registrations, registration{n, key})
	return nil
}

// Reserve implements reservation.LUN.
func (n *Nexus) Reserve(_ context.Context, key reservation.Key) error {
	unlock, err := n.change()
	if err != nil {
		return err
	}
	defer unlock()
	t := n.target
	if t.key(n) != key || t.holder != nil && t.holder != n {
		return reservation.ErrConflict
	}
	t.holder = n
	return nil
}

// Preempt implements reservation.LUN.
func (n *Nexus) Preempt(_ context.Context, key, victim reservation.Key) error {
	unlock, err := n.change()
	if err != nil {
		return err
	}
	defer unlock()
	t := n.target
	if t.key(n) != key || !t.registrant(n) {
		return reservation.ErrConflict
	}
	held := t.holder != nil && t.key(t.holder) == victim
	if held && t.reads[n] {
		t.wedged[n] = true
		return fmt.Errorf("%w: it waits for itself", reservation.ErrPath)
	}
	removed := t.remove(func(r registration) bool { return r.key == victim && r.nexus != n })
	if held {
		t.holder = n
		return nil
	}
	if removed == 0 {
		return reservation.ErrConflict
	}
	return nil
}

// TakeOver implements reservation.LUN. It does not wait.
func (n *Nexus) TakeOver(ctx context.Context, key, holder reservation.Key) error {
	n.target.mu.Lock()
	reads := n.target.reads[n]
	n.target.mu.Unlock()
	if reads {
		return fmt.Errorf("%w: it is read", reservation.ErrPath)
	}
	return n.Preempt(ctx, key, holder)
}

// Honoured implements reservation.LUN.
func (n *Nexus) Honoured(_ context.Context, key reservation.Key) (bool, error) {
	unlock, err := n.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	return n.target.key(n) == key && n.target.registrant(n), nil
}
