package csi

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/volume"
)

func testCreate(t *testing.T, f *fixture) {
	f.make(t, "v")
	f.make(t, "v")
	claim, pv := f.claim(t, "v"), f.pv(t, "v")
	if !slices.Contains(claim.Finalizers, Finalizer) || claim.Labels[LabelVolume] != "v" || claim.Labels[LabelOwner] != "uid" ||
		*claim.Spec.VolumeMode != corev1.PersistentVolumeBlock || claim.Spec.AccessModes[0] != corev1.ReadWriteOnce {
		t.Errorf("claim %+v", claim)
	}
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("reclaim policy %s", pv.Spec.PersistentVolumeReclaimPolicy)
	}
	want(t, f.b.Create(t.Context(), "v", f.request(16*mib)), volume.ErrExists, "size")
	fenced, err := f.b.Fenced(t.Context(), "v", volume.Origin{StorageClass: "gone"})
	if err != nil || !fenced {
		t.Errorf("fenced %v, %v", fenced, err)
	}
	must(t, f.b.Check(t.Context()))

	// The claim is deleted by somebody who should not: nothing happens to the data.
	must(t, f.api.Delete(t.Context(), claim))
	want(t, f.b.Create(t.Context(), "v", f.request(8*mib)), volume.ErrBusy, "deleted by somebody")
	// Others write to such a claim too: who is late comes back.
	f.await(t, "a claim that somebody has deleted admits", func() bool {
		_, err := f.b.Export(t.Context(), "v", f.grant("a", 1))
		if err != nil && !errors.Is(err, volume.ErrBusy) {
			t.Fatalf("of a claim that somebody has deleted: %v", err)
		}
		return err == nil
	})
	if got := f.Deleted(); len(got) > 0 {
		t.Errorf("%q were deleted", got)
	}
}

func testRefusals(t *testing.T, f *fixture) {
	make := func(req backend.Request) error { return f.b.Create(t.Context(), "v", req) }
	of := func(class string) backend.Request {
		req := f.request(8 * mib)
		req.Origin.StorageClass = class
		return req
	}
	want(t, make(of("no-such-class")), volume.ErrInvalid, `no StorageClass "no-such-class"`)
	want(t, make(of(f.Class("late"))), volume.ErrInvalid, "WaitForFirstConsumer", "Immediate")
	want(t, make(backend.Request{SizeBytes: mib}), volume.ErrInvalid)
	own := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: f.Class("own")}, Provisioner: "csi.nearflash.io"}
	must(t, f.api.Create(t.Context(), own))
	want(t, make(of(own.Name)), volume.ErrInvalid, "of this driver")
	want(t, make(f.request(1<<40)), volume.ErrNoSpace, "ResourceExhausted")
	_, err := f.b.Access(t.Context(), "v")
	want(t, err, volume.ErrNotFound)
	other := f.backend(f.api, time.Second)
	other.namespace = "no-such-namespace"
	want(t, other.Create(t.Context(), "v", f.request(mib)), volume.ErrUnavailable, "no-such-namespace")
	foreign := f.claim2("w")
	must(t, f.api.Create(t.Context(), foreign))
	want(t, f.b.Create(t.Context(), "w", f.request(mib)), volume.ErrExists, "not ours")
}

// claim2 is a claim of somebody else's.
func (f *fixture) claim2(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
			StorageClassName: ptr.To(f.Class("late")), Resources: requestOf(mib),
		},
	}
}

// testLate: a node that will not do is the scheduler's to replace, and nothing is left of it.
func testLate(t *testing.T, f *fixture) {
	b := f.behaviour()
	b.RefuseNode = f.Node("a")
	f.Behave(b)
	req := f.request(8 * mib)
	req.Origin.StorageClass, req.Node = f.Class("late"), f.Node("a")
	want(t, f.b.Create(t.Context(), "v", req), volume.ErrNoSpace, f.Node("a"), "nothing left")
	_, err := f.b.Access(t.Context(), "v")
	want(t, err, volume.ErrNotFound)
	req.Node = f.Node("b")
	must(t, f.b.Create(t.Context(), "v", req))
}

// testReach: a volume says from where it can be reached; one of which that cannot be said is not kept.
func testReach(t *testing.T, f *fixture) {
	of := func(op corev1.NodeSelectorOperator) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: op, Values: []string{"z"}}},
		}}}}
	}
	b := f.behaviour()
	b.Affinity = of(corev1.NodeSelectorOpNotIn)
	f.Behave(b)
	want(t, f.b.Create(t.Context(), "v", f.request(8*mib)), volume.ErrInvalid, "NotIn", "accepted")
	_, err := f.b.Access(t.Context(), "v")
	want(t, err, volume.ErrNotFound)
	b.Affinity = of(corev1.NodeSelectorOpIn)
	f.Behave(b)
	must(t, f.b.Create(t.Context(), "v", f.request(8*mib)))
	if a, err := f.b.Access(t.Context(), "v"); err != nil || len(a.Topologies) != 1 || a.Topologies[0]["zone"] != "z" {
		t.Errorf("access %+v, %v", a, err)
	}
}

// testStatic: a PersistentVolume that was there is claimed, kept, and left.
func testStatic(t *testing.T, f *fixture) {
	f.Static(t, "static-pv", 8*mib)
	req := backend.Request{Origin: volume.Origin{PV: "static-pv"}}
	twin := &corev1.PersistentVolume{}
	must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "static-pv"}, twin))
	twin.ObjectMeta = metav1.ObjectMeta{Name: "twin-of-static-pv"}
	must(t, f.api.Create(t.Context(), twin))
	want(t, f.b.Create(t.Context(), "v", req), volume.ErrInUse, "twin-of-static-pv", "the only one")
	must(t, f.api.Delete(t.Context(), twin))
	must(t, f.api.Get(t.Context(), client.ObjectKeyFromObject(twin), twin))
	twin.Finalizers = nil // of kube-controller-manager's pv-protection
	must(t, f.api.Update(t.Context(), twin))
	for range 2 {
		must(t, f.b.Create(t.Context(), "v", req))
	}
	want(t, f.b.Create(t.Context(), "w", req), volume.ErrInUse, "static-pv", "is claimed by")
	// A record that was made anew: what the claim knows stays.
	_, err := f.b.Export(t.Context(), "v", f.grant("a", 7))
	must(t, err)
	before := f.exports(t, "v")
	for _, uid := range []string{"uid-1", "uid-2", "uid-2"} {
		req.UID = uid
		must(t, f.b.Create(t.Context(), "v", req))
		if got := f.claim(t, "v").Labels[LabelOwner]; got != uid {
			t.Errorf("the claim is of %q, not of %q", got, uid)
		}
	}
	if now := f.exports(t, "v"); !slices.Equal(now, before) {
		t.Errorf("admitted are %+v, were %+v", now, before)
	}
	must(t, f.b.Unexport(t.Context(), "v", backend.Export{Initiator: f.Node("a")}))
	_, err = f.b.Export(t.Context(), "v", f.grant("b", 6))
	want(t, err, volume.ErrFenced)
	must(t, f.b.Create(t.Context(), "made", f.request(8*mib)))
	anew := f.request(8 * mib)
	anew.UID = "another"
	want(t, f.b.Create(t.Context(), "made", anew), volume.ErrExists, "owner")
	want(t, f.b.Create(t.Context(), "v", f.request(8*mib)), volume.ErrExists)
	want(t, f.b.Create(t.Context(), "x", backend.Request{Origin: volume.Origin{PV: "no-such-pv"}}), volume.ErrInvalid, "no-such-pv")
	at, err := f.b.Export(t.Context(), "v", f.grant("a", 8))
	if err != nil || at.CSI.Handle != "vol-static-pv" {
		t.Fatalf("%+v, %v", at, err)
	}
	must(t, f.b.Unexport(t.Context(), "v", backend.Export{Initiator: f.Node("a")}))
	for range 2 {
		must(t, f.b.Delete(t.Context(), "v"))
	}
	pv := &corev1.PersistentVolume{}
	must(t, f.api.Get(t.Context(), client.ObjectKey{Name: "static-pv"}, pv))
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || len(f.Deleted()) > 0 {
		t.Errorf("the origin that was there: %s, deleted %q", pv.Spec.PersistentVolumeReclaimPolicy, f.Deleted())
	}
	// A volume of the same name takes it again.
	must(t, f.b.Create(t.Context(), "v", req))
}

func testKinds(t *testing.T, f *fixture) {
	pv := func(name string, source corev1.PersistentVolumeSource, mode corev1.PersistentVolumeMode) {
		must(t, f.api.Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: requestOf(mib).Requests, VolumeMode: &mode,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeSource: source,
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			},
		}))
	}
	nfs := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/"}}
	fc := corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1"}, Lun: ptr.To(int32(0))}}
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: f.Driver, VolumeHandle: "h"}}
	pv("kind-nfs", nfs, corev1.PersistentVolumeFilesystem)
	pv("kind-fc", fc, corev1.PersistentVolumeBlock)
	pv("kind-files", csi, corev1.PersistentVolumeFilesystem)
	for name, words := range map[string][]string{
		"kind-nfs": {"volumeMode Filesystem"}, "kind-fc": {"kind-fc", "kind fc"}, "kind-files": {"kind-files", "accepted as an origin is Block"},
	} {
		want(t, f.b.Create(t.Context(), "v", backend.Request{Origin: volume.Origin{PV: name}}), volume.ErrInvalid, words...)
	}
	moved := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		VolumeMode: ptr.To(corev1.PersistentVolumeBlock), Capacity: corev1.ResourceList{},
		PersistentVolumeSource: corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}},
	}}
	src, err := source(moved)
	if err != nil || src.Driver != "ebs.csi.aws.com" || src.VolumeHandle != "vol-1" {
		t.Errorf("of a plugin that was moved to CSI: %+v, %v", src, err)
	}
}

func testExpand(t *testing.T, f *fixture) {
	f.make(t, "v")
	fixed := f.request(8 * mib)
	fixed.Origin.StorageClass = f.Class("fixed")
	must(t, f.b.Create(t.Context(), "fixed", fixed))
	_, err := f.b.Expand(t.Context(), "fixed", 16*mib)
	want(t, err, volume.ErrInvalid, f.Class("fixed"), "allowVolumeExpansion")

	b := f.behaviour()
	b.NodeStep = true
	f.Behave(b)
	grow := func(size int64) {
		t.Helper()
		if got, err := f.b.Expand(t.Context(), "v", size); err != nil || got != size {
			t.Fatalf("expand to %d: %d, %v", size, got, err)
		}
	}
	grow(16 * mib)
	f.await(t, "the node's part is pending", func() bool { return len(f.claim(t, "v").Status.Conditions) > 0 })
	next := f.backend(f.api, 20*time.Second) // of a process that comes after this one
	for _, b := range []*Backend{f.b, next} {
		f.wantGrowing(t, b, map[volume.ID]int64{"v": 16 * mib})
	}
	for range 2 {
		must(t, f.b.FinishExpand(t.Context(), "v"))
	}
	for _, b := range []*Backend{f.b, next} {
		f.wantGrowing(t, b, map[volume.ID]int64{})
	}
	if s := f.claim(t, "v").Status; len(s.AllocatedResourceStatuses) > 0 || len(s.Conditions) > 0 || s.Capacity.Storage().Value() != 16*mib {
		t.Errorf("status %+v", s)
	}
	grow(24 * mib)
	f.await(t, "the node's part is pending", func() bool { return len(f.claim(t, "v").Status.Conditions) > 0 })
	f.wantGrowing(t, f.b, map[volume.ID]int64{"v": 24 * mib})
	grow(32 * mib) // although nobody has said that the node's part is over
	_, err = f.b.Expand(t.Context(), "v", 1<<40)
	want(t, err, volume.ErrNoSpace, "ResourceExhausted")
	grow(40 * mib)
	_, err = f.b.Expand(t.Context(), "none", mib)
	want(t, err, volume.ErrNotFound)
	// As its record shows it by now, it is the same volume.
	must(t, f.b.Create(t.Context(), "v", f.request(40*mib)))

	// The end of an admission is that of the node's part.
	_, err = f.b.Export(t.Context(), "v", f.grant("a", 1))
	must(t, err)
	f.await(t, "the node's part is pending", func() bool { return len(f.claim(t, "v").Status.Conditions) > 0 })
	must(t, f.b.Unexport(t.Context(), "v", backend.Export{Initiator: f.Node("a")}))
	if s := f.claim(t, "v").Status; len(s.AllocatedResourceStatuses) > 0 || len(s.Conditions) > 0 || s.Capacity.Storage().Value() != 40*mib {
		t.Errorf("status after the end %+v", s)
	}
}

func (f *fixture) wantGrowing(t *testing.T, b *Backend, want map[volume.ID]int64) {
	t.Helper()
	if got, err := b.Growing(t.Context()); err != nil || !maps.Equal(got, want) {
		t.Errorf("growing are %v, %v; want %v", got, err, want)
	}
}

// await waits until something is so.
func (f *fixture) await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for start := time.Now(); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Errorf("not so in time: %s", what)
			return
		}
	}
}

func testDelete(t *testing.T, f *fixture) {
	f.make(t, "v")
	_, err := f.b.Export(t.Context(), "v", f.grant("a", 1))
	must(t, err)
	want(t, f.b.Delete(t.Context(), "v"), volume.ErrInUse, f.Node("a"))
	must(t, f.b.Unexport(t.Context(), "v", backend.Export{Initiator: f.Node("a")}))
	must(t, f.b.Delete(t.Context(), "v"))
	f.await(t, "the data are deleted", func() bool { return slices.Equal(f.Deleted(), []string{"v"}) })

	// One that was provisioned by an administrator, and bound by its class, is kept.
	there := f.Static(t, "there-before", 8*mib)
	there.Spec.StorageClassName = f.Class("late")
	there.Spec.ClaimRef = &corev1.ObjectReference{Namespace: f.Namespace, Name: "w"}
	must(t, f.api.Update(t.Context(), there))
	b := f.behaviour()
	b.HoldBind = true
	f.Behave(b)
	f.wantBusy(t, func(b *Backend) error { return b.Create(t.Context(), "w", f.request(8*mib)) }, "bound")
	claim := f.claim(t, "w")
	there.Spec.ClaimRef.UID = claim.UID
	must(t, f.api.Update(t.Context(), there))
	claim.Spec.VolumeName = there.Name
	must(t, f.api.Update(t.Context(), claim))
	f.Behave(f.behaviour())
	must(t, f.b.Create(t.Context(), "w", f.request(8*mib)))
	must(t, f.b.Delete(t.Context(), "w"))
	must(t, f.api.Get(t.Context(), client.ObjectKeyFromObject(there), there))
	if there.DeletionTimestamp != nil || there.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("what was there before: %+v", there.Spec)
	}
}
