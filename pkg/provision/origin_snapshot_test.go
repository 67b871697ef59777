package provision

import (
	"errors"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// until repeats a call as a sidecar does.
func until(t *testing.T, what string, call func() error) {
	t.Helper()
	var err error
	for range 50 {
		if err = call(); !errors.Is(err, volume.ErrBusy) {
			break
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// TestOriginSnapshots: volumes over those of another driver are cut by that driver, and made of
// what it has cut.
func TestOriginSnapshots(t *testing.T) {
	cfg := apiserver.Start(t)
	o := newOrigins(t, cfg, "p-snapshots")
	until(t, "create", func() error { _, err := o.svc.Create(t.Context(), o.id, o.spec()); return err })
	_, err := o.svc.CreateSnapshot(t.Context(), "early", o.id, volume.SnapshotClass{})
	wantError(t, err, volume.ErrInvalid) // the API is not installed
	o.wantHold(t, "")
	csitest.InstallSnapshots(t, cfg)
	o.cluster.StartSnapshots(t)
	o.cluster.Write(t, string(o.id), "monday")
	var s volume.Snapshot
	until(t, "snapshot", func() (err error) {
		s, err = o.svc.CreateSnapshot(t.Context(), "monday", o.id, volume.SnapshotClass{Origin: o.cluster.SnapshotClass("")})
		return err
	})
	if s.Handle.String() != "csi/monday" || s.Volume != o.id || s.SizeBytes != gib {
		t.Errorf("snapshot %+v", s)
	}
	o.wantHold(t, "")
	o.cluster.Write(t, string(o.id), "tuesday")
	_, err = o.svc.CreateSnapshot(t.Context(), "foreign", o.id, volume.SnapshotClass{Origin: o.cluster.SnapshotClass("foreign")})
	wantError(t, err, volume.ErrInvalid)
	o.wantHold(t, "")
	restored, clone := o.spec(), o.spec()
	restored.Parent, clone.Parent = &volume.Parent{Snapshot: &s.Handle}, &volume.Parent{Volume: o.id}
	for id, tc := range map[volume.ID]struct {
		spec volume.Spec
		want string
	}{"p-snapshots-restored": {restored, "monday"}, "p-snapshots-clone": {clone, "tuesday"}} {
		for range 2 {
			until(t, string(id), func() error { _, err := o.svc.Create(t.Context(), id, tc.spec); return err })
		}
		if got := o.cluster.Read(t, string(id)); got != tc.want {
			t.Errorf("%s has %q, want %q", id, got, tc.want)
		}
	}
	served := spec()
	served.Parent = restored.Parent
	_, err = o.svc.Create(t.Context(), "p-snapshots-served", served)
	wantError(t, err, volume.ErrInvalid)
	if all, err := o.svc.Snapshots(t.Context()); err != nil || len(all) != 1 || all[0].Handle != s.Handle {
		t.Errorf("snapshots %+v, %v", all, err)
	}
	until(t, "delete the snapshot", func() error { return o.svc.DeleteSnapshot(t.Context(), s.Handle) })
	for _, id := range []volume.ID{o.id, "p-snapshots-restored", "p-snapshots-clone"} {
		until(t, "delete "+string(id), func() error { return o.svc.Delete(t.Context(), id) })
	}
	if all, err := o.svc.Snapshots(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left are %+v, %v", all, err)
	}
	for name, test := range map[string]func(*testing.T, *origins){
		"larger": testOriginCloneLarger, "refused": testOriginCloneRefused, "fails": testOriginFails, "deletion": testOriginDeletion, "clone-deletion": testOriginCloneDeletion, "no-class": testOriginNoClass, "released": testOriginReleased, "used": testOriginUsed,
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrigins(t, cfg, "p-s-"+name)
			o.cluster.StartSnapshots(t)
			until(t, "create", func() error { _, err := o.svc.Create(t.Context(), o.id, o.spec()); return err })
			test(t, o)
		})
	}
}

// testOriginCloneLarger: what the other driver makes of a cut may have to be larger than the
// volume was. The same request is answered the same, and another one is refused.
func testOriginCloneLarger(t *testing.T, o *origins) {
	o.cluster.Behave(csitest.Behaviour{RestoreMore: gib})
	clone := o.spec()
	clone.Parent = &volume.Parent{Volume: o.id}
	left := 3 // record, snapshot, and the claim of the clone: killed behind that
	o.fail = func(step string, done bool) error {
		if step == "make record" && done {
			if left--; left == 0 {
				return errInjected
			}
		}
		return nil
	}
	var err error
	for range 50 {
		if _, err = o.createChild(t, clone); !errors.Is(err, volume.ErrBusy) {
			break
		}
	}
	o.fail = nil
	if err == nil || left != 0 {
		t.Fatalf("it was not killed: %v", err)
	}
	for range 2 {
		until(t, "clone", func() error {
			v, err := o.createChild(t, clone)
			if err == nil && v.Spec.CapacityBytes != 2*gib {
				t.Errorf("it has %d bytes", v.Spec.CapacityBytes)
			}
			return err
		})
	}
	clone.CapacityBytes = 3 * gib
	_, err = o.createChild(t, clone)
	wantError(t, err, volume.ErrExists)
}

// testOriginNoClass: a driver whose snapshots no class is for is refused before the volume is
// held, whoever has it.
func testOriginNoClass(t *testing.T, o *origins) {
	class := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: o.cluster.SnapshotClass("")}}
	if err := o.client.Delete(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	makeNode(t, o.client, o.cluster.Node("a"), corev1.ConditionTrue)
	o.publishTo(t, "a", 1)
	o.mark(t, true)
	for _, name := range []string{"", "foreign", "none"} {
		if name != "" {
			name = o.cluster.SnapshotClass(name)
		}
		_, err := o.svc.CreateSnapshot(t.Context(), "s", o.id, volume.SnapshotClass{Origin: name})
		wantError(t, err, volume.ErrInvalid)
		if v := o.record(t); v.Hold != nil || v.FlushRequest != "" {
			t.Errorf("class %q: it was held for what is refused: %+v", name, v.Hold)
		}
	}
}

// testOriginReleased: a record that says released and clean may be of before a restore of etcd.
// The volume is cut once the node that had it last says that it has nothing of it.
func testOriginReleased(t *testing.T, o *origins) {
	node := o.cluster.Node("a")
	makeNode(t, o.client, node, corev1.ConditionTrue)
	o.publishTo(t, "a", 1)
	err := records.UpdateObject(t.Context(), o.client, o.id, func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.FlushRequest = "of somebody who waits no more"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	o.unpublish(t, node)
	o.mute(t, node)
	for range 2 {
		_, err := o.svc.CreateSnapshot(t.Context(), "released", o.id, volume.SnapshotClass{})
		wantError(t, err, volume.ErrBusy)
		if !strings.Contains(err.Error(), node) {
			t.Errorf("the error does not say who is asked: %v", err)
		}
	}
	if _, err := o.svc.origins.(backend.Snapshots).Find(t.Context(), "released"); !errors.Is(err, volume.ErrNotFound) {
		t.Fatalf("it was cut before the node had answered: %v", err)
	}
	o.flushes(t)
	if _, err := o.svc.CreateSnapshot(t.Context(), "released", o.id, volume.SnapshotClass{}); err != nil {
		t.Fatal(err)
	}
	// Who is not there is not asked.
	if err := o.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.svc.CreateSnapshot(t.Context(), "gone", o.id, volume.SnapshotClass{}); err != nil {
		t.Error(err)
	}
}

// mute has the node that had the volume last unable to answer, for one reason after the other. The
// volume is not held for an answer that cannot come.
func (o *origins) mute(t *testing.T, node string) {
	t.Helper()
	refused := func(why string) {
		t.Helper()
		_, err := o.svc.CreateSnapshot(t.Context(), "released", o.id, volume.SnapshotClass{})
		if wantError(t, err, volume.ErrFenced); !strings.Contains(err.Error(), node) || !strings.Contains(err.Error(), why) {
			t.Errorf("%v does not say that of node %s %s", err, node, why)
		}
		o.wantHold(t, "")
	}
	refused("no nearflash node plugin runs there")
	kubelet := &storagev1.CSINode{}
	if err := o.client.Get(t.Context(), client.ObjectKey{Name: node}, kubelet); err != nil {
		t.Fatal(err)
	}
	kubelet.Spec.Drivers = append(kubelet.Spec.Drivers, storagev1.CSINodeDriver{Name: testDriver, NodeID: node})
	if err := o.client.Update(t.Context(), kubelet); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.CachePool{}
	for _, status := range []metav1.ConditionStatus{metav1.ConditionFalse, metav1.ConditionTrue} {
		if err := o.client.Get(t.Context(), client.ObjectKey{Name: node}, pool); err != nil {
			t.Fatal(err)
		}
		meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: status, Reason: v1alpha1.ReasonNoDevices, Message: "no device matches /dev/none",
		})
		if err := o.client.Status().Update(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		if status == metav1.ConditionFalse {
			refused("no device matches /dev/none")
		}
	}
}

// testOriginUsed: a kubelet that says that it uses a volume is believed before the record.
func testOriginUsed(t *testing.T, o *origins) {
	const name = "p-s-used-kubelet"
	makeNode(t, o.client, name, corev1.ConditionTrue)
	node := &corev1.Node{}
	if err := o.client.Get(t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		t.Fatal(err)
	}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName("kubernetes.io/csi/" + testDriver + "^" + string(o.id))}
	if err := o.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	_, err := o.svc.CreateSnapshot(t.Context(), "used", o.id, volume.SnapshotClass{})
	wantError(t, err, volume.ErrFenced)
	if !strings.Contains(err.Error(), "node "+name) {
		t.Errorf("the error does not name the node: %v", err)
	}
	o.wantHold(t, "")
	node.Status.Conditions[0].Status = corev1.ConditionUnknown // what it said is old
	if err := o.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if _, err := o.svc.CreateSnapshot(t.Context(), "used", o.id, volume.SnapshotClass{}); err != nil {
		t.Error(err)
	}
}
