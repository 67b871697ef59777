package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend/csi"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

// origins is a Service over a storage server in memory and the volumes of another driver.
type origins struct {
	*fixture
	cluster *csitest.Cluster
}

// TestOrigins runs all tests of volumes over those of another driver.
func TestOrigins(t *testing.T) {
	cfg := apiserver.Start(t)
	for name, test := range map[string]func(*testing.T, *origins){
		"life": testOriginLife, "dirty": testOriginDirty, "unfenced": testOriginUnfenced, "off": testOriginOff,
		"full": testOriginFull, "static": testOriginStatic, "killed": testOriginKilled, "both": testOriginBoth,
		"retired": testOriginRetired,
	} {
		t.Run(name, func(t *testing.T) { test(t, newOrigins(t, cfg, "p-"+name)) })
	}
}

func newOrigins(t *testing.T, cfg *rest.Config, name string) *origins {
	t.Helper()
	f := newFixture(t, cfg, volume.ID(name+"-volume"))
	o := &origins{fixture: f, cluster: csitest.Start(t, apiserver.Client(t, cfg), name, 100*gib)}
	f.svc = o.service(f.client)
	for _, node := range []string{"a", "b"} { // no iSCSI there
		if err := f.client.Create(t.Context(), &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: o.cluster.Node(node)}}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if wrong := o.cluster.Wrong(); len(wrong) > 0 {
			t.Errorf("%q", wrong)
		}
	})
	return o
}

// testDriver is the name of this driver.
const testDriver = "csi.nearflash.test"

func (o *origins) service(api client.Client) *Service {
	return New(Config{
		Client: api, Events: events.NewFakeRecorder(1000), Driver: testDriver,
		Origins: csi.New(csi.Config{Client: api, Namespace: o.cluster.Namespace, Patience: 20 * time.Second}),
		Servers: map[string]Server{"": {Backend: o.storage, TakenOver: func(context.Context) (string, error) { return "one", nil }}},
	})
}

func (o *origins) spec() volume.Spec {
	s := spec()
	s.Origin = &volume.Origin{StorageClass: o.cluster.Class("")}
	return s
}

func (o *origins) publishTo(t *testing.T, node string, generation int64) volume.Publication {
	t.Helper()
	p, err := o.svc.Publish(t.Context(), o.id, o.cluster.Node(node), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.wantOwner(t, o.cluster.Node(node), generation, true)
	o.wantAttached(t, o.cluster.Node(node))
	return p
}

// wantAttached fails unless exactly these nodes are attached.
func (o *origins) wantAttached(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, node := range o.cluster.Attached() {
		got = append(got, node)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("attached are %q, want %q", got, want)
	}
}

func testOriginLife(t *testing.T, o *origins) {
	o.cluster.Behave(csitest.Behaviour{Larger: gib})
	for range 2 {
		v, err := o.svc.Create(t.Context(), o.id, o.spec())
		if err == nil && v.Spec.CapacityBytes != 2*gib {
			t.Errorf("made with %d bytes, of a driver that makes more", v.Spec.CapacityBytes)
		}
		if err != nil && !errors.Is(err, volume.ErrExists) { // the CSI layer asks for the size that the volume has
			t.Fatal(err)
		}
	}
	p := o.publishTo(t, "a", 1)
	if p.Source.CSI == nil || p.Source.CSI.Driver != o.cluster.Driver || p.Source.CSI.Attachment["device"] == "" {
		t.Errorf("source %+v", p.Source.CSI)
	}
	if f := o.record(t).Filesystem; f != volume.FormatNever {
		t.Errorf("filesystem %v of a volume that nobody ever had", f)
	}
	_, err := o.svc.Publish(t.Context(), o.id, o.cluster.Node("b"), nil, nil)
	wantError(t, err, volume.ErrInUse)
	_, err = o.svc.Publish(t.Context(), o.id, "no-pool", nil, nil)
	wantError(t, err, volume.ErrNodeNotFound)
	o.publishTo(t, "a", 1)
	wantError(t, o.svc.Delete(t.Context(), o.id), volume.ErrInUse)
	o.unpublish(t, o.cluster.Node("b")) // not the owner
	o.wantAttached(t, o.cluster.Node("a"))
	o.unpublish(t, o.cluster.Node("a"))
	o.wantAttached(t)
	o.publishTo(t, "b", 2)
	size, err := o.svc.Expand(t.Context(), o.id, 3*gib)
	if err != nil || size != 3*gib || o.record(t).Spec.CapacityBytes != 3*gib {
		t.Errorf("expanded to %d, %v", size, err)
	}
	o.unpublish(t, o.cluster.Node("b"))
	for range 2 {
		if err := o.svc.Delete(t.Context(), o.id); err != nil {
			t.Fatal(err)
		}
	}
	o.wantGone(t)
	o.wantData(t, true)
}

// wantData fails unless the data are deleted, or, if not wanted so, are there.
func (o *origins) wantData(t *testing.T, deleted bool) {
	t.Helper()
	for start := time.Now(); slices.Contains(o.cluster.Deleted(), string(o.id)) != deleted; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Fatalf("data deleted: %q, want %v", o.cluster.Deleted(), deleted)
		}
	}
}

// testOriginDirty: who may hold unflushed writes keeps its attachment until it has flushed them.
func testOriginDirty(t *testing.T, o *origins) {
	if _, err := o.svc.Create(t.Context(), o.id, o.spec()); err != nil {
		t.Fatal(err)
	}
	a := o.cluster.Node("a")
	o.publishTo(t, "a", 1)
	o.mark(t, true)
	o.unpublish(t, a)
	o.wantAttached(t, a)
	_, err := o.svc.Publish(t.Context(), o.id, o.cluster.Node("b"), nil, nil)
	wantError(t, err, volume.ErrFenced)
	if err := o.svc.Settle(t.Context(), o.id); err != nil {
		t.Fatal(err)
	}
	o.wantAttached(t, a)
	o.mark(t, false)
	if err := o.svc.Settle(t.Context(), o.id); err != nil {
		t.Fatal(err)
	}
	o.wantAttached(t)
	o.publishTo(t, "b", 2)
}

// testOriginFull: a node to which the other driver cannot attach a volume does not keep it from
// others; but who may hold unflushed writes does.
func testOriginFull(t *testing.T, o *origins) {
	if _, err := o.svc.Create(t.Context(), o.id, o.spec()); err != nil {
		t.Fatal(err)
	}
	full := csitest.Behaviour{AttachError: "rpc error: code = ResourceExhausted desc = no place"}
	o.cluster.Behave(full)
	a, b := o.cluster.Node("a"), o.cluster.Node("b")
	for generation := int64(1); generation < 3; generation++ { // external-attacher tries again
		_, err := o.svc.Publish(t.Context(), o.id, a, nil, nil)
		wantError(t, err, volume.ErrNoSpace)
		o.wantOwner(t, a, 1, false)
	}
	if e, err := o.svc.origins.Access(t.Context(), o.id); err != nil || len(e.Exports) > 0 {
		t.Errorf("admitted are %+v, %v", e.Exports, err)
	}
	o.cluster.Behave(csitest.Behaviour{})
	o.publishTo(t, "b", 2)
	_, err := o.svc.Publish(t.Context(), o.id, a, nil, nil)
	wantError(t, err, volume.ErrInUse)

	o.mark(t, true)
	o.cluster.Behave(full)
	attachments := &storagev1.VolumeAttachmentList{}
	if err := o.client.List(t.Context(), attachments, client.HasLabels{csi.LabelVolume}); err != nil {
		t.Fatal(err)
	}
	for i := range attachments.Items {
		if va := &attachments.Items[i]; va.Labels[csi.LabelVolume] == string(o.id) {
			if err := o.client.Delete(t.Context(), va); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = o.svc.Publish(t.Context(), o.id, b, nil, nil)
	wantError(t, err, volume.ErrNoSpace)
	o.wantOwner(t, b, 2, true)
}

// testOriginUnfenced: over what nothing fences there is no cache that holds unflushed writes.
func testOriginUnfenced(t *testing.T, o *origins) {
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: o.cluster.Driver}}
	if err := o.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	object = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: o.cluster.Driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}
	if err := o.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	_, err := o.svc.Create(t.Context(), o.id, o.spec())
	wantError(t, err, volume.ErrInvalid)
	if !strings.Contains(err.Error(), "attachRequired") {
		t.Error(err)
	}
	through := o.spec()
	through.Mode, through.AcceptNodeLoss = volume.ModeWritethrough, false
	if _, err := o.svc.Create(t.Context(), o.id, through); err != nil {
		t.Fatal(err)
	}
	err = o.svc.Modify(t.Context(), o.id, func(s volume.Spec) (volume.Spec, error) {
		s.Mode, s.AcceptNodeLoss = volume.ModeWriteback, true
		return s, nil
	})
	wantError(t, err, volume.ErrInvalid)
	for i, node := range []string{"a", "b"} {
		p, err := o.svc.Publish(t.Context(), o.id, o.cluster.Node(node), nil, nil)
		if err != nil || p.Source.Fenced() {
			t.Fatalf("published with %+v, %v", p.Source.CSI, err)
		}
		o.wantOwner(t, o.cluster.Node(node), int64(i+1), true)
		o.unpublish(t, o.cluster.Node(node))
	}
	// A volume of before, which nobody had to consent to, is published all the same.
	writeback := func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.CacheMode, obj.Spec.AcceptDirtyLoss = v1alpha1.CacheModeWriteback, v1alpha1.DirtyLossNodeLoss
		return nil
	}
	if err := records.UpdateObject(t.Context(), o.client, o.id, writeback); err != nil {
		t.Fatal(err)
	}
	b := o.cluster.Node("b")
	if p, err := o.svc.Publish(t.Context(), o.id, b, nil, nil); err != nil || p.Source.Fenced() {
		t.Fatalf("published with %+v, %v", p.Source.CSI, err)
	}
	err = o.svc.Modify(t.Context(), o.id, func(s volume.Spec) (volume.Spec, error) {
		s.Cache = volume.Size{Percent: 30}
		return s, nil
	})
	if errors.Is(err, volume.ErrInvalid) || o.record(t).Spec.Cache.Percent != 30 {
		t.Errorf("a change of the size, in the mode that it has: %v", err)
	}
	consent := func(obj *v1alpha1.CachedVolume) error {
		obj.Spec.Origin.WithoutFence = v1alpha1.WithoutFenceAcceptTwoWriters
		return nil
	}
	if err := records.UpdateObject(t.Context(), o.client, o.id, consent); err != nil {
		t.Fatal(err)
	}
	if p, err := o.svc.Publish(t.Context(), o.id, b, nil, nil); err != nil || !p.Source.Fenced() {
		t.Fatalf("published with %+v, %v", p.Source.CSI, err)
	}
	o.unpublish(t, b)
	if err := o.svc.Delete(t.Context(), o.id); err != nil {
		t.Fatal(err)
	}
	consented := o.spec()
	consented.Origin.AcceptTwoWriters = true
	if _, err := o.svc.Create(t.Context(), o.id, consented); err != nil {
		t.Fatal(err)
	}
}

// testOriginOff: a controller that has none says what enables them, and does nothing.
func testOriginOff(t *testing.T, o *origins) {
	off := New(Config{Client: o.client, Servers: one(o.storage), Events: o.events})
	_, err := off.Create(t.Context(), o.id, o.spec())
	wantError(t, err, volume.ErrInvalid)
	if !strings.Contains(err.Error(), "origins.enabled") {
		t.Error(err)
	}
	if _, err := o.svc.Create(t.Context(), o.id, o.spec()); err != nil {
		t.Fatal(err)
	}
	o.publishTo(t, "a", 1)
	_, err = off.Publish(t.Context(), o.id, o.cluster.Node("a"), nil, chap)
	wantError(t, err, volume.ErrUnavailable)
	if !strings.Contains(err.Error(), "origins.enabled") {
		t.Error(err)
	}
	_, err = off.Publish(t.Context(), "another", o.cluster.Node("a"), &volume.Spec{Mode: volume.ModeNone, Origin: &volume.Origin{PV: "pv"}}, nil)
	wantError(t, err, volume.ErrUnavailable)
	if _, err := off.Get(t.Context(), "another"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the record of what is not enabled: %v", err)
	}
	_, err = off.Expand(t.Context(), o.id, 2*gib)
	for _, err := range []error{err, off.Unpublish(t.Context(), o.id, o.cluster.Node("a")), off.Delete(t.Context(), o.id)} {
		wantError(t, err, volume.ErrUnavailable)
	}
	o.wantAttached(t, o.cluster.Node("a"))
}

// testOriginStatic: a PersistentVolume that was there is claimed at the first publication, and
// left when the record goes.
func testOriginStatic(t *testing.T, o *origins) {
	pv := o.cluster.Static(t, string(o.id)+"-pv", gib)
	s := &volume.Spec{Mode: volume.ModeWritethrough, Cache: volume.Size{Percent: 10}, Origin: &volume.Origin{PV: pv.Name}}
	_, err := o.svc.Create(t.Context(), o.id, *s)
	wantError(t, err, volume.ErrInvalid)
	a := o.cluster.Node("a")
	for range 2 {
		p, err := o.svc.Publish(t.Context(), o.id, a, s, nil)
		if err != nil || p.Source.CSI == nil || p.Source.CSI.PV != pv.Name {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	if f := o.record(t).Filesystem; f == volume.FormatNever {
		t.Errorf("filesystem %v of somebody else's volume", f)
	}
	// The record is lost while a node is admitted, and is made anew: the claim goes with it, and the
	// generations go on. The mode may have been another one: nobody else gets the volume before that
	// node has flushed, also if Kubernetes takes it from the node.
	before := o.record(t)
	o.loseRecord(t)
	for range 2 {
		_, err = o.svc.Publish(t.Context(), o.id, o.cluster.Node("b"), s, nil)
		wantError(t, err, volume.ErrFenced)
		o.unpublish(t, a)
		o.wantAttached(t, a)
		if v := o.record(t); v.Fence.Node != a || !v.PossiblyDirty || v.Published {
			t.Fatalf("the record that was made anew: %+v", v)
		}
	}
	p, err := o.svc.Publish(t.Context(), o.id, a, s, nil)
	if err != nil || p.Fence.UID == before.Fence.UID || p.Fence.Generation < before.Fence.Generation {
		t.Fatalf("made anew: %+v, %v, was %+v", p.Fence, err, before.Fence)
	}
	o.mark(t, false) // it has nothing to flush
	o.unpublish(t, a)
	o.wantAttached(t)
	if err := o.svc.Retire(t.Context(), o.id); err != nil {
		t.Fatal(err)
	}
	o.wantGone(t)
	err = o.client.Get(t.Context(), client.ObjectKey{Namespace: o.cluster.Namespace, Name: string(o.id)}, &corev1.PersistentVolumeClaim{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("claim of the origin: %v", err)
	}
	if err := o.client.Get(t.Context(), client.ObjectKeyFromObject(pv), pv); err != nil || pv.DeletionTimestamp != nil {
		t.Errorf("the origin: %v", err)
	}
	o.wantData(t, false)
	s.FormatBlank = true
	if _, err := o.svc.Publish(t.Context(), o.id, a, s, nil); err != nil {
		t.Fatal(err)
	}
	o.unpublish(t, a)
}

// testOriginBoth: a volume of the storage server is served as ever beside them.
func testOriginBoth(t *testing.T, o *origins) {
	makeNodes(t, o.client)
	o.create(t)
	o.publish(t, nodeA, 1)
	o.unpublish(t, nodeA)
	o.publish(t, nodeB, 2)
	o.unpublish(t, nodeB)
	if err := o.svc.Delete(t.Context(), o.id); err != nil {
		t.Fatal(err)
	}
	o.wantGone(t)
}

// testOriginKilled: a controller that dies between any two writes, of records, claims or
// attachments, is followed by one that is asked the same, and by then no two nodes are attached.
func testOriginKilled(t *testing.T, o *origins) {
	csitest.Kills(len(o.life(t.Context(), "")), func(at, n int, done bool) bool {
		dead, err := o.die(t.Context(), volume.ID(fmt.Sprintf("p-killed-%d-%d-%v", at, n, done)), at, n, done)
		if err != nil {
			t.Error(err)
		}
		return dead && err == nil
	})
}

// life is all calls for a volume, in their order.
func (o *origins) life(ctx context.Context, id volume.ID) []func(*Service) error {
	publish := func(node string) func(*Service) error {
		return func(s *Service) error {
			_, err := s.Publish(ctx, id, o.cluster.Node(node), nil, nil)
			return err
		}
	}
	unpublish := func(node string) func(*Service) error {
		return func(s *Service) error { return s.Unpublish(ctx, id, o.cluster.Node(node)) }
	}
	return []func(*Service) error{
		func(s *Service) error { _, err := s.Create(ctx, id, o.spec()); return err },
		publish("a"), unpublish("a"), publish("b"), unpublish("b"),
		func(s *Service) error { return s.Delete(ctx, id) },
	}
}

// die walks a volume through its life, in which the controller dies once, at the n-th write of
// one call. dead is false if that call has fewer.
func (o *origins) die(ctx context.Context, id volume.ID, at, n int, done bool) (dead bool, err error) {
	whole := o.service(o.client)
	for i, call := range o.life(ctx, id) {
		if i == at {
			m := csitest.NewMortal(o.client, n, done)
			if err := call(o.service(m)); err != nil && !m.Dead() {
				return false, fmt.Errorf("call %d for %s: %w", i, id, err)
			}
			if !m.Dead() {
				return false, nil
			}
		}
		if err := call(whole); err != nil {
			return true, fmt.Errorf("call %d for %s, after a death at write %d of call %d: %w", i, id, n, at, err)
		}
		if i == 3 {
			v, err := whole.Get(ctx, id)
			if err != nil || v.Fence.Node != o.cluster.Node("b") || v.Fence.Generation != 2 {
				return true, fmt.Errorf("%s is owned by %+v (%w)", id, v.Fence, err)
			}
		}
		if deleted := slices.Contains(o.cluster.Deleted(), string(id)); deleted && i < 5 {
			return true, fmt.Errorf("the data of %s are deleted, and nobody has asked for it", id)
		}
	}
	if _, err := records.Load(ctx, o.client, id); !errors.Is(err, volume.ErrNotFound) {
		return true, fmt.Errorf("record of %s after the deletion: %w", id, err)
	}
	return true, nil
}
