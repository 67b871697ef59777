package provision

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

func applied(status metav1.ConditionStatus, reason string, generation int64) v1alpha1.CachedVolumeStatus {
	return v1alpha1.CachedVolumeStatus{
		OwnerNode: nodeA, Publication: v1alpha1.PublicationPublished,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionApplied, Status: status, Reason: reason, Message: "said", ObservedGeneration: generation}},
	}
}

func TestInEffect(t *testing.T) {
	const generation = 4
	released := applied(metav1.ConditionFalse, v1alpha1.ReasonApplying, 1)
	released.Publication = v1alpha1.PublicationReleased
	tests := map[string]struct {
		status  v1alpha1.CachedVolumeStatus
		want    error
		wantErr string
	}{
		"never attached":  {status: v1alpha1.CachedVolumeStatus{}},
		"released":        {status: released},
		"being attached":  {status: v1alpha1.CachedVolumeStatus{OwnerNode: nodeA, Publication: v1alpha1.PublicationPublished}},
		"detached again":  {status: applied(metav1.ConditionUnknown, v1alpha1.ReasonNotAttached, 1)},
		"done":            {status: applied(metav1.ConditionTrue, v1alpha1.ReasonApplied, generation)},
		"done and beyond": {status: applied(metav1.ConditionTrue, v1alpha1.ReasonApplied, generation+1)},
		"attached by a node that has not said how": {
			status: v1alpha1.CachedVolumeStatus{OwnerNode: nodeA, Publication: v1alpha1.PublicationPublished, Cache: v1alpha1.CacheStatus{Mode: v1alpha1.CacheModeWriteback}},
			want:   volume.ErrBusy, wantErr: "operation in progress: node node-a has not taken up the change yet",
		},
		"done before the change": {
			status: applied(metav1.ConditionTrue, v1alpha1.ReasonApplied, generation-1),
			want:   volume.ErrBusy, wantErr: "operation in progress: node node-a has not taken up the change yet",
		},
		"refused before the change": {
			status: applied(metav1.ConditionFalse, v1alpha1.ReasonRejected, generation-1),
			want:   volume.ErrBusy, wantErr: "operation in progress: node node-a has not taken up the change yet",
		},
		"flushing": {
			status: applied(metav1.ConditionFalse, v1alpha1.ReasonFlushing, generation),
			want:   volume.ErrBusy, wantErr: "operation in progress: node node-a is at it: Flushing: said",
		},
		"refused": {
			status: applied(metav1.ConditionFalse, v1alpha1.ReasonRejected, generation),
			want:   volume.ErrInvalid, wantErr: "invalid argument: node node-a cannot do what is asked for: Rejected: said",
		},
		"no space": {
			status: applied(metav1.ConditionFalse, v1alpha1.ReasonPoolFull, generation),
			want:   volume.ErrInvalid, wantErr: "invalid argument: node node-a cannot do what is asked for: PoolFull: said",
		},
		"no share left": {
			status: applied(metav1.ConditionFalse, v1alpha1.ReasonNamespaceShareFull, generation),
			want:   volume.ErrInvalid, wantErr: "invalid argument: node node-a cannot do what is asked for: NamespaceShareFull: said",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := inEffect(&v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Generation: generation}, Status: tc.status})
			if !errors.Is(err, tc.want) || (err != nil && err.Error() != tc.wantErr) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func decideMode(mode volume.CacheMode, consent bool) func(volume.Spec) (volume.Spec, error) {
	return func(s volume.Spec) (volume.Spec, error) {
		s.Mode, s.AcceptNodeLoss = mode, consent
		return s, nil
	}
}

func testModify(t *testing.T, _ *rest.Config, f *fixture) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.svc.Modify(ctx, "missing", decideMode(volume.ModeNone, false)); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("modify a missing volume: %v", err)
	}
	_, err := f.svc.Create(ctx, f.id, spec())
	must(err)
	f.takeSteps()

	must(f.svc.Modify(ctx, f.id, decideMode(volume.ModeWritethrough, false)))
	must(f.svc.Modify(ctx, f.id, decideMode(volume.ModeWritethrough, false)))
	if diff := cmp.Diff([]string{"change record"}, f.takeSteps()); diff != "" {
		t.Errorf("two equal changes of a volume that is not attached (-want +got):\n%s", diff)
	}
	obj, err := records.Load(ctx, f.client, f.id)
	must(err)
	if obj.Spec.CacheMode != v1alpha1.CacheModeWritethrough || obj.Spec.CacheSize != "10%" || obj.Spec.AcceptDirtyLoss != v1alpha1.DirtyLossNone {
		t.Errorf("spec after the change: %+v", obj.Spec)
	}
	refusal := errors.New("refused")
	if err := f.svc.Modify(ctx, f.id, func(volume.Spec) (volume.Spec, error) { return volume.Spec{}, refusal }); !errors.Is(err, refusal) {
		t.Errorf("error of the decision: %v", err)
	}
	if err := f.svc.Modify(ctx, f.id, decideMode(volume.ModeWriteback, false)); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("what the API server refuses: %v, want ErrInvalid", err)
	}

	warm := volume.WarmStart{From: volume.WarmOrigin, Method: volume.MethodClone, Bandwidth: 1 << 20, Deadline: time.Minute}
	must(f.svc.Modify(ctx, f.id, func(s volume.Spec) (volume.Spec, error) {
		s.WarmStart = warm
		return s, nil
	}))
	if got := f.record(t).Spec.WarmStart; got != warm {
		t.Errorf("warm start after the change: %+v, want %+v", got, warm)
	}

	bound := func(b volume.DirtyLimit, wantText string) {
		t.Helper()
		must(f.svc.Modify(ctx, f.id, func(s volume.Spec) (volume.Spec, error) {
			s.DirtyLimit = b
			return s, nil
		}))
		obj, err := records.Load(ctx, f.client, f.id)
		must(err)
		if got := f.record(t).Spec.DirtyLimit; got != b || obj.Spec.MaxDirtyBytes != wantText {
			t.Errorf("bound after the change: %+v as %q, want %+v", got, obj.Spec.MaxDirtyBytes, b)
		}
	}
	must(records.UpdateObject(ctx, f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.MaxDirtyBytes = "2Gi"
		return nil
	}))
	bound(volume.DirtyLimit{Max: volume.Size{Bytes: 2 << 30}, Age: time.Minute}, "2Gi")
	bound(volume.DirtyLimit{Max: volume.Size{Percent: 5}, Age: time.Minute}, "5%")
	bound(volume.DirtyLimit{}, "")

	report := func(status metav1.ConditionStatus, reason string) {
		t.Helper()
		must(records.UpdateStatus(ctx, f.client, f.id, func(obj *v1alpha1.CachedVolume) error {
			obj.Status.OwnerNode, obj.Status.Publication = nodeA, v1alpha1.PublicationPublished
			meta.SetStatusCondition(&obj.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionApplied, Status: status, Reason: reason, ObservedGeneration: obj.Generation,
			})
			return nil
		}))
	}
	report(metav1.ConditionTrue, v1alpha1.ReasonApplied)
	if err := f.svc.Modify(ctx, f.id, decideMode(volume.ModeWriteback, true)); !errors.Is(err, volume.ErrBusy) {
		t.Errorf("before the node has seen it: %v, want ErrBusy", err)
	}
	report(metav1.ConditionFalse, v1alpha1.ReasonApplying)
	if err := f.svc.Modify(ctx, f.id, decideMode(volume.ModeWriteback, true)); !errors.Is(err, volume.ErrBusy) {
		t.Errorf("while the node is at it: %v, want ErrBusy", err)
	}
	report(metav1.ConditionTrue, v1alpha1.ReasonApplied)
	must(f.svc.Modify(ctx, f.id, decideMode(volume.ModeWriteback, true)))
}

// testModifyStatic: the attributes of a PersistentVolume cannot follow a change, so
// they do not refuse the next publication.
func testModifyStatic(t *testing.T, _ *rest.Config, f *fixture) {
	ctx := t.Context()
	publish := func(s *volume.Spec) error {
		_, err := f.svc.Publish(ctx, f.id, nodeA, s, nil)
		return err
	}
	if err := publish(staticSpec()); err != nil {
		t.Fatal(err)
	}
	if err := f.svc.Modify(ctx, f.id, func(s volume.Spec) (volume.Spec, error) {
		s.Mode, s.WarmStart.From = volume.ModeNone, volume.WarmOff
		return s, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := publish(staticSpec()); err != nil {
		t.Errorf("publish after the change: %v", err)
	}
	if v, err := f.svc.Get(ctx, f.id); err != nil || v.Spec.Mode != volume.ModeNone {
		t.Errorf("mode after the publication: %s (%v), want none", v.Spec.Mode, err)
	}
	other := staticSpec()
	other.ChunkBytes = 1 << 20
	if err := publish(other); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("another chunk size: %v, want ErrInvalid", err)
	}
}
