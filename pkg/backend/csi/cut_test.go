package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
	"github.com/nearflash/nearflash/pkg/volume"
)

func vs(change func(*snapshotv1.VolumeSnapshot)) *snapshotv1.VolumeSnapshot {
	s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "s", Labels: map[string]string{LabelVolume: "v"}, Annotations: map[string]string{annotationSize: "1024"},
		Finalizers: []string{SnapshotFinalizer}, CreationTimestamp: metav1.Unix(100, 0),
	}}
	if change != nil {
		change(s)
	}
	return s
}

func status(change func(*snapshotv1.VolumeSnapshotStatus)) func(*snapshotv1.VolumeSnapshot) {
	return func(s *snapshotv1.VolumeSnapshot) {
		s.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: ptr.To("c"), CreationTime: ptr.To(metav1.Unix(200, 0))}
		change(s.Status)
	}
}

func TestDecideCut(t *testing.T) {
	failed := func(text string) func(*snapshotv1.VolumeSnapshot) {
		return func(s *snapshotv1.VolumeSnapshot) {
			s.Status = &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: &text}}
		}
	}
	for name, tc := range map[string]struct {
		have *snapshotv1.VolumeSnapshot
		want cutStep
		err  error
	}{
		"nothing is there":         {nil, cutMake, nil},
		"somebody else's":          {vs(func(s *snapshotv1.VolumeSnapshot) { s.Labels = nil }), cutDone, volume.ErrExists},
		"of another volume":        {vs(func(s *snapshotv1.VolumeSnapshot) { s.Labels[LabelVolume] = "w" }), cutDone, volume.ErrExists},
		"being deleted":            {vs(func(s *snapshotv1.VolumeSnapshot) { s.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }), cutEnd, nil},
		"not begun":                {vs(nil), cutWait, nil},
		"bound, and not cut":       {vs(status(func(s *snapshotv1.VolumeSnapshotStatus) { s.CreationTime = nil })), cutWait, nil},
		"cut, and not bound":       {vs(status(func(s *snapshotv1.VolumeSnapshotStatus) { s.BoundVolumeSnapshotContentName = nil })), cutWait, nil},
		"failed":                   {vs(failed("rpc error: code = Internal desc = x")), cutWait, volume.ErrUnavailable},
		"no space":                 {vs(failed("rpc error: code = ResourceExhausted desc = x")), cutWait, volume.ErrNoSpace},
		"cut":                      {vs(status(func(*snapshotv1.VolumeSnapshotStatus) {})), cutDone, nil},
		"cut after a failure":      {vs(status(func(s *snapshotv1.VolumeSnapshotStatus) { s.Error = &snapshotv1.VolumeSnapshotError{} })), cutDone, nil},
		"size that was edited":     {vs(func(s *snapshotv1.VolumeSnapshot) { s.Annotations[annotationSize] = "much" }), cutDone, volume.ErrBackend},
		"size that was taken away": {vs(func(s *snapshotv1.VolumeSnapshot) { s.Annotations = nil }), cutDone, volume.ErrBackend},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := decideCut(tc.have, "v"); got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("got %d, %v; want %d, %v", got, err, tc.want, tc.err)
			}
		})
	}
}

func TestDecideDeleteCut(t *testing.T) {
	ending := func(finalizers ...string) *snapshotv1.VolumeSnapshot {
		return vs(func(s *snapshotv1.VolumeSnapshot) {
			s.DeletionTimestamp, s.Finalizers = ptr.To(metav1.Unix(1, 0)), finalizers
		})
	}
	for name, tc := range map[string]struct {
		have *snapshotv1.VolumeSnapshot
		want deleteCutStep
	}{
		"nothing is there":           {nil, deleteCutDone},
		"somebody else's":            {vs(func(s *snapshotv1.VolumeSnapshot) { s.Labels = nil }), deleteCutDone},
		"nobody has asked":           {vs(nil), deleteCutObject},
		"the controller is at it":    {ending("other", SnapshotFinalizer), deleteCutWait},
		"the controller is done":     {ending(SnapshotFinalizer), deleteCutFinalizer},
		"ours was taken away before": {ending("other"), deleteCutWait},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideDeleteCut(tc.have); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestCutOf(t *testing.T) {
	s := vs(status(func(s *snapshotv1.VolumeSnapshotStatus) {
		s.ReadyToUse, s.RestoreSize = ptr.To(true), ptr.To(resource.MustParse("4096"))
	}))
	s.Annotations[annotationHold], s.Annotations[annotationFilesystem], s.Annotations[annotationAccepted] = "h", "Formatting", "true"
	want := backend.Cut{
		ID: "s", Volume: "v", SizeBytes: 4096, Created: metav1.Unix(200, 0).Time, Hold: "h", Filesystem: volume.FormatBegun,
		Done: true, Ready: true, Accepted: true,
	}
	if got, err := cutOf(s); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	// A driver that tells less than the volume has does not make it smaller, and a cut that is
	// not done is not ready, whatever is said.
	s.Status.RestoreSize, s.Status.CreationTime = ptr.To(resource.MustParse("0")), nil
	want.SizeBytes, want.Created, want.Done, want.Ready = 1024, metav1.Unix(100, 0).Time, false, false
	if got, err := cutOf(s); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func testSnapshotConformance(t *testing.T, cfg *rest.Config) {
	var mu sync.Mutex
	n := 0
	backendtest.SnapshotConformance(t, func(t *testing.T) backendtest.Store {
		mu.Lock()
		n++
		name := fmt.Sprintf("cuts-%d", n)
		mu.Unlock()
		f := newCutFixture(t, cfg, name)
		return &spoken{Backend: f.b, f: f}
	}, "thick", "space", "epoch")
}

func newCutFixture(t *testing.T, cfg *rest.Config, name string) *fixture {
	t.Helper()
	f := newFixture(t, cfg, name)
	f.StartSnapshots(t)
	return f
}

// TestSnapshots runs everything that needs an API server that knows VolumeSnapshots.
func TestSnapshots(t *testing.T) {
	cfg := apiserver.Start(t)
	t.Run("not installed", func(t *testing.T) { testNotInstalled(t, newFixture(t, cfg, "s-none")) })
	csitest.InstallSnapshots(t, cfg)
	t.Run("conformance", func(t *testing.T) { testSnapshotConformance(t, cfg) })
	for name, test := range map[string]func(*testing.T, *fixture){
		"content": testCutContent, "slow": testCutSlow, "refusals": testCutRefusals, "foreign": testCutForeign,
		"deletion": testCutDeletion, "stalled": testCutStalled, "killed": testCutKilled,
	} {
		t.Run(name, func(t *testing.T) { test(t, newCutFixture(t, cfg, "s-"+name)) })
	}
}

func cutRequest() backend.CutRequest { return backend.CutRequest{Hold: "h"} }

// snapshot makes an accepted cut.
func (f *fixture) snapshot(t *testing.T, id volume.SnapshotID, of volume.ID) backend.Cut {
	t.Helper()
	c, err := f.b.Cut(t.Context(), id, of, cutRequest())
	must(t, err)
	if !c.Done {
		t.Fatalf("cut: %+v", c)
	}
	must(t, f.b.Accept(t.Context(), id, "h"))
	return c
}

func (f *fixture) object(t *testing.T, id volume.SnapshotID) *snapshotv1.VolumeSnapshot {
	t.Helper()
	s := &snapshotv1.VolumeSnapshot{}
	must(t, f.api.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: string(id)}, s))
	return s
}

// from is a request for a volume that begins as a cut.
func (f *fixture) from(id volume.SnapshotID, size int64) backend.Request {
	req := f.request(size)
	req.From = id
	return req
}

// begin makes a volume of a cut, once that is ready.
func (f *fixture) begin(t *testing.T, id volume.ID, req backend.Request) {
	t.Helper()
	f.await(t, "volume "+string(id), func() bool {
		err := f.b.Create(t.Context(), id, req)
		if err != nil && !errors.Is(err, volume.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// testNotInstalled: a cluster without VolumeSnapshots has volumes, and says what is missing.
func testNotInstalled(t *testing.T, f *fixture) {
	f.make(t, "v")
	_, err := f.b.Cut(t.Context(), "s", "v", cutRequest())
	_, findErr := f.b.Find(t.Context(), "s")
	_, listErr := f.b.Cuts(t.Context())
	for _, err := range []error{err, findErr, listErr, f.b.Accept(t.Context(), "s", "h"), f.b.DropCut(t.Context(), "s", "h"), f.b.DeleteCut(t.Context(), "s"), f.b.Create(t.Context(), "w", f.from("s", 8*mib))} {
		want(t, err, volume.ErrInvalid, "VolumeSnapshot API is not installed")
	}
}

// testCutContent: what is made of a cut has what the volume had when it was cut.
func testCutContent(t *testing.T, f *fixture) {
	f.make(t, "v")
	f.Write(t, "v", "one")
	f.snapshot(t, "s", "v")
	f.Write(t, "v", "two")
	f.begin(t, "w", f.from("s", 16*mib))
	if got := f.Read(t, "w"); got != "one" {
		t.Errorf("the volume has %q", got)
	}
	s := f.object(t, "s")
	if s.Labels[LabelVolume] != "v" || !slices.Contains(s.Finalizers, SnapshotFinalizer) || *s.Spec.VolumeSnapshotClassName != f.SnapshotClass("") {
		t.Errorf("VolumeSnapshot: %+v", s)
	}
	if pv := f.pv(t, "w"); pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("PersistentVolume: %+v", pv.Spec)
	}
	// By a class of its own, and larger than the cut once the volume has grown.
	_, err := f.b.Expand(t.Context(), "v", 32*mib)
	must(t, err)
	c, err := f.b.Cut(t.Context(), "t", "v", backend.CutRequest{Hold: "h", Class: f.SnapshotClass("kept")})
	if err != nil || c.SizeBytes != 32*mib || *f.object(t, "t").Spec.VolumeSnapshotClassName != f.SnapshotClass("kept") {
		t.Errorf("cut: %+v, %v", c, err)
	}
}

// testCutSlow: a cut that takes long is shown as not done, and is asked for again.
func testCutSlow(t *testing.T, f *fixture) {
	f.make(t, "v")
	f.Behave(csitest.Behaviour{HoldCut: true})
	for range 2 {
		c, err := f.backend(f.api, 2*time.Second).Cut(t.Context(), "s", "v", cutRequest())
		if err != nil || c.Done || c.Ready || c.ID != "s" || c.Volume != "v" || c.SizeBytes != 8*mib {
			t.Errorf("cut that takes long: %+v, %v", c, err)
		}
	}
	want(t, f.b.Accept(t.Context(), "s", "h"), volume.ErrBusy, "not cut yet")
	f.Behave(csitest.Behaviour{HoldReady: true})
	if c, err := f.b.Cut(t.Context(), "s", "v", cutRequest()); err != nil || !c.Done || c.Ready {
		t.Errorf("cut that is being copied: %+v, %v", c, err)
	}
	must(t, f.b.Accept(t.Context(), "s", "h"))
	want(t, f.b.Create(t.Context(), "w", f.from("s", 8*mib)), volume.ErrBusy, "snapshot s is not ready yet")
	f.Behave(csitest.Behaviour{})
	f.begin(t, "w", f.from("s", 8*mib))
}

func testCutRefusals(t *testing.T, f *fixture) {
	f.make(t, "v")
	cut := func(id volume.SnapshotID, class string) error {
		_, err := f.b.Cut(t.Context(), id, "v", backend.CutRequest{Hold: "h", Class: class})
		return err
	}
	want(t, cut("a", "none"), volume.ErrInvalid, `no VolumeSnapshotClass "none"`, f.Driver)
	want(t, cut("a", f.SnapshotClass("foreign")), volume.ErrInvalid, "is of driver foreign.example.org", f.Driver)
	f.Behave(csitest.Behaviour{CutError: "rpc error: code = Internal desc = the array is on fire"})
	want(t, cut("b", ""), volume.ErrUnavailable, "the array is on fire", "volume v")
	f.Behave(csitest.Behaviour{CutError: "rpc error: code = ResourceExhausted desc = no room"})
	f.await(t, "another refusal", func() bool { return errors.Is(cut("c", ""), volume.ErrNoSpace) })
	// The driver tries again, and then it is cut.
	f.Behave(csitest.Behaviour{})
	f.await(t, "the cut", func() bool { return cut("b", "") == nil })
	must(t, f.b.Accept(t.Context(), "b", "h"))
	f.await(t, "it is ready", func() bool {
		c, err := f.b.Find(t.Context(), "b")
		return err == nil && c.Ready
	})
	static := backend.Request{SizeBytes: 8 * mib, Origin: volume.Origin{PV: "pv"}, From: "b"}
	want(t, f.b.Create(t.Context(), "w", static), volume.ErrInvalid, "PersistentVolume pv has its content")
	other := f.from("b", 8*mib)
	other.Origin.StorageClass = "none"
	want(t, f.b.Create(t.Context(), "w", other), volume.ErrInvalid, `no StorageClass "none"`)
	s := f.object(t, "b")
	must(t, f.b.writeSnapshot(t.Context(), s, func(s *snapshotv1.VolumeSnapshot) { s.Annotations[annotationDriver] = "foreign.example.org" }))
	want(t, f.b.Create(t.Context(), "w", f.from("b", 8*mib)), volume.ErrInvalid, "a class of foreign.example.org")
	must(t, f.b.askDeletion(t.Context(), f.claim(t, "v")))
	want(t, cut("d", ""), volume.ErrNotFound, "is being deleted")
}

// testCutForeign: a VolumeSnapshot of somebody else is left alone, and is no cut.
func testCutForeign(t *testing.T, f *fixture) {
	f.make(t, "v")
	must(t, f.api.Create(t.Context(), &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "s"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("v")}},
	}))
	_, err := f.b.Cut(t.Context(), "s", "v", cutRequest())
	want(t, err, volume.ErrExists, "is not ours")
	_, err = f.b.Find(t.Context(), "s")
	want(t, err, volume.ErrNotFound)
	want(t, f.b.Accept(t.Context(), "s", "h"), volume.ErrNotFound)
	want(t, f.b.Create(t.Context(), "w", f.from("s", 8*mib)), volume.ErrNotFound)
	must(t, f.b.DeleteCut(t.Context(), "s"))
	if all, err := f.b.Cuts(t.Context()); err != nil || len(all) > 0 || f.object(t, "s").DeletionTimestamp != nil {
		t.Errorf("cuts %+v, %v", all, err)
	}
}

// testCutDeletion: the object goes when the snapshot controller has done its part, and with it
// what its class says.
func testCutDeletion(t *testing.T, f *fixture) {
	f.make(t, "v")
	f.snapshot(t, "s", "v")
	_, err := f.b.Cut(t.Context(), "kept", "v", backend.CutRequest{Hold: "h", Class: f.SnapshotClass("kept")})
	must(t, err)
	f.Behave(csitest.Behaviour{HoldCutDelete: true})
	want(t, f.backend(f.api, 2*time.Second).DeleteCut(t.Context(), "s"), volume.ErrBusy, "volumesnapshot-bound-protection")
	// It is no cut any more, and no other is made of its name before it is gone.
	_, err = f.b.Find(t.Context(), "s")
	want(t, err, volume.ErrNotFound, "being deleted")
	want(t, f.b.Create(t.Context(), "w", f.from("s", 8*mib)), volume.ErrNotFound)
	_, err = f.backend(f.api, 2*time.Second).Cut(t.Context(), "s", "v", cutRequest())
	want(t, err, volume.ErrBusy)
	if all, err := f.b.Cuts(t.Context()); err != nil || len(all) != 1 || all[0].ID != "kept" {
		t.Errorf("cuts %+v, %v", all, err)
	}
	before := f.object(t, "s").UID
	f.Behave(csitest.Behaviour{})
	c, err := f.b.Cut(t.Context(), "s", "v", cutRequest())
	if err != nil || !c.Done || c.Accepted || f.object(t, "s").UID == before {
		t.Errorf("made anew: %+v, %v", c, err)
	}
	must(t, errors.Join(f.b.DeleteCut(t.Context(), "s"), f.b.DeleteCut(t.Context(), "kept")))
	if got := f.DeletedCuts(); !slices.Equal(got, []string{"s", "s"}) {
		t.Errorf("deleted: %q", got)
	}
}

// testCutStalled: a controller that stalls before it drops a cut, or accepts it, while another
// goes on, does not touch what that one has.
func testCutStalled(t *testing.T, f *fixture) {
	f.make(t, "v")
	stalls := func(meanwhile func()) *Backend {
		var once sync.Once
		return f.backend(interceptor.NewClient(f.api, interceptor.Funcs{
			Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
				once.Do(meanwhile)
				return c.Delete(ctx, obj, opts...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
				once.Do(meanwhile)
				return c.Patch(ctx, obj, patch, opts...)
			},
		}), 20*time.Second)
	}
	_, err := f.b.Cut(t.Context(), "s", "v", cutRequest())
	must(t, err)
	must(t, stalls(func() { must(t, f.b.Accept(t.Context(), "s", "h")) }).DropCut(t.Context(), "s", "h"))
	if c, err := f.b.Find(t.Context(), "s"); err != nil || !c.Accepted {
		t.Errorf("accepted while it was being dropped: %+v, %v", c, err)
	}
	_, err = f.b.Cut(t.Context(), "x", "v", cutRequest())
	must(t, err)
	err = stalls(func() {
		must(t, f.b.DropCut(t.Context(), "x", "h"))
		_, err := f.b.Cut(t.Context(), "x", "v", backend.CutRequest{Hold: "later"})
		must(t, err)
	}).Accept(t.Context(), "x", "h")
	if c, findErr := f.b.Find(t.Context(), "x"); err == nil || findErr != nil || c.Accepted || c.Hold != "later" {
		t.Errorf("made anew while it was being accepted: %v; %+v, %v", err, c, findErr)
	}
}

// cutLife is all orders of a snapshot, in their order.
func (f *fixture) cutLife(of volume.ID) []step {
	id := volume.SnapshotID("of-" + of)
	return []step{
		{"cut", func(ctx context.Context, b *Backend, _ volume.ID) error {
			c, err := b.Cut(ctx, id, of, cutRequest())
			if err == nil && !c.Done {
				err = volume.ErrBusy
			}
			return err
		}},
		{"accept", func(ctx context.Context, b *Backend, _ volume.ID) error { return b.Accept(ctx, id, "h") }},
		{"create", func(ctx context.Context, b *Backend, _ volume.ID) error {
			return b.Create(ctx, "w-"+of, f.from(id, 8*mib))
		}},
		{"delete", func(ctx context.Context, b *Backend, _ volume.ID) error { return b.DeleteCut(ctx, id) }},
	}
}

// testCutKilled: killed between any two writes, the same order again ends right.
func testCutKilled(t *testing.T, f *fixture) {
	var deaths atomic.Int64
	f.kills(4, func(of volume.ID, at, n int, done bool) bool {
		must(t, f.b.Create(t.Context(), of, f.request(mib)))
		f.Write(t, string(of), "content of "+string(of))
		died := false
		for i, s := range f.cutLife(of) {
			if i == at {
				m := csitest.NewMortal(f.api, n, done)
				err := again(t.Context(), func(ctx context.Context) error { return s.act(ctx, f.backend(m, 20*time.Second), of) })
				if died = m.Dead(); died != errors.Is(err, csitest.ErrKilled) {
					t.Errorf("%s, killed at write %d: %v", s.name, n, err)
				}
				f.Write(t, string(of), "later")
			}
			if err := again(t.Context(), func(ctx context.Context) error { return s.act(ctx, f.b, of) }); err != nil {
				t.Errorf("%s after a kill at write %d of step %d: %v", s.name, n, at, err)
			}
		}
		if got := f.Read(t, "w-"+string(of)); at > 0 && got != "content of "+string(of) {
			t.Errorf("killed at write %d of step %d: the volume has %q", n, at, got)
		}
		if died {
			deaths.Add(1)
		}
		return died
	})
	if n := deaths.Load(); n < 9 {
		t.Errorf("%d deaths: there are more writes than that", n)
	}
	if all, err := f.b.Cuts(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}
