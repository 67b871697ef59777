package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/passes"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// cutSteps is more than any cut has: a definition of CachedVolume that keeps no hold must not
// have the same step taken for ever.
const cutSteps = 16

// cutOrder is a cut that is asked for.
type cutOrder struct {
	name volume.SnapshotID
	of   volume.ID
	// class is what a snapshot's class says; "" as that of the other driver is its default.
	class volume.SnapshotClass
	// clone is the record of the clone that the cut is for, nil for a snapshot.
	clone *v1alpha1.CachedVolume
	// group is the mark of the group that the cut is for, "" for a single one.
	group string
	// begin is what is asked for of that clone, and limit the most bytes that it may have, 0 for
	// any.
	begin backend.Request
	limit int64
}

// cutting is one cut under way.
type cutting struct {
	cutOrder
	at    place
	snaps backend.Snapshots
	// obj and sight are those of the last look.
	obj   *v1alpha1.CachedVolume
	sight sight
	facts cutFacts
}

// cut makes a cut of a volume that is held, or finds it. Each step is decided anew by what is
// there, so that a call goes on where another one was killed.
func (s *Service) cut(ctx context.Context, o cutOrder) (backend.Cut, place, error) {
	c, err := s.beginCut(ctx, o)
	if err != nil {
		return backend.Cut{}, place{}, err
	}
	log := logr.FromContextOrDiscard(ctx)
	steps := cutSteps
	if o.class.Freeze {
		steps += frozenSteps
	}
	for range steps {
		if err := s.gatherCut(ctx, c); err != nil {
			return backend.Cut{}, c.at, err
		}
		step, err := decideCut(c.facts)
		if err != nil {
			return backend.Cut{}, c.at, err
		}
		log.V(2).Info("Cutting volume", "volume", o.of, "cut", o.name, "step", step)
		if step == cutAnswer {
			s.refusals.forget(o.name)
			return *c.facts.Cut, c.at, s.endHold(ctx, o.of, o.name)
		}
		if err := s.takeCutStep(ctx, c, step); err != nil {
			return backend.Cut{}, c.at, err
		}
	}
	return backend.Cut{}, c.at, fmt.Errorf("%w: volume %s changes while it is cut for %s", volume.ErrBusy, o.of, o.name)
}

// beginCut finds where a volume lies. The snapshot of one whose record is gone is found where
// there is one of its name.
func (s *Service) beginCut(ctx context.Context, o cutOrder) (*cutting, error) {
	obj, err := records.Load(ctx, s.client, o.of)
	if errors.Is(err, volume.ErrNotFound) {
		if c, findErr := s.findUnrecorded(ctx, o); c != nil || findErr != nil {
			return c, findErr
		}
	}
	if err != nil {
		return nil, err
	}
	return s.cuttingOf(o, obj)
}

// findUnrecorded looks for the cut of a volume that has no record; nil says that there is none,
// which is final: all storages have said so.
func (s *Service) findUnrecorded(ctx context.Context, o cutOrder) (*cutting, error) {
	unknown := s.allReachable(ctx)
	for _, at := range s.configured() {
		snaps, err := s.snapshots(at, volume.ErrInvalid)
		if err != nil {
			continue
		}
		err = s.within(ctx, at, listPatience, func(ctx context.Context) error {
			_, err := snaps.Find(ctx, o.name)
			return err
		})
		switch {
		case err == nil:
			return &cutting{cutOrder: o, at: at, snaps: snaps}, nil
		case !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, volume.ErrInvalid):
			unknown = errors.Join(unknown, fmt.Errorf("find snapshot %s of volume %s, which has no record: %w", o.name, o.of, err))
		}
	}
	return nil, unknown
}

// cuttingOf is beginCut for a volume that has a record.
func (s *Service) cuttingOf(o cutOrder, obj *v1alpha1.CachedVolume) (*cutting, error) {
	at := placeOf(obj)
	switch {
	case obj.Spec.Static != nil:
		return nil, fmt.Errorf("%w: volume %s is a static LUN, whose server nearflash does not control: make the snapshot there", volume.ErrInvalid, o.of)
	case o.class.Origin != "" && !at.origin:
		return nil, fmt.Errorf("%w: parameter originSnapshotClass: %q goes with volumes of backend %s, and volume %s has backend %s; leave it out",
			volume.ErrInvalid, o.class.Origin, records.BackendCSI, o.of, records.BackendISCSI)
	}
	// The record names it, and an earlier call may have cut there: a refusal would be final.
	if _, err := s.storage(at, volume.ErrUnavailable); err != nil {
		return nil, err
	}
	snaps, err := s.snapshots(at, volume.ErrInvalid)
	return &cutting{cutOrder: o, at: at, snaps: snaps}, err
}

// gatherCut looks: at the cut, whom the storage admits, and then at the record. A hold that the
// record has then was there when the cut was found.
func (s *Service) gatherCut(ctx context.Context, c *cutting) error {
	c.facts = cutFacts{Name: c.name, Volume: c.of, Freeze: c.class.Freeze}
	if c.clone != nil {
		c.facts.Clone = markOf(string(c.clone.UID))
	}
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
	c.facts.Ours = v.Hold != nil && markIn(v.Hold.Token) == c.mark() && s.holds.has(c.of, c.heldBy(v.Hold.Name, v.Hold.Token))
	if v.Published && v.Fence.Node == volume.Readers {
		// Nobody writes, so that nobody has to be asked for anything, or to be shut out; unless the
		// server, which a record out of a backup does not know, lets somebody write.
		v.Published = false
		c.facts.Admitted = slices.ContainsFunc(c.sight.Exports, func(e backend.Export) bool { return !e.ReadOnly })
		return nil
	}
	if v.Published {
		c.facts.Lost, err = s.lost(ctx, v.Fence.Node)
		return err
	}
	if c.at.origin {
		return s.gatherReleased(ctx, c, v)
	}
	return nil
}

// gatherReleased asks who may have a volume over another driver's that its record shows as
// published nowhere. The record may be of before a restore of etcd, and so are claim and
// attachment: what is outside of etcd is asked for.
func (s *Service) gatherReleased(ctx context.Context, c *cutting, v volume.Volume) (err error) {
	if v.Spec.Mode != volume.ModeWriteback && !v.Spec.AcceptNodeLoss {
		return nil // its writes are on the origin, whoever makes them
	}
	if c.facts.UsedOn, err = s.usedOn(ctx, c.of); err != nil || v.Fence.Node == "" {
		return err
	}
	pool, err := s.pool(ctx, v.Fence.Node)
	if pool == nil || err != nil {
		return err // nobody could answer
	}
	lost, err := s.lost(ctx, v.Fence.Node)
	if c.facts.Answers = !lost; lost || err != nil {
		return err
	}
	c.facts.Mute, err = s.mute(ctx, pool)
	return err
}

// mute says why the plugin of a node that is heard of cannot say what the node has, "" if nothing
// is known against it: SSDs that do not answer may have anything.
func (s *Service) mute(ctx context.Context, pool *v1alpha1.CachePool) (string, error) {
	node := &storagev1.CSINode{}
	err := records.Error("read CSINode "+pool.Name, s.client.Get(ctx, types.NamespacedName{Name: pool.Name}, node))
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return "", err
	}
	if !kube.Registered(node, s.driver) {
		return fmt.Sprintf("no nearflash node plugin runs there (its kubelet does not know driver %s). If none is to run there any more, and nothing of its SSDs is wanted, delete CachePool %s", s.driver, pool.Name), nil
	}
	if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Status == metav1.ConditionFalse {
		return fmt.Sprintf("its CachePool is not ready (%s: %s)", c.Reason, c.Message), nil
	}
	return "", nil
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
	return !kube.NodeReady(node), nil
}

// usedOn names a node whose kubelet says that it uses a volume, "" if none does. A kubelet that
// lives says so again after a restore of etcd; what one that is not heard of has said is old.
func (s *Service) usedOn(ctx context.Context, id volume.ID) (string, error) {
	name := corev1.UniqueVolumeName("kubernetes.io/csi/" + s.driver + "^" + string(id))
	page, found := corev1.NodeList{}, ""
	err := records.Pages(ctx, s.client, &page, "Nodes", func() bool {
		for i := range page.Items {
			if n := &page.Items[i]; kube.NodeReady(n) && slices.Contains(n.Status.VolumesInUse, name) {
				found = n.Name
				return false
			}
		}
		return true
	})
	return found, err
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
	case cutDiscard:
		return s.discardCut(ctx, c)
	case cutAccept:
		err := c.snaps.Accept(c.sight.of(ctx), c.name, c.facts.Record.Hold.Token)
		if err != nil && !errors.Is(err, volume.ErrNotFound) { // another process has dropped it
			return fmt.Errorf("accept snapshot %s: %w", c.name, err)
		}
		return nil
	case cutCut:
		return s.orderCut(ctx, c)
	case cutFreeze, cutAwaitFreeze, cutThaw, cutUnfrozen:
		return s.takeFreezeStep(ctx, c, step)
	case cutWait, cutAnswer:
	}
	var renewed error
	if c.facts.Record.PossiblyDirty { // it takes as long as it takes; what else does not come about may not hold the volume for ever
		renewed = s.renewHold(ctx, c)
	}
	return errors.Join(renewed, waits(c))
}

// waits says what a cut waits for.
func waits(c *cutting) error {
	return fmt.Errorf(waitsFor(c.facts.Record), volume.ErrBusy, c.facts.Record.Fence.Node, c.of, c.name)
}

// waitsFor is the text of what a cut waits for, with an error, the node, the volume and the cut.
func waitsFor(r *volume.Volume) string {
	switch {
	case !r.Published:
		return "%w: node %s, which had volume %s last, is asked whether it has anything of it that is not written, before it is cut for %s: does the nearflash node plugin run there?"
	case r.PossiblyDirty:
		return "%w: node %s flushes volume %s before it is cut for %s"
	}
	return "%w: node %s, to which volume %s is attached, is to flush it before it is cut for %s; it can while the volume is mounted there: if no pod has it mounted, start one, or delete the pod that the volume is attached for"
}

// hold puts a hold of this process on the record, and asks the node that has the volume for a
// flush: who answers it has seen the hold. A flush that somebody waits for is left to its end.
// What is known to be refused is not held for.
func (s *Service) hold(ctx context.Context, c *cutting) error {
	if err := s.mayHold(ctx, c); err != nil { // also of one that another process holds for it
		return errors.Join(err, s.endHold(ctx, c.of, c.name))
	}
	return s.putHold(ctx, c, newHold(c.mark()))
}

// mayHold returns why a cut is known to be refused.
func (s *Service) mayHold(ctx context.Context, c *cutting) error {
	err := s.refusals.of(c.cutOrder, s.now())
	if err == nil {
		err = c.snaps.CanCut(ctx, c.of, c.class.Origin)
	}
	if err == nil && c.clone != nil {
		err = c.snaps.CanBegin(ctx, volume.ID(c.clone.Name), c.of, c.begin)
	}
	if err != nil {
		return fmt.Errorf("cut volume %s for %s: %w", c.of, c.name, err)
	}
	return nil
}

// mark is what the token of a hold for the cut has to have.
func (c *cutting) mark() string { return cmp.Or(c.facts.Clone, c.group) }

// heldBy is a hold of this process for the cut, on the record of the last look.
func (c *cutting) heldBy(name volume.SnapshotID, token string) heldBy {
	by := heldBy{name: name, token: token, takeover: c.sight.takeover}
	if c.group != "" {
		by.fence, by.published = c.facts.Record.Fence, c.facts.Record.Published
	}
	return by
}

// putHold writes a hold.
func (s *Service) putHold(ctx context.Context, c *cutting, token string) error {
	s.holds.put(c.of, c.heldBy(c.name, token))
	err := s.patch(ctx, c.obj, func(obj *v1alpha1.CachedVolume) {
		obj.Spec.Hold = &v1alpha1.VolumeHold{Name: string(c.name), Token: token, Since: metav1.NewTime(s.now())}
		if c.facts.asked() && c.facts.mayAsk() {
			obj.Spec.FlushRequest = token
		}
	})
	if err != nil {
		s.holds.forget(c.of, c.name)
	}
	return err
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

// discardCut deletes what was cut for a clone of the same name that there was before, if the
// record of this one is there still.
func (s *Service) discardCut(ctx context.Context, c *cutting) error {
	now, err := records.Load(ctx, s.client, volume.ID(c.clone.Name))
	if err == nil && now.UID != c.clone.UID || errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("%w: volume %s was deleted, or made anew, meanwhile", volume.ErrBusy, c.clone.Name)
	}
	if err != nil {
		return err
	}
	if err := c.snaps.DeleteCut(ctx, c.name); err != nil {
		return fmt.Errorf("delete what an earlier clone %s was to be made from: %w", c.clone.Name, err)
	}
	return nil
}

// orderCut asks for the cut. What the storage refuses for good does not keep the volume in
// writethrough mode.
func (s *Service) orderCut(ctx context.Context, c *cutting) error {
	cut, err := c.snaps.Cut(c.sight.of(ctx), c.name, c.of, c.request())
	switch {
	case errors.Is(err, volume.ErrInvalid), errors.Is(err, volume.ErrNoSpace):
		s.refusals.put(c.cutOrder, err, s.now())
		return errors.Join(fmt.Errorf("cut volume %s for %s: %w", c.of, c.name, err), s.endHold(ctx, c.of, c.name))
	case err != nil: // and the hold ends, if that goes on
		s.refusals.note(c.cutOrder, err, s.now())
		return fmt.Errorf("cut volume %s for %s: %w", c.of, c.name, err)
	case !cut.Done && c.facts.Record.Hold.Freeze == volume.FreezeAsked && c.facts.report() == volume.FreezeFrozen:
		return passes.Pause(ctx, s.freezePoll) // there are seconds for it
	case !cut.Done:
		s.refusals.forget(c.name)
		return errors.Join(s.renewHold(ctx, c), fmt.Errorf("%w: volume %s is being cut for %s", volume.ErrBusy, c.of, c.name))
	}
	return nil
}

// request is the order under the hold of the last look.
func (c *cutting) request() backend.CutRequest {
	return backend.CutRequest{Hold: c.facts.Record.Hold.Token, Filesystem: c.facts.Filesystem, Class: c.class.Origin}
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
	s.holds.forget(of, name)
	return records.EndHold(ctx, s.client, of, func(h volume.Hold) bool { return h.Name == name })
}
