package provision

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nearflash/nearflash/pkg/volume"
)

// holdExpiry is after how long without a call a hold ends.
const holdExpiry = 10 * time.Minute

// heldBy is a hold that this process has put there.
type heldBy struct {
	name            volume.SnapshotID
	token, takeover string
	// fence and published are those of the record then, if the hold is for a group: who is the
	// owner is part of what the group rests on.
	fence     volume.Fence
	published bool
}

// holds are what this process holds, the last for each volume. A hold that it does not know may
// be out of a backup of etcd, and prove nothing.
type holds struct {
	mu   sync.Mutex
	last map[volume.ID]heldBy
}

func (h *holds) put(id volume.ID, by heldBy) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		h.last = map[volume.ID]heldBy{}
	}
	h.last[id] = by
}

func (h *holds) has(id volume.ID, by heldBy) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last[id] == by
}

// forget ends what is known of a hold for a name, "" for any. That of another name stays.
func (h *holds) forget(id volume.ID, name volume.SnapshotID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name == "" || h.last[id].name == name {
		delete(h.last, id)
	}
}

const holdPrefix = "hold-"

// newHold is the token of a hold, with a mark or without. That for a clone is marked with its
// record's UID: what was cut for it is told from what was cut for an earlier one of its name.
// That for a group is marked with all that is in the group.
func newHold(mark string) string {
	token := holdPrefix + rand.Text()
	if mark != "" {
		token += "-" + mark
	}
	return token
}

// markOf is the mark of a clone, or of a group.
func markOf(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return hex.EncodeToString(sum[:8]) // a token has 64 characters at most
}

// markIn is the mark in the token of a hold, "" if it has none.
func markIn(token string) string {
	_, mark, _ := strings.Cut(strings.TrimPrefix(token, holdPrefix), "-")
	return mark
}

// refusalPause is for how long a cut that the storage has refused is refused without a look:
// that look costs a hold, and what the volume's cache has to be drained of.
const refusalPause = 10 * time.Minute

// refusals are what the storage has refused to cut, by the name of the cut. They are lost with
// the process, which costs one more try.
type refusals struct {
	mu   sync.Mutex
	last map[volume.SnapshotID]refusal
}

type refusal struct {
	order cutOrder
	err   error
	until time.Time
	// tried is a failure that may pass: it is a refusal once the hold has ended with it.
	tried bool
}

// put refuses a cut for a while.
func (r *refusals) put(o cutOrder, err error, now time.Time) {
	r.add(refusal{order: o, err: err, until: now.Add(refusalPause)}, now)
}

// note remembers the last failure of a cut that is tried again while its volume is held.
func (r *refusals) note(o cutOrder, err error, now time.Time) {
	r.add(refusal{order: o, err: err, until: now.Add(holdExpiry + refusalPause), tried: true}, now)
}

func (r *refusals) add(one refusal, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[volume.SnapshotID]refusal{}
	}
	for name, old := range r.last {
		if !now.Before(old.until) {
			delete(r.last, name)
		}
	}
	one.order.clone = nil // the next record is another
	r.last[one.order.name] = one
}

// expired has a cut refused whose hold has ended while it failed.
func (r *refusals) expired(name volume.SnapshotID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.last[name]; ok && last.tried {
		last.tried, last.until = false, now.Add(refusalPause)
		r.last[name] = last
	}
}

// of returns why a cut was refused a short while ago, nil if it was not.
func (r *refusals) of(o cutOrder, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.clone = nil
	last, ok := r.last[o.name]
	if !ok || last.tried || last.order != o || !now.Before(last.until) {
		return nil
	}
	return fmt.Errorf("%w; it is tried again in %s", last.err, last.until.Sub(now).Round(time.Second))
}

func (r *refusals) forget(name volume.SnapshotID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, name)
}
