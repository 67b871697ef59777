package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"

	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/target/exportstate"
	"github.com/nearflash/nearflash/pkg/target/lio"
	"github.com/nearflash/nearflash/pkg/target/lvol"
)

// Store keeps the wanted exports; *exportstate.Store is the real one.
type Store interface {
	Load(volume string) (exportstate.Record, error)
	List() ([]string, error)
	Save(exportstate.Record) error
	Delete(volume string) error
	Epoch() (string, error)
	SetEpoch(epoch string) error
}

// Volume is a volume as clients see it.
type Volume struct {
	lvol.Volume
	Exports []Export
}

// WWID is what an initiator's sysfs shows in `wwid` for the volume's LUN.
func (v Volume) WWID() string {
	return lio.WWID(v.Serial())
}

// Export is an initiator that may use a volume.
type Export struct {
	Initiator  string
	Generation int64
	LoggedIn   bool
	// Admission names this export, to end it and no later one of the initiator.
	Admission string
	// Username is the name of its CHAP account.
	Username string
	// ReadOnly is true of one that may not write.
	ReadOnly bool
}

// Connection is what an initiator needs to find its LUN.
type Connection struct {
	Portals []string
	IQN     string
	LUN     int32
	// WWID is what the initiator's sysfs shows in `wwid`.
	WWID string
}

// Service implements the storage server's operations. All of them may be called at
// the same time; those on one volume run one after the other.
type Service struct {
	cfg   Config
	vols  *lvol.Manager
	store Store
	tree  *lio.Tree

	locks keylock.Queue
	// base outlives requests and ends with Close.
	base    context.Context // the life of background work, not of a call
	cancel  context.CancelFunc
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup

	epochMu sync.Mutex // a comparison and the swap after it

	problemsMu sync.Mutex
	problems   map[string]string // by volume: why it is not as wanted
	cleanUp    string            // what went wrong with cleaning up at start
}

// NewService returns a Service; Restore must succeed before any other call. Its
// background work logs to the logger in ctx and ends with Close, not with ctx.
func NewService(ctx context.Context, cfg Config, vols *lvol.Manager, store Store, tree *lio.Tree) *Service {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &Service{
		cfg: cfg, vols: vols, store: store, tree: tree,
		base: base, cancel: cancel, problems: map[string]string{},
	}
}

// Close ends running operations between two steps and waits for them. Exports stay.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
}

// do runs op with the volume locked. If ctx ends first, do returns ErrInProgress
// and op goes on: a volume of terabytes is not zeroed within one deadline, and
// starting again each time would never end.
func do[T any](ctx context.Context, s *Service, volume string, op func(ctx context.Context) (T, error)) (T, error) {
	var none T
	unlock, err := s.locks.Lock(ctx, volume)
	if err != nil {
		return none, fmt.Errorf("%s is being worked on: %w: %w", subject(volume), ErrInProgress, err)
	}
	if !s.begin() {
		unlock()
		return none, ErrStopping
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		defer s.running.Done()
		defer unlock()
		v, err := op(logr.NewContext(s.base, logr.FromContextOrDiscard(ctx).WithValues("volume", volume)))
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		if r.err != nil && s.base.Err() != nil {
			return none, errors.Join(ErrStopping, r.err)
		}
		return r.value, translate(r.err)
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w: %w", subject(volume), ErrInProgress, ctx.Err())
	}
}

// subject says what a lock is of.
func subject(lock string) string {
	if strings.HasPrefix(lock, snapshotLock) {
		return lock
	}
	return "volume " + lock
}

// doOnly is do for operations without a result.
func doOnly(ctx context.Context, s *Service, volume string, op func(ctx context.Context) error) error {
	_, err := do(ctx, s, volume, func(ctx context.Context) (struct{}, error) { return struct{}{}, op(ctx) })
	return err
}

func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// translate maps the errors of package lvol to those of the service.
func translate(err error) error {
	for _, t := range []struct{ from, to error }{
		{lvol.ErrNotFound, ErrNotFound},
		{lvol.ErrExists, ErrAlreadyExists},
		{lvol.ErrForeign, ErrAlreadyExists},
		{lvol.ErrNoSpace, ErrNoSpace},
		{lvol.ErrBusy, ErrBusy},
	} {
		if errors.Is(err, t.from) && !errors.Is(err, t.to) {
			return fmt.Errorf("%w: %w", t.to, err)
		}
	}
	return err
}

// usable returns a volume that was reported as created and is not being deleted.
func (s *Service) usable(ctx context.Context, name string) (lvol.Volume, error) {
	v, err := s.vols.Get(ctx, name)
	if err != nil {
		return lvol.Volume{}, err
	}
	if v.State != lvol.Ready {
		return lvol.Volume{}, fmt.Errorf("%w: %s is being created or deleted", ErrNotFound, name)
	}
	return v, nil
}

// load returns the wanted exports of the present incarnation of a volume.
func (s *Service) load(v lvol.Volume) (exportstate.Record, error) {
	rec, err := s.store.Load(v.Name)
	if err != nil {
		return exportstate.Record{}, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	if rec.VolumeUUID != v.UUID {
		// Of an earlier volume of the same name: its initiators have no right here.
		rec.Exports = nil
	}
	rec.VolumeUUID = v.UUID
	return rec, nil
}

// describe adds the exports to a volume.
func (s *Service) describe(v lvol.Volume) (Volume, error) {
	rec, err := s.load(v)
	if err != nil {
		return Volume{}, err
	}
	out := Volume{Volume: v}
	for _, e := range rec.Exports {
		in, err := s.tree.LoggedIn(s.cfg.iqn(v.Name, e.Target), e.Initiator)
		if err != nil {
			return Volume{}, fmt.Errorf("session of %s: %w", e.Initiator, err)
		}
		out.Exports = append(out.Exports, Export{Initiator: e.Initiator, Generation: e.Generation, LoggedIn: in, Admission: e.Admission, Username: e.Username, ReadOnly: e.ReadOnly})
	}
	return out, nil
}

// setProblem remembers why a volume is not as wanted; nil forgets it.
func (s *Service) setProblem(volume string, err error) {
	s.problemsMu.Lock()
	defer s.problemsMu.Unlock()
	if err == nil {
		delete(s.problems, volume)
		return
	}
	s.problems[volume] = err.Error()
}

// troubled lists the volumes with problems.
func (s *Service) troubled() map[string]string {
	s.problemsMu.Lock()
	defer s.problemsMu.Unlock()
	out := make(map[string]string, len(s.problems))
	for v, p := range s.problems {
		out[v] = p
	}
	return out
}

// Problems lists what is wrong with the server, one line each.
func (s *Service) Problems(ctx context.Context) []string {
	return s.problemsWith(s.vols.Problems(ctx))
}

// problemsWith adds what the service knows to what a look at the volume group found.
func (s *Service) problemsWith(out []string, err error) []string {
	if err != nil {
		out = append(out, err.Error())
	}
	for v, p := range s.troubled() {
		out = append(out, fmt.Sprintf("volume %s: %s", v, p))
	}
	s.problemsMu.Lock()
	defer s.problemsMu.Unlock()
	if s.cleanUp != "" {
		out = append(out, s.cleanUp)
	}
	slices.Sort(out)
	return out
}
