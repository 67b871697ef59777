package moves

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/quantity"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Reasons of the events at the end of a move, on the volume and its claim.
const (
	EventCompleted = "WarmStartCompleted"
	EventEnded     = "WarmStartEnded"
	EventFailed    = "WarmStartFailed"

	eventAction = "WarmStart"
)

const (
	// watchPause is the time between two tries; a pod waits.
	watchPause = 100 * time.Millisecond
	// createTimeout bounds the making of an object.
	createTimeout = 2 * time.Second
	// abandonTimeout bounds how long a move that cannot begin holds up the cold
	// start.
	abandonTimeout = 2 * time.Second
)

// Destination is volume.Moves over the API server.
type Destination struct {
	client client.WithWatch
	events events.EventRecorder
	now    func() time.Time
	// port is where nodes export their caches, and streamPort where they send them from.
	port, streamPort int
	// known are the moves as a watch shows them; nil without one.
	known *leaseStates
}

var _ volume.Moves = (*Destination)(nil)

// NewDestination returns a Destination. c must read from the API server itself. port is where
// nodes export their caches, and streamPort where they send them from; 0 is for who reads none.
func NewDestination(c client.WithWatch, recorder events.EventRecorder, now func() time.Time, port, streamPort int) *Destination {
	return &Destination{client: c, events: recorder, now: now, port: port, streamPort: streamPort}
}

// Begin implements volume.Moves. A move whose source refuses or does not answer is
// reported as failed here, so that nobody serves it late; its ID is returned all
// the same. One whose ctx was cancelled is not: it will be begun again.
func (d *Destination) Begin(ctx context.Context, r volume.MoveRequest) (volume.MoveID, *volume.Lease, error) {
	var key *keyagreement.Key
	if r.Source != nil && r.Method != volume.MethodStream {
		var err error
		if key, err = newKey(); err != nil {
			return volume.MoveID{}, nil, err
		}
	}
	obj := newObject(r, key)
	// A create that is given up may have been carried out, and nobody would end the move.
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	if err := d.create(cctx, obj); err != nil {
		return volume.MoveID{}, nil, err
	}
	m := idOf(obj)
	if r.Source == nil {
		return m, nil, nil
	}
	lease, err := d.importCache(ctx, obj, key, r.Patience)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		d.abandon(ctx, m, err)
	}
	return m, lease, err
}

// Refuse implements volume.Moves. The source may answer meanwhile, and ends its lease at once.
func (d *Destination) Refuse(ctx context.Context, r volume.MoveRequest, why string) error {
	obj := newObject(r, nil)
	if err := d.create(ctx, obj); err != nil {
		return err
	}
	return d.Finish(ctx, idOf(obj), volume.MoveFailed, why)
}

// create makes the object, in place of one that an earlier Begin left: the key that
// belonged to that is lost.
func (d *Destination) create(ctx context.Context, obj *v1alpha1.CacheMigration) error {
	for tries := 0; ; tries++ {
		fresh := obj.DeepCopy()
		err := d.client.Create(ctx, fresh)
		if err == nil {
			fresh.DeepCopyInto(obj)
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return records.Error("create CacheMigration "+obj.Name, err)
		}
		if err := d.remove(ctx, obj); err != nil {
			return err
		}
		if tries == 0 {
			continue
		}
		select { // somebody holds it by a finalizer, or it is not this node's to remove
		case <-ctx.Done():
			return unavailable("CacheMigration %s of an earlier try is still there: %v", obj.Name, ctx.Err())
		case <-time.After(watchPause):
		}
	}
}

// remove deletes what has the name of a move that is about to be made.
func (d *Destination) remove(ctx context.Context, obj *v1alpha1.CacheMigration) error {
	old := &v1alpha1.CacheMigration{}
	err := d.client.Get(ctx, types.NamespacedName{Name: obj.Name}, old)
	if err == nil {
		err = d.client.Delete(ctx, old, client.Preconditions{UID: ptr.To(old.UID)})
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // somebody was faster
	case apierrors.IsForbidden(err) && old.Spec.DestinationNode != obj.Spec.DestinationNode:
		klog.FromContext(ctx).Info("Another node has made a move in this one's name; the controller takes it away", "move", obj.Name, "node", old.Spec.DestinationNode)
		return nil
	}
	return records.Error("delete CacheMigration "+obj.Name, err)
}

// abandon tells the source that nobody waits any more.
func (d *Destination) abandon(ctx context.Context, m volume.MoveID, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if err := d.Finish(ctx, m, volume.MoveFailed, cause.Error()); err != nil {
		klog.FromContext(ctx).Error(err, "Source is not told that its lease is not needed; it learns so at the deadline", "move", m.Name)
	}
}

// importCache waits for the source's answer.
func (d *Destination) importCache(ctx context.Context, obj *v1alpha1.CacheMigration, key *keyagreement.Key, patience time.Duration) (*volume.Lease, error) {
	node := obj.Spec.SourceNode
	answer, err := d.answer(ctx, idOf(obj), patience)
	if err != nil {
		return nil, unavailable("node %s has not said whether it exports its cache: %v", node, err)
	}
	if answer.State.Now() != v1alpha1.ExportStateExported {
		return nil, unavailable("node %s does not export its cache (%s): %s", node, answer.State, answer.Message)
	}
	if obj.Spec.Method == v1alpha1.MigrationStream {
		return d.streamOf(ctx, obj, answer)
	}
	lease, err := leaseOf(obj, answer, key)
	if err == nil {
		err = d.checkPeer(ctx, obj, answer)
	}
	if err != nil {
		return nil, unusable(node, err)
	}
	return lease, nil
}

// unusable is the error of an answer that leads nowhere, or says what cannot be.
func unusable(node string, cause error) error {
	return unavailable("the answer of node %s cannot be used: %v", node, cause)
}

// leaseOf reads the answer of another node, which may say anything that the API lets it
// say. What has a place in a table or a division is checked here.
func leaseOf(obj *v1alpha1.CacheMigration, answer *v1alpha1.MigrationSource, key *keyagreement.Key) (*volume.Lease, error) {
	cred, err := agree(key, answer.PublicKey, idOf(obj), obj.Spec.DestinationPublicKey, answer.PublicKey)
	switch {
	case err != nil:
		return nil, err
	case len(answer.Portals) == 0 || answer.IQN == "":
		return nil, errors.New("the address is missing")
	case answer.MetaBytes <= 0 || answer.MetaBytes%sectorSize != 0:
		return nil, errors.New("the size of the metadata is missing, or no number of sectors")
	case answer.MetaBytes > volume.MaxExportedMetaBytes:
		return nil, fmt.Errorf("a cache with %d bytes of metadata; at most %d are read", answer.MetaBytes, volume.MaxExportedMetaBytes)
	}
	lease, err := streamLease(idOf(obj), answer)
	if err != nil {
		return nil, err
	}
	if lease.DataBytes > math.MaxInt64-answer.MetaBytes {
		return nil, errors.New("the sizes do not go together")
	}
	lease.Source, lease.Credentials, lease.MetaBytes = volume.ISCSI{Portals: answer.Portals, IQN: answer.IQN}, cred, answer.MetaBytes
	return lease, nil
}

// checkData refuses sizes of a cache's data that no cache has.
func checkData(answer *v1alpha1.MigrationSource) error {
	switch {
	case answer.ChunkSizeBytes <= 0 || answer.DataBytes <= 0:
		return errors.New("a size is missing")
	case answer.ChunkSizeBytes%sectorSize != 0 || answer.DataBytes%sectorSize != 0:
		return errors.New("a size is no number of sectors")
	case answer.ChunkSizeBytes > answer.DataBytes:
		return errors.New("the sizes do not go together")
	case answer.DataBytes/answer.ChunkSizeBytes > volume.MaxExportedChunks:
		return fmt.Errorf("a cache of %d chunks; at most %d are read", answer.DataBytes/answer.ChunkSizeBytes, volume.MaxExportedChunks)
	}
	return nil
}

// answer watches the object until its source has answered, ctx ends, or it has been
// silent for too long.
func (d *Destination) answer(ctx context.Context, m volume.MoveID, patience time.Duration) (*v1alpha1.MigrationSource, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	heard := func() {}
	if patience > 0 {
		silence := time.AfterFunc(patience, func() { cancel(fmt.Errorf("it was silent for %s", patience)) })
		defer silence.Stop()
		heard = func() { silence.Stop() }
	}
	for {
		// Without a version the watch begins with the object as it is.
		w, err := d.client.Watch(ctx, &v1alpha1.CacheMigrationList{}, client.MatchingFields{metav1.ObjectNameField: m.Name})
		if err == nil {
			var answer *v1alpha1.MigrationSource
			answer, err = follow(ctx, w, m, heard)
			w.Stop()
			if answer != nil || errors.Is(err, volume.ErrNotFound) {
				return answer, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(watchPause):
		}
	}
}

// follow reads one watch and calls heard when the source is at work. It returns nothing when the watch ends, which API servers
// do now and then. Errors: ErrNotFound if the object is gone.
func follow(ctx context.Context, w watch.Interface, m volume.MoveID, heard func()) (*v1alpha1.MigrationSource, error) {
	for {
		var e watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return nil, nil
		case e, open = <-w.ResultChan():
		}
		if !open {
			return nil, nil
		}
		if e.Type == watch.Error {
			return nil, apierrors.FromObject(e.Object)
		}
		obj, ok := e.Object.(*v1alpha1.CacheMigration)
		if !ok {
			continue
		}
		if string(obj.UID) != m.UID {
			continue // of an earlier try: a watch may begin with what is not true any more
		}
		if e.Type == watch.Deleted {
			return nil, fmt.Errorf("%w: CacheMigration %s was deleted", volume.ErrNotFound, m.Name)
		}
		switch obj.Status.Source.State.Now() {
		case "":
		case v1alpha1.ExportStatePreparing:
			heard()
		case v1alpha1.ExportStateExported, v1alpha1.ExportStateRefused, v1alpha1.ExportStateReleased:
			return &obj.Status.Source, nil
		}
	}
}

// Progress implements volume.Moves. The first one also dates the beginning.
func (d *Destination) Progress(ctx context.Context, m volume.MoveID, p volume.MoveProgress) error {
	_, _, err := update(ctx, d.client, m, func(obj *v1alpha1.CacheMigration) {
		if obj.Status.Outcome != "" {
			return
		}
		d.begun(obj)
		d.condition(obj, metav1.ConditionUnknown, v1alpha1.ReasonMigrationRunning, "")
		obj.Status.Progress = v1alpha1.MigrationProgress{
			TotalBytes: ptr.To(p.TotalBytes), HydratedBytes: ptr.To(p.HydratedBytes), BytesPerSecond: ptr.To(p.Rate),
			Copied: copied(p.HydratedBytes, p.TotalBytes), Rate: quantity.Text(p.Rate) + "/s", ServedFrom: v1alpha1.ServedFrom(p.From),
		}
		if p.Remaining > 0 {
			obj.Status.Progress.EstimatedCompletionTime = metav1.NewTime(d.now().Add(p.Remaining))
		}
	})
	return err
}

// copied says for people how much of a move is done.
func copied(n, total int64) string { return quantity.Text(n) + " of " + quantity.Text(total) }

// begun dates the beginning of a move by its object.
func (d *Destination) begun(obj *v1alpha1.CacheMigration) {
	if obj.Status.StartTime.IsZero() {
		obj.Status.StartTime = obj.CreationTimestamp
	}
}

func (d *Destination) condition(obj *v1alpha1.CacheMigration, status metav1.ConditionStatus, reason, text string) {
	meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionCompleted, Status: status, Reason: reason, Message: text,
		ObservedGeneration: obj.Generation, LastTransitionTime: metav1.NewTime(d.now()),
	})
}

// Finish implements volume.Moves. The first outcome stays.
func (d *Destination) Finish(ctx context.Context, m volume.MoveID, o volume.MoveOutcome, text string) error {
	status, reason, event := metav1.ConditionFalse, v1alpha1.ReasonMigrationEnded, EventEnded
	switch o {
	case volume.MoveCompleted:
		status, reason, event = metav1.ConditionTrue, v1alpha1.ReasonMigrationCompleted, EventCompleted
	case volume.MoveFailed:
		reason, event = v1alpha1.ReasonMigrationFailed, EventFailed
	case volume.MoveEnded:
	}
	text = message(text)
	obj, changed, err := update(ctx, d.client, m, func(obj *v1alpha1.CacheMigration) {
		if obj.Status.Outcome != "" {
			return
		}
		d.begun(obj)
		obj.Status.Outcome, obj.Status.OutcomeMessage = v1alpha1.MigrationOutcome(o), text
		obj.Status.CompletionTime = metav1.NewTime(d.now())
		if o == volume.MoveCompleted {
			// The last report was made before the end.
			total := obj.Status.Progress.TotalBytes
			obj.Status.Progress.HydratedBytes, obj.Status.Progress.Copied = total, ""
			if total != nil {
				obj.Status.Progress.Copied = copied(*total, *total)
			}
		}
		obj.Status.Progress.BytesPerSecond, obj.Status.Progress.Rate, obj.Status.Progress.EstimatedCompletionTime = nil, "", metav1.Time{}
		d.condition(obj, status, reason, text)
	})
	if err != nil || !changed {
		return err
	}
	// Which reader has something to send, is found out by asking.
	warning := o == volume.MoveFailed && obj.Spec.Purpose != v1alpha1.MigrationRead
	d.notify(ctx, obj, records.Event{Warning: warning, Reason: event, Action: eventAction, Note: eventMessage(obj)})
	return nil
}

// notify sends an event, if the volume is still there.
func (d *Destination) notify(ctx context.Context, obj *v1alpha1.CacheMigration, e records.Event) {
	v, err := records.Load(ctx, d.client, volume.ID(obj.Spec.VolumeName))
	if err != nil || string(v.UID) != obj.Spec.VolumeUID {
		klog.FromContext(ctx).V(1).Info("No event about a volume that cannot be read", "move", obj.Name, "err", err)
		return
	}
	records.Emit(ctx, d.client, d.events, v, e)
}

// Ended implements volume.Moves.
func (d *Destination) Ended(ctx context.Context, r volume.MoveRequest) (bool, error) {
	obj := &v1alpha1.CacheMigration{}
	name := PrewarmName(r.Volume, r.Fence.Generation)
	err := d.client.Get(ctx, types.NamespacedName{Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, records.Error("read CacheMigration "+name, err)
	}
	return obj.Spec.VolumeUID == r.Fence.UID && obj.Spec.DestinationNode == r.Fence.Node && obj.Spec.PrewarmRequest == r.Request && obj.Status.Outcome != "", nil
}

// eventMessage is the text of the event at the end of a move.
func eventMessage(obj *v1alpha1.CacheMigration) string {
	from := "the origin"
	if obj.Spec.SourceNode != "" {
		from = "node " + obj.Spec.SourceNode
	}
	what := "Warm start on"
	if obj.Spec.Purpose == v1alpha1.MigrationPrewarm {
		what = "Prewarming of"
	}
	text := fmt.Sprintf("%s node %s from %s%s %s", what, obj.Spec.DestinationNode, from, methodWords(obj.Spec.Method), outcomeWords(obj.Status.Outcome))
	if total := ptr.Deref(obj.Status.Progress.TotalBytes, 0); total > 0 {
		text += fmt.Sprintf(", %s copied", copied(ptr.Deref(obj.Status.Progress.HydratedBytes, 0), total))
	}
	if obj.Status.OutcomeMessage != "" {
		text += ": " + obj.Status.OutcomeMessage
	}
	return text
}

// outcomeWords say how a move ended, in a sentence.
func outcomeWords(o v1alpha1.MigrationOutcome) string {
	switch o {
	case v1alpha1.MigrationCompleted:
		return "is completed"
	case v1alpha1.MigrationEnded:
		return "ended before all was copied"
	case v1alpha1.MigrationFailed:
		return "failed"
	}
	return string(o)
}

// methodWords name the method in a sentence; an object of an earlier version names none.
func methodWords(m v1alpha1.MigrationMethod) string {
	switch m {
	case v1alpha1.MigrationClone:
		return " by clone"
	case v1alpha1.MigrationStream:
		return " by stream"
	case v1alpha1.MigrationHotSet:
		return " by hot set"
	case v1alpha1.MigrationPreload:
		return " by preload"
	}
	return ""
}
