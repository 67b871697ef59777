package moves

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

const (
	// maxMessage is the bound of messages in the API.
	maxMessage = 1024
	sectorSize = 512
)

// PrewarmName returns the name of the object of a prewarming.
func PrewarmName(id volume.ID, generation int64) string { return Name(id, generation) + "-prewarm" }

// ReadName returns the name of the object of one of the nodes that read a volume: they have one
// generation.
func ReadName(id volume.ID, generation int64, node string) string {
	return Name(id, generation) + "-read-" + volume.NodeDigits(node)
}

// Name returns the name of the object of a move: one per volume and ownership.
func Name(id volume.ID, generation int64) string {
	return string(id) + "-" + strconv.FormatInt(generation, 10)
}

func idOf(obj *v1alpha1.CacheMigration) volume.MoveID {
	return volume.MoveID{Name: obj.Name, UID: string(obj.UID)}
}

// newObject returns the object of a request, with the destination's half of the
// agreement if there is one: a stream needs none.
func newObject(r volume.MoveRequest, key *keyagreement.Key) *v1alpha1.CacheMigration {
	obj := &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(r.Volume, r.Fence.Generation),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "CachedVolume", Name: string(r.Volume), UID: types.UID(r.Fence.UID),
			}},
		},
		Spec: v1alpha1.CacheMigrationSpec{
			VolumeName: string(r.Volume), VolumeUID: r.Fence.UID, Generation: r.Fence.Generation, DestinationNode: r.Fence.Node,
			Method: v1alpha1.MigrationMethod(r.Method), MethodReason: message(r.Reason),
		},
	}
	switch r.Purpose {
	case volume.PurposePrewarm:
		obj.Name = PrewarmName(r.Volume, r.Fence.Generation)
		obj.Spec.Purpose, obj.Spec.PrewarmRequest = v1alpha1.MigrationPrewarm, r.Request
	case volume.PurposeRead:
		obj.Name, obj.Spec.Purpose = ReadName(r.Volume, r.Fence.Generation, r.Fence.Node), v1alpha1.MigrationRead
	case volume.PurposeMove:
	}
	if r.Bandwidth > 0 {
		obj.Spec.BandwidthBytesPerSecond = ptr.To(r.Bandwidth)
	}
	if r.Source != nil {
		obj.Spec.SourceNode, obj.Spec.SourceGeneration = r.Source.Node, r.Source.Generation
		if key != nil {
			obj.Spec.DestinationPublicKey = key.Public()
		}
		if !r.Deadline.IsZero() {
			obj.Spec.Deadline = metav1.NewTime(r.Deadline)
		}
	}
	return obj
}

// load reads the object of a move; nil if it, or the one of that UID, is gone.
// Errors: ErrUnavailable.
func load(ctx context.Context, c client.Client, m volume.MoveID) (*v1alpha1.CacheMigration, error) {
	obj := &v1alpha1.CacheMigration{}
	err := c.Get(ctx, types.NamespacedName{Name: m.Name}, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, records.Error("read CacheMigration "+m.Name, err)
	}
	if string(obj.UID) != m.UID {
		return nil, nil
	}
	return obj, nil
}

// update lets change write the status of a move's object. After a lost race it
// begins anew, so that change always judges what it overwrites. The object is nil
// if it is gone, and changed is false if there was nothing to write.
// Errors: ErrBusy, ErrInvalid, ErrUnavailable.
func update(ctx context.Context, c client.Client, m volume.MoveID, change func(*v1alpha1.CacheMigration)) (obj *v1alpha1.CacheMigration, changed bool, err error) {
	err = records.Retry(ctx, func() error {
		obj, changed, err = updateOnce(ctx, c, m, change)
		return err
	})
	return obj, changed, err
}

func updateOnce(ctx context.Context, c client.Client, m volume.MoveID, change func(*v1alpha1.CacheMigration)) (*v1alpha1.CacheMigration, bool, error) {
	obj, err := load(ctx, c, m)
	if err != nil || obj == nil {
		return nil, false, err
	}
	base := obj.DeepCopy()
	change(obj)
	if equality.Semantic.DeepEqual(base.Status, obj.Status) {
		return obj, false, nil
	}
	err = c.Status().Patch(ctx, obj, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, records.Error("write status of CacheMigration "+m.Name, err)
	}
	return obj, true, nil
}

// message fits a text into the API: bounded, in one line.
func message(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\n", "; "), "?")
	if len(text) <= maxMessage {
		return text
	}
	cut := maxMessage
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}

// unavailable is the error of a move that cannot begin.
func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", volume.ErrUnavailable, fmt.Sprintf(format, args...))
}
