package attach

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearflash/nearflash/pkg/durable"
	"github.com/nearflash/nearflash/pkg/volume"
)

// stay is the note that a volume was attached here under an ownership (states.md, The warm
// move). It outlives the journal's entry: a record out of a backup may name the retained cache
// of before again, past which the pod has written since.
type stay struct {
	UID        string    `json:"uid"`
	Generation int64     `json:"generation"`
	At         time.Time `json:"at"`
}

// staySuffix ends the names of these notes.
const staySuffix = ".stay"

// stayRest is how long a note is kept without a record of its ownership, if retained caches are
// kept for ever.
const stayRest = 30 * 24 * time.Hour

// staysEvery is the pause between two looks at which notes are of no use any more.
const staysEvery = time.Hour

func (a *Attacher) stayFile(id volume.ID) string {
	return filepath.Join(a.Warm.Dir, string(id)+staySuffix)
}

// loadStay returns the note of a volume, nil if there is none.
func (a *Attacher) loadStay(id volume.ID) (*stay, error) {
	text, err := os.ReadFile(a.stayFile(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	s := &stay{}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("note of an attachment of volume %s: %w", id, err)
	}
	return s, nil
}

// recordStay notes that a volume is attached. No cache can begin from elsewhere without the
// folder of the notes, nor under a first generation.
func (a *Attacher) recordStay(id volume.ID, f volume.Fence) error {
	if a.Warm.Dir == "" || f.Generation <= 1 {
		return nil
	}
	if s, err := a.loadStay(id); err == nil && s.covers(f) {
		return nil
	}
	text, err := json.Marshal(stay{UID: f.UID, Generation: f.Generation, At: a.Now().UTC()})
	if err == nil {
		err = durable.WriteFile(a.stayFile(id), text)
	}
	if err != nil {
		return fmt.Errorf("note of an attachment of volume %s: %w", id, err)
	}
	return nil
}

// covers reports whether the volume was attached under this ownership.
func (s *stay) covers(f volume.Fence) bool {
	return s != nil && s.UID == f.UID && s.Generation >= f.Generation
}

// stayedBefore reports whether the volume was attached here under this ownership; also if
// that cannot be read.
func (a *Attacher) stayedBefore(id volume.ID, f volume.Fence) bool {
	if a.Warm.Dir == "" {
		return false
	}
	s, err := a.loadStay(id)
	return err != nil || s.covers(f)
}

// dropStays removes notes that say nothing of any ownership to come, now and then.
func (a *Attacher) dropStays(ctx context.Context) error {
	now := a.Now()
	if before := a.staysAt.Load(); a.Warm.Dir == "" || before != 0 && now.Sub(time.Unix(0, before)) < staysEvery {
		return nil
	}
	a.staysAt.Store(now.UnixNano())
	files, err := os.ReadDir(a.Warm.Dir)
	problems := []error{err}
	for _, f := range files {
		if id, ok := strings.CutSuffix(f.Name(), staySuffix); ok {
			problems = append(problems, a.dropStay(ctx, volume.ID(id)))
		}
	}
	return errors.Join(problems...)
}

func (a *Attacher) dropStay(ctx context.Context, id volume.ID) error {
	unlock, ok := a.Locks.TryLock(string(id))
	if !ok {
		return nil
	}
	defer unlock()
	s, err := a.loadStay(id)
	if err != nil || s == nil {
		return err
	}
	if e, err := a.load(id); err != nil || e != nil {
		return err
	}
	rec, err := a.findRecord(ctx, id)
	if err != nil || !stayOver(*s, rec, a.Now(), a.Warm.RetainedCacheTTL) {
		return err
	}
	return durable.Remove(a.stayFile(id))
}

// stayOver tells a note that is of no use: its ownership is over by the record, or there is
// no record of it and no retained cache of before can be young enough.
func stayOver(s stay, rec *volume.Volume, now time.Time, ttl time.Duration) bool {
	if rec == nil || rec.Fence.UID != s.UID {
		return now.Sub(s.At) > cmp.Or(ttl, stayRest)
	}
	return rec.Fence.Generation > s.Generation
}
