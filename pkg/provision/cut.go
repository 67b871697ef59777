package provision

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cutSteps is more than any cut has: a definition of CachedVolume that keeps no hold must not
// have the same step taken for ever.
const cutSteps = 16

// heldBy is a hold that this process has put there.
type heldBy struct{ token, takeover string }

// cutting is one cut under way.
type cutting struct {
	name  volume.SnapshotID
	of    volume.ID
	at    place
	class string
	snaps backend.Snapshots
	// obj and sight are those of the last look.
	obj   *v1alpha1.CachedVolume
	sight sight
	facts cutFacts
}

// cut makes a cut of a volume that is held, or finds it. Each step is decided anew by what is
// there, so that a call goes on where another one was killed.
func (s *Service) cut(ctx context.Context, name volume.SnapshotID, of volume.ID, class string) (backend.Cut, place, error) {
	c, err := s.beginCut(ctx, name, of, class)
	if err != nil {
		return backend.Cut{}, onServer, err
	}
	log := logr.FromContextOrDiscard(ctx)
	for range cutSteps {
		if err := s.gatherCut(ctx, c); err != nil {
			return backend.Cut{}, c.at, err
		}
		step, err := decideCut(c.facts)
		if err != nil {
			return backend.Cut{}, c.at, err
		}
		log.V(2).Info("Cutting volume", "volume", of, "cut", name, "step", step)
		if step == cutAnswer {
			s.holds.forget(of)
			return *c.facts.Cut, c.at, s.endHold(ctx, of, name)
		}
		if err := s.takeCutStep(ctx, c, step); err != nil {
			return backend.Cut{}, c.at, err
		}
	}
	return backend.Cut{}, c.at, fmt.Errorf("%w: volume %s changes while it is cut for %s", volume.ErrBusy, of, name)
}

// beginCut finds where a volume lies. The snapshot of one whose record is gone is found where
// there is one of its name.
func (s *Service) beginCut(ctx context.Context, name volume.SnapshotID, of volume.ID, class string) (*cutting, error) {
	obj, err := records.Load(ctx, s.client, of)
	if errors.Is(err, volume.ErrNotFound) {
		for _, at := range s.configured() {
			snaps, err := s.snapshots(at, volume.ErrInvalid)
			if err != nil {
				continue
			}
			if _, err := snaps.Find(ctx, name); err == nil {
				return &cutting{name: name, of: of, at: at, class: class, snaps: snaps}, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	at := placeOf(obj)
	switch {
	case obj.Spec.Static != nil:
		return nil, fmt.Errorf("%w: volume %s is a static LUN, whose server nearflash does not control: make the snapshot there", volume.ErrInvalid, of)
	case class != "" && at == onServer:
		return nil, fmt.Errorf("%w: parameter originSnapshotClass: %q goes with volumes of backend %s, and volume %s has backend %s; leave it out",
			volume.ErrInvalid, class, records.BackendCSI, of, records.BackendISCSI)
	}
	snaps, err := s.snapshots(at, volume.ErrInvalid)
	return &cutting{name: name, of: of, at: at, class: class, snaps: snaps}, err
}

// gatherCut looks: at the cut, whom the storage admits, and then at the record. A hold that the
// record has then was there when the cut was found.
func (s *Service) gatherCut(ctx context.Context, c *cutting) error {
	c.facts = cutFacts{Name: c.name, Volume: c.of}
	switch found, err := c.snaps.Find(ctx, c.name); {
	case err == nil:
		c.facts.Cut = &found
	case !errors.Is(err, volume.ErrNotFound):
		return fmt.Errorf("find snapshot %s: %w", c.name, err)
	}
	if cut := c.facts.Cut; cut != nil && (cut.Accepted || cut.Volume != c.of) {
		return nil // the volume has no say in it
	}
	var accessErr error
	c.sight, accessErr = s.inspect(ctx, c.of, c.at)
	obj, err := records.Load(ctx, s.client, c.of)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err = errors.Join(err, accessErr); err != nil {
		return err
	}
	if placeOf(obj) != c.at || obj.Spec.Static != nil {
		return fmt.Errorf("%w: the record of volume %s was made anew meanwhile", volume.ErrBusy, c.of)
	}
	v, err := records.Volume(obj)
	if err != nil {
		return err
	}
	c.obj, c.facts.Record = obj, &v
	c.facts.Admitted = len(c.sight.Exports) > 0
	c.facts.Filesystem = contentOf(obj, c.sight)
	c.facts.Ours = v.Hold != nil && s.holds.has(c.of, heldBy{v.Hold.Token, c.sight.takeover})
	if v.Published {
		c.facts.Lost, err = s.lost(ctx, v.Fence.Node)
	}
	return err
}

// contentOf is what a record says of the content of a volume, also of one that nobody ever had.
func contentOf(obj *v1alpha1.CachedVolume, access sight) volume.Formatted {
	if neverPublished(obj) && access.Generation == 0 && !records.IsStatic(obj) {
		return volume.FormatNever
	}
	return records.Filesystem(obj.Status.Filesystem)
}

// lost reports whether Kubernetes does not hear of a node, or has it no more.
func (s *Service) lost(ctx context.Context, name string) (bool, error) {
	node := &corev1.Node{}
	err := s.client.Get(ctx, types.NamespacedName{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, records.Error("read Node "+name, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionTrue, nil
		}
	}
	return true, nil
}

// takeCutStep takes one step. Each may be repeated from its beginning.
func (s *Service) takeCutStep(ctx context.Context, c *cutting, step cutStep) error {
	switch step {
	case cutHold:
		return s.hold(ctx, c)
	case cutFlush:
		return s.patch(ctx, c.obj, func(obj *v1alpha1.CachedVolume) { obj.Spec.FlushRequest = obj.Spec.Hold.Token })
	case cutSettle:
		return s.settle(ctx, c.of, c.at)
	case cutDrop:
		return s.dropCut(ctx, c)
	case cutAccept:
		err := c.snaps.Accept(c.sight.of(ctx), c.name, c.facts.Record.Hold.Token)
		if err != nil && !errors.Is(err, volume.ErrNotFound) { // another process has dropped it
			return fmt.Errorf("accept snapshot %s: %w", c.name, err)
		}
		return nil
	case cutCut:
		return s.orderCut(ctx, c)
	case cutWait, cutAnswer:
	}
	var renewed error
	if c.facts.Record.PossiblyDirty { // it takes as long as it takes; what else does not come about may not hold the volume for ever
		renewed = s.renewHold(ctx, c)
	}
	return errors.Join(renewed, fmt.Errorf("%w: node %s flushes volume %s before it is cut for %s", volume.ErrBusy, c.facts.Record.Fence.Node, c.of, c.name))
}

// hold puts a hold of this process on the record, and asks the node that has the volume for a
// flush: who answers it has seen the hold. A flush that somebody waits for is left to its end.
func (s *Service) hold(ctx context.Context, c *cutting) error {
	token := "hold-" + rand.Text()
	s.holds.put(c.of, heldBy{token, c.sight.takeover})
	return s.patch(ctx, c.obj, func(obj *v1alpha1.CachedVolume) {
		obj.Spec.Hold = &v1alpha1.VolumeHold{Name: string(c.name), Token: token, Since: metav1.NewTime(s.now())}
		if v := c.facts.Record; v.Published && !v.FlushPending() {
			obj.Spec.FlushRequest = token
		}
	})
}

// patch changes an object as it was read. Errors: ErrBusy if somebody has written it since.
func (s *Service) patch(ctx context.Context, obj *v1alpha1.CachedVolume, change func(*v1alpha1.CachedVolume)) error {
	base := obj.DeepCopy()
	change(obj)
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	return records.Error("write CachedVolume "+obj.Name, s.client.Patch(ctx, obj, patch))
}

// dropCut deletes a cut whose hold is over. A hold that is over does not come back.
func (s *Service) dropCut(ctx context.Context, c *cutting) error {
	if err := c.snaps.DropCut(c.sight.of(ctx), c.name, c.facts.Cut.Hold); err != nil {
		return fmt.Errorf("delete snapshot %s, which was not accepted: %w", c.name, err)
	}
	return nil
}

// orderCut asks for the cut. What the storage refuses for good does not keep the volume in
// writethrough mode.
func (s *Service) orderCut(ctx context.Context, c *cutting) error {
	cut, err := c.snaps.Cut(c.sight.of(ctx), c.name, c.of, backend.CutRequest{
		Hold: c.facts.Record.Hold.Token, Filesystem: c.facts.Filesystem, Class: c.class,
	})
	switch {
	case errors.Is(err, volume.ErrInvalid), errors.Is(err, volume.ErrNoSpace):
		return errors.Join(fmt.Errorf("cut volume %s for %s: %w", c.of, c.name, err), s.endHold(ctx, c.of, c.name))
	case err != nil: // and the hold ends, if that goes on
		return fmt.Errorf("cut volume %s for %s: %w", c.of, c.name, err)
	case !cut.Done:
		return errors.Join(s.renewHold(ctx, c), fmt.Errorf("%w: volume %s is being cut for %s", volume.ErrBusy, c.of, c.name))
	}
	return nil
}

// renewHold says that the cut is still asked for.
func (s *Service) renewHold(ctx context.Context, c *cutting) error {
	token := c.facts.Record.Hold.Token
	return records.UpdateObject(ctx, s.client, c.of, func(obj *v1alpha1.CachedVolume) error {
		if h := obj.Spec.Hold; h != nil && h.Token == token {
			h.Since = metav1.NewTime(s.now())
		}
		return nil
	})
}

// endHold ends the hold of a volume for a cut, if there is one.
func (s *Service) endHold(ctx context.Context, of volume.ID, name volume.SnapshotID) error {
	return records.EndHold(ctx, s.client, of, func(h volume.Hold) bool { return h.Name == name })
}
