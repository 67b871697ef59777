package records

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// attempts bounds how often a write is repeated that lost a race. The
	// writers of one object are its node and the controller, or two nodes.
	attempts = 6
	// backoff is the longest first pause between two attempts.
	backoff = 20 * time.Millisecond
)

// Error turns an error of the API client into one of package volume. A lost
// race becomes ErrBusy, anything that is not the request's fault
// ErrUnavailable.
func Error(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// Not the 404 of somebody who does not know such objects at all (a version that is
		// not served, a proxy): that is no proof that a volume was deleted.
		return fmt.Errorf("%s: %w: %w", doing, volume.ErrNotFound, err)
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s: %w: %w", doing, volume.ErrExists, err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s: %w: %w", doing, volume.ErrBusy, err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return fmt.Errorf("%s: %w: %w", doing, volume.ErrInvalid, err)
	default:
		return fmt.Errorf("%s: %w: %w", doing, volume.ErrUnavailable, err)
	}
}

// Load reads the object of a volume from the API server.
// Errors: ErrNotFound, ErrUnavailable.
func Load(ctx context.Context, c client.Client, id volume.ID) (*v1alpha1.CachedVolume, error) {
	obj := &v1alpha1.CachedVolume{}
	if err := c.Get(ctx, types.NamespacedName{Name: string(id)}, obj); err != nil {
		return nil, Error("read CachedVolume "+string(id), err)
	}
	return obj, nil
}

// WriteStatus changes the status of obj as it was read: it fails with ErrBusy if
// anybody has written the object since. obj then shows what is stored. Nothing is
// written if change leaves the status as it is.
func WriteStatus(ctx context.Context, c client.Client, obj *v1alpha1.CachedVolume, change func(*v1alpha1.CachedVolumeStatus)) error {
	base := obj.DeepCopy()
	change(&obj.Status)
	if equality.Semantic.DeepEqual(base.Status, obj.Status) {
		return nil
	}
	// A patch, so that fields of a later version of the API survive; with the
	// version in it, so that it applies to what was read or not at all.
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	return Error("write status of CachedVolume "+obj.Name, c.Status().Patch(ctx, obj, patch))
}

// UpdateStatus reads the object, lets change decide, and writes; after a lost
// race it begins anew, so that change always judges what it overwrites. An error
// of change ends it. Errors: those of Load and WriteStatus.
func UpdateStatus(ctx context.Context, c client.Client, id volume.ID, change func(*v1alpha1.CachedVolume) error) error {
	return Retry(ctx, func() error {
		obj, err := Load(ctx, c, id)
		if err != nil {
			return err
		}
		changed := obj.DeepCopy()
		if err := change(changed); err != nil {
			return err
		}
		return WriteStatus(ctx, c, obj, func(s *v1alpha1.CachedVolumeStatus) { *s = changed.Status })
	})
}

// UpdateObject is UpdateStatus for metadata and spec.
func UpdateObject(ctx context.Context, c client.Client, id volume.ID, change func(*v1alpha1.CachedVolume) error) error {
	return Retry(ctx, func() error {
		obj, err := Load(ctx, c, id)
		if err != nil {
			return err
		}
		base := obj.DeepCopy()
		if err := change(obj); err != nil {
			return err
		}
		if equality.Semantic.DeepEqual(base, obj) {
			return nil
		}
		patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
		return Error("write CachedVolume "+obj.Name, c.Patch(ctx, obj, patch))
	})
}

// Retry repeats f while the API server says that it lost a race.
// Errors: those of f, and ErrUnavailable when ctx ends.
func Retry(ctx context.Context, f func() error) error {
	var err error
	for i := range attempts {
		if err = f(); !apierrors.IsConflict(err) {
			return err
		}
		pause := time.Duration(rand.Int64N(int64(backoff<<i))) + time.Millisecond
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w: %v", volume.ErrUnavailable, ctx.Err(), err)
		case <-time.After(pause):
		}
	}
	return err
}
