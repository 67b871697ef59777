package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/volume"
)

// maxRetainedCaches is the bound of status.retainedCaches in the API.
const maxRetainedCaches = 64

// Records is volume.Records over the API server.
type Records struct {
	client client.Client
	events events.EventRecorder
	now    func() time.Time
}

var _ volume.Records = (*Records)(nil)

// New returns Records. c must read from the API server itself; now tells the time.
func New(c client.Client, recorder events.EventRecorder, now func() time.Time) *Records {
	return &Records{client: c, events: recorder, now: now}
}

// Get implements volume.Records.
func (r *Records) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	obj, err := Load(ctx, r.client, id)
	if err != nil {
		return volume.Volume{}, err
	}
	return Volume(obj)
}

// MarkPossiblyDirty implements volume.Records.
func (r *Records) MarkPossiblyDirty(ctx context.Context, id volume.ID, f volume.Fence) error {
	err := UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		if Fence(obj) != f || obj.Status.Publication != v1alpha1.PublicationPublished {
			return fencedError(obj, f)
		}
		if h := obj.Spec.Hold; h != nil && obj.Status.DirtyState != v1alpha1.DirtyStatePossiblyDirty {
			return fmt.Errorf("%w: volume %s is held for %s: until it is cut, it takes no writes that the storage server does not have", volume.ErrBusy, id, h.Name)
		}
		obj.Status.DirtyState = v1alpha1.DirtyStatePossiblyDirty
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("%w: CachedVolume %s does not exist, so nothing could hold the mark", volume.ErrFenced, id)
	}
	return err
}

// MarkClean implements volume.Records.
func (r *Records) MarkClean(ctx context.Context, id volume.ID, f volume.Fence) error {
	err := r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.DirtyState = v1alpha1.DirtyStateClean
		// The owner's next report may be a while off, or be as good as its last one.
		if c := &obj.Status.Cache; c.DirtyBytes != nil {
			c.DirtyBytes, c.Dirty, c.DirtySinceTime = ptr.To(int64(0)), quantity.Text(0), metav1.Time{}
		}
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// PendActivation implements volume.Records.
func (r *Records) PendActivation(ctx context.Context, id volume.ID, f volume.Fence, a volume.Activation) (held bool, err error) {
	err = Retry(ctx, func() error {
		obj, err := Load(ctx, r.client, id)
		if err != nil {
			return err
		}
		if !published(obj, f) {
			return fencedError(obj, f)
		}
		if byMany(obj) {
			return nil // what readers have cached does not get old, and there is one place for an activation
		}
		err = WriteStatus(ctx, r.client, obj, func(s *v1alpha1.CachedVolumeStatus) { s.PendingActivation = objectActivation(a) })
		// An API server drops what the definition does not have, without an error.
		held = err == nil && activation(obj.Status.PendingActivation) == a
		return err
	})
	if errors.Is(err, volume.ErrNotFound) {
		err = fmt.Errorf("%w: CachedVolume %s does not exist, so nothing could hold the activation", volume.ErrFenced, id)
	}
	return held, err
}

// SetActivation implements volume.Records.
func (r *Records) SetActivation(ctx context.Context, id volume.ID, f volume.Fence, a volume.Activation) error {
	err := UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		if FenceFor(obj, f.Node) != f {
			return fencedError(obj, f)
		}
		if byMany(obj) {
			return nil
		}
		known := volume.Volume{Activation: activation(obj.Status.Activation), Pending: activation(obj.Status.PendingActivation)}
		switch {
		case known.Identify(volume.Activation{ID: a.ID, Generation: f.Generation, Count: a.Count}) == volume.IdentityPast:
			return fmt.Errorf("%w: CachedVolume %s knows a later stage of the volume on node %q: the disks of that node were restored from an image, or there are two machines of its name", volume.ErrFenced, obj.Name, f.Node)
		case a.ID == "":
			return nil
		}
		obj.Status.Activation = objectActivation(a)
		if obj.Status.PendingActivation.ID == a.ID {
			obj.Status.PendingActivation = v1alpha1.Activation{}
		}
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// SetFormatted implements volume.Records.
func (r *Records) SetFormatted(ctx context.Context, id volume.ID, f volume.Fence, state volume.Formatted) error {
	err := UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		if Fence(obj) != f || obj.Status.Publication != v1alpha1.PublicationPublished {
			return fencedError(obj, f)
		}
		next := ObjectFilesystem(state)
		if was := Filesystem(obj.Status.Filesystem); was == volume.FormatDone && state != was {
			return fmt.Errorf("%w: volume %s is %s already, nobody makes it %s again", volume.ErrFenced, id, ObjectFilesystem(was), next)
		}
		obj.Status.Filesystem = next
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("%w: CachedVolume %s does not exist, so nothing could hold the state of its filesystem", volume.ErrFenced, id)
	}
	return err
}

// TakeWarmSource implements volume.Records. It does not ask whether f's node is
// published: withdrawing costs warmth and nothing else.
func (r *Records) TakeWarmSource(ctx context.Context, id volume.ID, f volume.Fence) error {
	err := r.updateOwned(ctx, id, f, func(obj *v1alpha1.CachedVolume) error {
		obj.Status.WarmSource = v1alpha1.WarmSource{}
		return nil
	})
	if errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("%w: CachedVolume %s does not exist, so nothing could be withdrawn", volume.ErrFenced, id)
	}
	return err
}

// updateOwned is UpdateStatus for the owner of a volume alone: ErrFenced if the record shows another
// ownership than f.
func (r *Records) updateOwned(ctx context.Context, id volume.ID, f volume.Fence, change func(*v1alpha1.CachedVolume) error) error {
	return UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		if Fence(obj) != f {
			return fencedError(obj, f)
		}
		return change(obj)
	})
}

// fencedError says what the record shows instead of f.
func fencedError(obj *v1alpha1.CachedVolume, f volume.Fence) error {
	now := FenceFor(obj, f.Node)
	if now.UID != f.UID {
		return fmt.Errorf("%w: CachedVolume %s has UID %s, this node knows %s: the volume was deleted and made anew", volume.ErrFenced, obj.Name, now.UID, f.UID)
	}
	return fmt.Errorf("%w: CachedVolume %s shows owner %q, generation %d, publication %q; node %q asked for generation %d",
		volume.ErrFenced, obj.Name, now.Node, now.Generation, obj.Status.Publication, f.Node, f.Generation)
}

// SetRetainedCache implements volume.Records. A missing record is success when the
// entry is to be removed.
func (r *Records) SetRetainedCache(ctx context.Context, id volume.ID, node string, res *volume.RetainedCache) error {
	err := UpdateStatus(ctx, r.client, id, func(obj *v1alpha1.CachedVolume) error {
		list := obj.Status.RetainedCaches
		at := slices.IndexFunc(list, func(e v1alpha1.RetainedCache) bool { return e.NodeName == node })
		switch {
		case res == nil && at < 0:
		case res == nil:
			obj.Status.RetainedCaches = slices.Delete(list, at, at+1)
		case at >= 0:
			list[at] = r.retainedCache(node, *res)
		case len(list) < maxRetainedCaches:
			obj.Status.RetainedCaches = append(list, r.retainedCache(node, *res))
		default:
			// The list informs; the node's journal decides about reuse. Failing
			// here would hold up the unstage.
			logr.FromContextOrDiscard(ctx).Info("Retained cache not recorded, the list is full", "volume", id, "entries", len(list))
		}
		return nil
	})
	if res == nil && errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

func (r *Records) retainedCache(node string, res volume.RetainedCache) v1alpha1.RetainedCache {
	out := v1alpha1.RetainedCache{
		NodeName:     node,
		Generation:   res.Generation,
		SizeBytes:    ptr.To(res.SizeBytes),
		LastUsedTime: metav1.NewTime(r.now()),
	}
	if res.Partial {
		out.Content = v1alpha1.RetainedCachePartial
	}
	return out
}
