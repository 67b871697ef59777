package moves

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// leaveTimeout is how long the other node has for leaving a lease.
	leaveTimeout = 4 * time.Second
	// leavePoll is the pause between two looks at a lease that is being left.
	leavePoll = 100 * time.Millisecond
)

// handing is a lease that is given up.
type handing struct {
	id   volume.ID
	move volume.MoveID
	// object is the one of the move; nil if it is gone.
	object *v1alpha1.CacheMigration
}

// read reports whether the destination reads from this node, so that it has to be told.
func (h handing) read() bool {
	return h.object != nil && h.object.Status.Outcome == "" && h.object.DeletionTimestamp == nil &&
		h.object.Status.Progress.ServedFrom != v1alpha1.ServedFromOrigin
}

// left is how many bytes are still to be copied; more than any number if that is not known.
func (h handing) left() int64 {
	if h.object == nil || h.object.Status.Progress.TotalBytes == nil {
		return math.MaxInt64
	}
	p := h.object.Status.Progress
	return *p.TotalBytes - ptr.Deref(p.HydratedBytes, 0)
}

// How leases are given up one after the other: those that pods read through, streams, and
// those of volumes that have not come yet.
const (
	rankClone = iota
	rankStream
	rankNobody
)

// rank is when a lease is given up. No pod waits for a stream, and what has not been sent is
// read from the origin, so that a stream goes on while clones are told.
func (h handing) rank() int {
	switch {
	case h.object == nil || h.object.Spec.Purpose == v1alpha1.MigrationPrewarm:
		return rankNobody
	case h.object.Spec.Method == v1alpha1.MigrationStream:
		return rankStream
	}
	return rankClone
}

// inOrder sorts leases as they are given up (states.md, A node that is shut down).
func inOrder(leases []handing) {
	slices.SortFunc(leases, func(a, b handing) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(b.left(), a.left()), cmp.Compare(a.id, b.id))
	})
}

// HandOver gives all leases up because the node is shut down for the given reason:
// each destination is told, one after the other, and each export ends when its
// destination has left it. It may run when Run has returned, and lasts until ctx ends
// at most; what it has not come to goes on until the kernel stops.
func (s *Source) HandOver(ctx context.Context, reason string) error {
	leases, err := s.handings(ctx)
	if err != nil || len(leases) == 0 {
		return err
	}
	log := klog.FromContext(ctx)
	log.Info("Leases are given up", "leases", len(leases), "reason", reason)
	began := s.Now()
	var wg sync.WaitGroup
	errs := make([]error, len(leases))
	for i, h := range leases {
		if h.read() {
			errs[i] = s.abandonExport(ctx, h.move, reason)
		}
		if errs[i] == nil {
			wg.Go(func() { errs[i] = s.handOver(ctx, h) })
		}
	}
	wg.Wait()
	for i, h := range leases {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("lease of volume %s: %w", h.id, errs[i])
		}
	}
	log.Info("Leases were given up", "took", s.Now().Sub(began))
	return errors.Join(errs...)
}

// abandonExport tells the destination of a move. Nobody else writes the source's part, so
// that one request is enough; time is short, and there may be many moves.
func (s *Source) abandonExport(ctx context.Context, m volume.MoveID, reason string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": m.UID}, // of no later move of that name
		"status":   map[string]any{"source": map[string]any{"state": v1alpha1.ExportStateReleased, "message": message(reason)}},
	})
	if err != nil {
		return err
	}
	obj := &v1alpha1.CacheMigration{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	err = s.Client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, which says the same
	}
	return records.Error("write status of CacheMigration "+m.Name, err)
}

// handings are the leases of this node in the order in which they are given up. They
// are read from the API server itself: this process watches nothing any more.
func (s *Source) handings(ctx context.Context) ([]handing, error) {
	served, err := s.Lessor.Leases(ctx)
	if err != nil {
		return nil, fmt.Errorf("leases of this node: %w", err)
	}
	if len(served) == 0 {
		return nil, nil
	}
	var list v1alpha1.CacheMigrationList
	if err := s.Client.List(ctx, &list, client.MatchingFields{sourceField: s.Node}); err != nil {
		return nil, fmt.Errorf("list of CacheMigrations: %w", err)
	}
	objects := map[volume.MoveID]*v1alpha1.CacheMigration{}
	for i := range list.Items {
		objects[idOf(&list.Items[i])] = &list.Items[i]
	}
	var out []handing
	for id, m := range served {
		out = append(out, handing{id: id, move: m, object: objects[m]})
	}
	inOrder(out)
	return out, nil
}

// handOver ends one lease when its destination has left it, or has had its time.
func (s *Source) handOver(ctx context.Context, h handing) error {
	log := klog.FromContext(ctx).WithValues("volume", h.id, "move", h.move.Name)
	left, err := s.awaitLeft(ctx, h.id)
	if ctx.Err() != nil {
		return ctx.Err() // the kernel serves on
	}
	if err != nil {
		log.Error(err, "Whether the other node has left the lease is not known")
	}
	_ = apiwait.PollUntilContextCancel(ctx, leavePoll, true, func(ctx context.Context) (bool, error) {
		err = s.Lessor.EndLease(ctx, h.id, h.move)
		return !errors.Is(err, volume.ErrBusy), nil
	}) // err says more
	if err == nil {
		log.Info("Lease is given up", "left", left)
	}
	return err
}

// awaitLeft waits until the other node has no session with a lease any more, and
// reports whether that is so.
func (s *Source) awaitLeft(ctx context.Context, id volume.ID) (left bool, err error) {
	_ = apiwait.PollUntilContextTimeout(ctx, leavePoll, leaveTimeout, true, func(ctx context.Context) (bool, error) {
		var used bool
		used, err = s.Lessor.InUse(ctx, id)
		left = err == nil && !used
		return left, nil
	}) // left says so
	return left, err
}
