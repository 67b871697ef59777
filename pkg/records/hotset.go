package records

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/volume"
)

// HotSets is volume.HotSets over CacheHotSet objects. Each is owned by its
// CachedVolume and goes with it.
type HotSets struct {
	client client.Client
}

var _ volume.HotSets = (*HotSets)(nil)

// NewHotSets returns HotSets. c must read from the API server itself: nothing here
// is worth an informer's memory.
func NewHotSets(c client.Client) *HotSets { return &HotSets{client: c} }

// Load implements volume.HotSets. The hot set of an earlier volume of the same name
// is as good as none. Errors: ErrNotFound, ErrUnavailable.
func (h *HotSets) Load(ctx context.Context, id volume.ID, uid string) (volume.HotSet, error) {
	obj, err := h.get(ctx, id)
	if err != nil {
		return volume.HotSet{}, err
	}
	if obj.VolumeUID != uid {
		return volume.HotSet{}, fmt.Errorf("%w: CacheHotSet %s is of a volume with UID %s, asked for was %s", volume.ErrNotFound, id, obj.VolumeUID, uid)
	}
	return volume.HotSet{Blocks: obj.Blocks, Recorded: obj.RecordedTime.Time}, nil
}

// Store implements volume.HotSets. Errors: ErrInvalid for more than 64 KiB,
// ErrBusy or ErrExists after a lost race, ErrUnavailable.
func (h *HotSets) Store(ctx context.Context, id volume.ID, uid string, set volume.HotSet) error {
	if len(set.Blocks) > v1alpha1.MaxHotSetBytes {
		return fmt.Errorf("%w: hot set of volume %s has %d bytes, at most %d are kept", volume.ErrInvalid, id, len(set.Blocks), v1alpha1.MaxHotSetBytes)
	}
	return Retry(ctx, func() error {
		obj, err := h.get(ctx, id)
		if errors.Is(err, volume.ErrNotFound) {
			obj = &v1alpha1.CacheHotSet{ObjectMeta: metav1.ObjectMeta{Name: string(id)}}
			fillHotSet(obj, id, uid, set)
			return Error("create CacheHotSet "+string(id), h.client.Create(ctx, obj))
		}
		if err != nil {
			return err
		}
		base := obj.DeepCopy()
		fillHotSet(obj, id, uid, set)
		if equality.Semantic.DeepEqual(base, obj) {
			return nil
		}
		patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
		return Error("write CacheHotSet "+string(id), h.client.Patch(ctx, obj, patch))
	})
}

func (h *HotSets) get(ctx context.Context, id volume.ID) (*v1alpha1.CacheHotSet, error) {
	obj := &v1alpha1.CacheHotSet{}
	if err := h.client.Get(ctx, types.NamespacedName{Name: string(id)}, obj); err != nil {
		return nil, Error("read CacheHotSet "+string(id), err)
	}
	return obj, nil
}

func fillHotSet(obj *v1alpha1.CacheHotSet, id volume.ID, uid string, set volume.HotSet) {
	obj.OwnerReferences = []metav1.OwnerReference{ownedBy(id, uid)}
	obj.VolumeUID, obj.Blocks, obj.RecordedTime = uid, set.Blocks, metav1.NewTime(set.Recorded)
}

// ownedBy refers to a volume's record as the owner of an object: the garbage
// collector of Kubernetes deletes the object after it.
func ownedBy(id volume.ID, uid string) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "CachedVolume", Name: string(id), UID: types.UID(uid),
	}
}
