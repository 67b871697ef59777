package attach

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/attach/layout"
	"github.com/nearflash/nearflash/pkg/attach/ssd"
	"github.com/nearflash/nearflash/pkg/attach/state"
	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// lunTimeout bounds the question to the storage server, and lunEvery is the pause
// between two that repair asks of one volume.
const (
	lunTimeout = 4 * time.Second
	lunEvery   = time.Minute
)

// findRecord is Records.Get whose answer may be that there is none.
func (a *Attacher) findRecord(ctx context.Context, id volume.ID) (*volume.Volume, error) {
	rec, err := a.Records.Get(ctx, id)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &rec, nil
}

// lunQuestion is how the storage server is asked for a LUN.
type lunQuestion struct {
	// at is where the LUN is: for stage what the publication says, since the target of an
	// earlier admission is gone once there is a later one.
	at   volume.Source
	cred *volume.Credentials
	// every is the least pause between two questions.
	every time.Duration
}

// again asks where the LUN was when the entry was written.
func (a *Attacher) again(e *state.Entry) lunQuestion {
	return lunQuestion{at: e.Source, every: a.AskEvery}
}

// prove gathers what decideOwnership needs besides the record. e is nil if only the SSD
// tells of the writes: then the LUN is not asked for.
func (a *Attacher) prove(ctx context.Context, id volume.ID, known volume.Fence, e *state.Entry, c ssd.Facts, rec *volume.Volume, q lunQuestion) (proof, error) {
	p := proof{GivenUp: rec != nil && rec.Fence == known && givenUp(e, c, rec)}
	if byRecord(known, rec, p.GivenUp) {
		return p, nil
	}
	deleted, err := a.Pool.Deletions(ctx)
	if err != nil {
		return proof{}, err
	}
	p.Deleted = covered(deleted, id, known)
	if e != nil && asksLUN(known, e.Static, rec, p) {
		p.LUN, p.SameLUN = a.lunOf(ctx, e, q)
	}
	return p, nil
}

func covered(deleted []volume.Deletion, id volume.ID, f volume.Fence) bool {
	return slices.ContainsFunc(deleted, func(d volume.Deletion) bool { return d.Covers(id, f) })
}

// lunOf asks the storage server for whom it shows the LUN, and whether that is the one
// of the entry. The answer of a session that exists is as old as the session: if the
// server has given the volume away since, that session has ended, it never finds its
// target again, and nothing can be written through it.
func (a *Attacher) lunOf(ctx context.Context, e *state.Entry, q lunQuestion) (generation int64, same bool) {
	if q.at.IsZero() || q.at.CSI != nil {
		return 0, false // another driver's volume does not say for whom it is attached
	}
	o, found, err := a.Transport.Lookup(ctx, transport.Target{Source: q.at})
	if err == nil && !found {
		if !a.keeps.due(e.ID, a.Now(), q.every) {
			return 0, false
		}
		cctx, cancel := context.WithTimeout(ctx, lunTimeout)
		defer cancel()
		o, err = a.Transport.Connect(cctx, transport.Target{Source: q.at}, q.cred)
	}
	if !q.at.Same(e.Source) {
		defer a.leaveLUN(ctx, e.ID, q.at)
	}
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Storage server does not show the volume", "volume", e.ID, "reason", err.Error())
		return 0, false
	}
	if e.WWID != "" && o.WWID != "" && e.WWID != o.WWID {
		return 0, false
	}
	for _, p := range o.Products {
		if g, ok := volume.LUNGeneration(p); ok {
			generation = max(generation, g)
		}
	}
	return generation, e.WWID != "" && e.WWID == o.WWID
}

// leaveLUN ends a session that was for the question alone, also that of a question
// whose process was killed: the journal does not know it, and it may be the last.
func (a *Attacher) leaveLUN(ctx context.Context, id volume.ID, at volume.Source) {
	if err := a.Transport.Disconnect(context.WithoutCancel(ctx), transport.Target{Source: at}); err != nil {
		klog.FromContext(ctx).Error(err, "Session that asked for the LUN was not ended", "volume", id)
	}
}

// keeps are the caches that are kept, by volume. It is safe for concurrent use.
type keeps struct {
	mu sync.Mutex
	m  map[volume.ID]kept
	// looked is true once repair has looked at everything.
	looked bool
}

type kept struct {
	volume.KeptCache
	// asked is when the storage server was last asked.
	asked time.Time
}

func (k *keeps) drop(id volume.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.m, id)
}

// has reports whether unflushed writes of a volume are known to be kept.
func (k *keeps) has(id volume.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, kept := k.m[id]
	return kept
}

// due reports whether the storage server may be asked about a volume again.
func (k *keeps) due(id volume.ID, now time.Time, every time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	old, known := k.m[id]
	if since := now.Sub(old.asked); known && since >= 0 && since < every {
		return false
	}
	if known {
		old.asked = now
		k.m[id] = old
	}
	return true
}

// only forgets all others, after a look at everything.
func (k *keeps) only(there map[volume.ID]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.m {
		if !there[id] {
			delete(k.m, id)
		}
	}
	k.looked = true
}

// keep remembers, for the status of the pool, that a cache waits for an administrator.
func (a *Attacher) keep(ctx context.Context, c volume.KeptCache) {
	a.keeps.mu.Lock()
	old, known := a.keeps.m[c.ID]
	next := kept{KeptCache: c, asked: old.asked}
	if !known {
		next.asked = a.Now()
	}
	a.keeps.m[c.ID] = next
	a.keeps.mu.Unlock()
	if !known {
		klog.FromContext(ctx).Error(nil, "Writes that may be on this node alone are kept until somebody decides",
			"volume", c.ID, "uid", c.Fence.UID, "generation", c.Fence.Generation, "why", c.Why)
	}
}

// Kept implements pool.Caches.
func (a *Attacher) Kept() (list []volume.KeptCache, known bool) {
	a.keeps.mu.Lock()
	defer a.keeps.mu.Unlock()
	for _, k := range a.keeps.m {
		list = append(list, k.KeptCache)
	}
	slices.SortFunc(list, func(a, b volume.KeptCache) int { return cmp.Compare(a.ID, b.ID) })
	return list, a.keeps.looked
}

// Holds implements pool.Caches.
func (a *Attacher) Holds(ctx context.Context, d volume.Deletion) (bool, error) {
	e, err := a.load(d.ID)
	if err != nil || e != nil && d.Covers(d.ID, e.Fence) {
		return true, err
	}
	view := a.Pool.View()
	if !view.Readable() || view.VG == "" {
		return true, nil // an SSD that is not there may have it
	}
	c, err := a.ssd.Inspect(ctx, view.VG, d.ID)
	if err != nil {
		return true, err
	}
	for _, lv := range c.LVs() {
		if f, _ := layout.ParseTags(lv.Tags); d.Covers(d.ID, f) {
			return true, nil
		}
	}
	return false, nil
}
