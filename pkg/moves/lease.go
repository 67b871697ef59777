package moves

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// leaseKey is the source's half of one agreement.
type leaseKey struct {
	key  *keyagreement.Key
	text string
}

// reconcile brings the leases of one volume to what its objects ask for. again is
// when to look once more though nothing has changed; 0 is never.
func (s *Source) reconcile(ctx context.Context, id volume.ID) (again time.Duration, err error) {
	// Each of hundreds of moves reports every few seconds, so that one report must not
	// cost a look at all of them, nor at all volumes of the journal.
	asked, err := s.objects(ctx, client.MatchingFields{volumeIndex: string(id)})
	if err != nil {
		return 0, err
	}
	slices.SortFunc(asked, func(a, b v1alpha1.CacheMigration) int { return cmp.Compare(a.Spec.Generation, b.Spec.Generation) })
	var errs []error
	for i := range asked {
		next, err := s.handle(ctx, &asked[i])
		errs = append(errs, err)
		again = sooner(again, next)
	}
	// After the objects: a new one may have taken over the lease of an old one.
	next, err := s.forgotten(ctx, id, asked)
	return sooner(again, next), errors.Join(append(errs, err)...)
}

// sooner is the shorter of two pauses, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// handle does what one object asks for.
func (s *Source) handle(ctx context.Context, obj *v1alpha1.CacheMigration) (again time.Duration, err error) {
	id, m := volume.ID(obj.Spec.VolumeName), idOf(obj)
	f, err := s.facts(ctx, obj)
	if err != nil {
		return 0, err
	}
	d := decide(f, s.Grace)
	if d == nothing && f.ended {
		s.dropKey(m)
	}
	if d == exportCache || d == release {
		// The informer may lag behind this node's own answer.
		if obj, err = load(ctx, s.Client, m); err != nil || obj == nil {
			return 0, err // when it is gone, forgotten comes to it
		}
		if f, err = s.facts(ctx, obj); err != nil {
			return 0, err
		}
		d = decide(f, s.Grace)
	}
	switch d {
	case exportCache:
		err = s.exportCache(ctx, obj)
	case release:
		if err = s.release(ctx, id, m); err == nil {
			err = s.answer(ctx, m, v1alpha1.ExportStateReleased, func(a *v1alpha1.MigrationSource) { a.Message = "" })
		}
	case nothing, wait:
	}
	if !f.ended && !obj.Spec.Deadline.IsZero() {
		again = max(obj.Spec.Deadline.Sub(s.Now()), time.Millisecond)
	}
	return again, err
}

func (s *Source) facts(ctx context.Context, obj *v1alpha1.CacheMigration) (facts, error) {
	served, _, err := s.Lessor.Lease(ctx, volume.ID(obj.Spec.VolumeName))
	if err != nil {
		return facts{}, err
	}
	deadline := obj.Spec.Deadline
	return facts{
		asked: true,
		// A destination that reads from the origin does not come back.
		ended: obj.Status.Outcome != "" || obj.DeletionTimestamp != nil || obj.Status.Progress.ServedFrom == v1alpha1.ServedFromOrigin ||
			!deadline.IsZero() && !s.Now().Before(deadline.Time),
		state:  obj.Status.Source.State.Now(),
		served: served.UID == string(obj.UID),
	}, nil
}

// exportCache exports what obj asks for, and answers. A volume that somebody else works on
// is tried again; whatever else is wrong is the answer, because a pod waits for it.
func (s *Source) exportCache(ctx context.Context, obj *v1alpha1.CacheMigration) error {
	id, m := volume.ID(obj.Spec.VolumeName), idOf(obj)
	done := s.announce(ctx, m)
	lease, publicKey, err := s.ask(ctx, obj)
	done()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, volume.ErrBusy):
		return fmt.Errorf("export for move %s: %w", m.Name, err)
	case err != nil:
		klog.FromContext(ctx).Info("Retained cache is not exported", "move", m.Name, "to", obj.Spec.DestinationNode, "reason", err.Error())
		if obj.Status.Source.State.Now() == v1alpha1.ExportStateExported {
			// It was exported before a restart, so that nobody may use it any more.
			if err := s.release(ctx, id, m); err != nil {
				return err
			}
		}
		return s.answer(ctx, m, v1alpha1.ExportStateRefused, func(a *v1alpha1.MigrationSource) {
			*a = v1alpha1.MigrationSource{Message: message(err.Error())}
		})
	}
	klog.FromContext(ctx).Info("Retained cache is exported", "move", m.Name, "to", obj.Spec.DestinationNode, "generation", obj.Spec.SourceGeneration)
	return s.answer(ctx, m, v1alpha1.ExportStateExported, func(a *v1alpha1.MigrationSource) {
		*a = v1alpha1.MigrationSource{
			PublicKey: publicKey, Portals: lease.Source.Portals, IQN: lease.Source.IQN,
			ChunkSizeBytes: int64(lease.ChunkSectors) * sectorSize, MetaBytes: lease.MetaBytes, DataBytes: lease.DataBytes, UnitID: lease.WWID, Modes: modesOf(lease),
		}
		answerTracked(a, lease.Tracked)
	})
}

// modesOf says in which modes an exported cache has been.
func modesOf(l volume.Lease) v1alpha1.ExportedModes {
	if l.WrittenThrough {
		return v1alpha1.ExportedWritethroughOnly
	}
	return v1alpha1.ExportedAlsoWriteback
}

// announce says that the source is at work if that takes long: many volumes may
// leave a node at once. The returned function ends it.
func (s *Source) announce(ctx context.Context, m volume.MoveID) (done func()) {
	said := make(chan struct{})
	slow := time.AfterFunc(announceAfter, func() {
		defer close(said)
		err := s.answer(ctx, m, v1alpha1.ExportStatePreparing, func(*v1alpha1.MigrationSource) {})
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("The destination is not told that its lease is being prepared", "move", m.Name, "reason", err.Error())
		}
	})
	return func() {
		if !slow.Stop() {
			<-said
		}
	}
}

// ask asks the Lessor. publicKey is this node's half of the agreement; a stream has none, and
// what only an export has is left out of its lease.
func (s *Source) ask(ctx context.Context, obj *v1alpha1.CacheMigration) (lease volume.Lease, publicKey string, err error) {
	method, err := methodOf(obj)
	if err != nil {
		return volume.Lease{}, "", err
	}
	r := volume.LeaseRequest{
		Move: idOf(obj), Volume: volume.ID(obj.Spec.VolumeName), UID: obj.Spec.VolumeUID, Generation: obj.Spec.SourceGeneration,
		Purpose: volume.MovePurpose(obj.Spec.Purpose), Request: obj.Spec.PrewarmRequest,
		Method: method, To: obj.Spec.DestinationNode,
	}
	if method == volume.MethodStream {
		lease, err = s.Lessor.Export(ctx, r)
		lease.Source, lease.MetaBytes = volume.ISCSI{}, 0
		return lease, "", err
	}
	key, err := s.key(r.Move)
	if err != nil {
		return volume.Lease{}, "", err
	}
	// The destination derives the same secret.
	if r.Credentials, err = agree(key.key, obj.Spec.DestinationPublicKey, r.Move, obj.Spec.DestinationPublicKey, key.text); err != nil {
		return volume.Lease{}, "", err
	}
	if r.Initiator, err = s.initiator(ctx, r.To); err != nil {
		return volume.Lease{}, "", err
	}
	lease, err = s.Lessor.Export(ctx, r)
	return lease, key.text, err
}

// initiator returns the iSCSI name of a node as the node itself reports it.
func (s *Source) initiator(ctx context.Context, node string) (string, error) {
	pool := &v1alpha1.CachePool{}
	if err := s.Client.Get(ctx, types.NamespacedName{Name: node}, pool); err != nil {
		return "", records.Error("read CachePool "+node, err)
	}
	if pool.Status.InitiatorIQN == "" {
		return "", unavailable("CachePool %s has no initiatorIQN yet", node)
	}
	return pool.Status.InitiatorIQN, nil
}

func (s *Source) key(m volume.MoveID) (leaseKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.keys[m.UID]; ok {
		return k, nil
	}
	key, err := newKey()
	if err != nil {
		return leaseKey{}, err
	}
	k := leaseKey{key: key, text: key.Public()}
	s.keys[m.UID] = k
	return k, nil
}

func (s *Source) dropKey(m volume.MoveID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, m.UID)
}

func (s *Source) release(ctx context.Context, id volume.ID, m volume.MoveID) error {
	if err := s.Lessor.Release(ctx, id, m); err != nil {
		return fmt.Errorf("release the lease of move %s: %w", m.Name, err)
	}
	klog.FromContext(ctx).Info("Lease is released", "move", m.Name)
	return nil
}

// answer writes the source's part of an object that is still there.
func (s *Source) answer(ctx context.Context, m volume.MoveID, state v1alpha1.ExportState, fill func(*v1alpha1.MigrationSource)) error {
	_, _, err := update(ctx, s.Client, m, func(obj *v1alpha1.CacheMigration) {
		fill(&obj.Status.Source)
		obj.Status.Source.State = state
	})
	if err == nil {
		s.dropKey(m)
	}
	return err
}

// forgotten ends the lease of a volume that no object speaks of.
func (s *Source) forgotten(ctx context.Context, id volume.ID, asked []v1alpha1.CacheMigration) (again time.Duration, err error) {
	m, served, err := s.Lessor.Lease(ctx, id)
	if err != nil {
		return 0, err
	}
	if !served || slices.ContainsFunc(asked, func(o v1alpha1.CacheMigration) bool { return idOf(&o) == m }) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.missing, id)
		return 0, nil
	}
	f := facts{served: true, missing: s.missingFor(id, m)}
	if decide(f, s.Grace) == wait {
		return s.Grace - f.missing, nil
	}
	// Once more with what is true now: the informer may not know a new object yet.
	obj, err := load(ctx, s.Client, m)
	if err != nil || obj != nil {
		return minBackoff, err
	}
	s.dropKey(m)
	return 0, s.release(ctx, id, m)
}

// missingFor reports for how long this process has known that a lease has no object.
func (s *Source) missingFor(id volume.ID, m volume.MoveID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	if known := s.missing[id]; known.move == m {
		return now.Sub(known.since)
	}
	s.missing[id] = missing{move: m, since: now}
	return 0
}
