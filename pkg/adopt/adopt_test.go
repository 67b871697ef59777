package adopt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/testutil/apiserver"
)

// TestAdoption runs everything that needs the API server, which is started once.
func TestAdoption(t *testing.T) {
	cfg := apiserver.Start(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"there-and-back": testThereAndBack, "killed": testKilled, "released-killed": testReleaseKilled, "taken-back": testTakenBack,
		"made-again": testMadeAgain, "in-use": testInUse, "vanished": testVanished, "changed": testChanged, "rebound": testRebound,
		"stalled": testStalled, "twin": testTwin, "twin-changed": testTwinChanged, "journal-deleted": testJournalDeleted,
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, cfg, "d-"+name)) })
	}
}

// testThereAndBack: adopted, used, released, and adopted once more: under another handle.
func testThereAndBack(t *testing.T, f *fixture) {
	c, pv := f.bound("data")
	a := f.adopter(f.api)
	w := Want{Attributes: map[string]string{"cacheMode": "writethrough"}}
	for range 2 { // the second finds nothing to do
		f.must(a.Adopt(t.Context(), f.key("data"), w))
	}
	front := f.wantAdopted("adopted", pv, "data")
	if now := f.claim("data"); now.Labels["app"] != "db" || now.Annotations["example.org/note"] != "mine" || *now.Spec.StorageClassName != f.Class("") {
		t.Errorf("claim %+v", now)
	}
	f.must(f.use(front))
	f.must(a.Release(t.Context(), f.key("data")))
	f.wantReleased("released", c, pv)
	f.must(a.Release(t.Context(), f.key("data")))

	f.must(a.Adopt(t.Context(), f.key("data"), w))
	if again := f.wantAdopted("adopted again", pv, "data"); again.Name == front.Name {
		t.Errorf("the same handle %s: a node may have a cache of it", again.Name)
	}
	p, err := a.PlanAdopt(t.Context(), f.key("data"), Want{Chosen: true, Attributes: map[string]string{"cacheMode": "writeback"}})
	if err == nil || !strings.Contains(err.Error(), `cacheMode "writethrough"`) {
		t.Errorf("another mode for an adoption that was begun: %v, %v", p, err)
	}
}

// every is how far it is from one kill to the next.
func every() int {
	if os.Getenv("MATRIX") == "whole" {
		return 1
	}
	return 3
}

// deaths calls walk with a kill before the first write, and then behind each one, which is the
// same as before the next, until it has fewer.
func deaths(t *testing.T, atLeast int64, walk func(name string, n int, done bool) (dies bool)) {
	t.Helper()
	const lanes = 4 // most of it is waiting
	var all errgroup.Group
	var died atomic.Int64
	for lane := range lanes {
		all.Go(func() error {
			for n := lane * every(); walk(fmt.Sprintf("k%d", n), max(n, 1), n > 0); n += lanes * every() {
				died.Add(1)
			}
			return nil
		})
	}
	_ = all.Wait()
	if n := died.Load(); n < atLeast/int64(every()) {
		t.Errorf("%d deaths: there are more writes than that", n)
	}
}

// testKilled: killed at any write, the same command ends right.
func testKilled(t *testing.T, f *fixture) {
	deaths(t, 10, func(name string, n int, done bool) bool {
		_, pv := f.bound(name)
		m := csitest.NewMortal(f.api, n, done)
		err := f.adopter(m).Adopt(t.Context(), f.key(name), Want{})
		if m.Dead() != errors.Is(err, csitest.ErrKilled) {
			t.Errorf("%s: %v", name, err)
		}
		f.wantData(name, pv)
		if err := f.adopter(f.api).Adopt(t.Context(), f.key(name), Want{}); err != nil {
			t.Errorf("%s, again: %v", name, err)
			return m.Dead()
		}
		front := f.wantAdopted(name, pv, name)
		if err := f.use(front); err != nil {
			t.Error(err)
		}
		return m.Dead()
	})
}

// testReleaseKilled is the same for the way back.
func testReleaseKilled(t *testing.T, f *fixture) {
	deaths(t, 11, func(name string, n int, done bool) bool {
		c, pv := f.bound(name)
		f.must(f.adopter(f.api).Adopt(t.Context(), f.key(name), Want{}))
		if err := f.use(f.wantAdopted(name, pv, name)); err != nil {
			t.Error(err)
		}
		m := csitest.NewMortal(f.api, n, done)
		err := f.adopter(m).Release(t.Context(), f.key(name))
		if m.Dead() != errors.Is(err, csitest.ErrKilled) {
			t.Errorf("%s: %v", name, err)
		}
		f.wantData(name, pv)
		if err := f.adopter(f.api).Release(t.Context(), f.key(name)); err != nil {
			t.Errorf("%s, again: %v", name, err)
			return m.Dead()
		}
		f.wantReleased(name, c, pv)
		return m.Dead()
	})
}

// testTakenBack: an adoption that was killed is taken back by a release.
func testTakenBack(t *testing.T, f *fixture) {
	deaths(t, 9, func(name string, n int, done bool) bool {
		c, pv := f.bound(name)
		m := csitest.NewMortal(f.api, n, done)
		if err := f.adopter(m).Adopt(t.Context(), f.key(name), Want{}); err != nil && !m.Dead() {
			t.Error(err)
		}
		if err := f.adopter(f.api).Release(t.Context(), f.key(name)); err != nil {
			t.Errorf("%s: %v", name, err)
			return m.Dead()
		}
		f.wantReleased(name, c, pv)
		return m.Dead()
	})
}

// operator makes a claim again whenever it is not there, from when it begins until it is stopped.
type operator struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (f *fixture) operate(claim *corev1.PersistentVolumeClaim) *operator {
	ctx, cancel := context.WithCancel(f.t.Context())
	o := &operator{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for ctx.Err() == nil {
			_ = f.api.Create(ctx, claim.DeepCopy()) // refused while it is there
			time.Sleep(8 * time.Millisecond)
		}
	}()
	return o
}

func (o *operator) stop() {
	if o != nil {
		o.cancel()
		<-o.done
	}
}

// at calls act right before the n-th write of a client.
func at(api client.WithWatch, n int64, act func()) client.WithWatch {
	var writes atomic.Int64
	count := func() {
		if writes.Add(1) == n {
			act()
		}
	}
	return interceptor.NewClient(api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			count()
			return c.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			count()
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			count()
			return c.Patch(ctx, obj, patch, opts...)
		},
	})
}

// testMadeAgain: from any write on, somebody makes the claim again as soon as it is gone. If
// Kubernetes binds that one to the right volume it serves; else the command says so, leaves it
// alone, and ends right once it is gone.
func testMadeAgain(t *testing.T, f *fixture) {
	const writes = 9 // of either way, up to the claim
	var refused atomic.Int64
	var all errgroup.Group
	all.SetLimit(4)
	for n := int64(1); n <= writes; n++ {
		for _, fitting := range []bool{true, false} {
			for _, release := range []bool{false, true} {
				if every() > 1 && (n%2 == 0) == (fitting == release) {
					continue
				}
				// Before the claim is deleted nobody can make another: one such beginning is enough.
				if deletion := map[bool]int64{false: 5, true: 3}[release]; n > 1 && n < deletion {
					continue
				}
				all.Go(func() error {
					name := fmt.Sprintf("m%d-%v-%v", n, fitting, release)
					if f.madeAgain(t, name, n, fitting, release) {
						refused.Add(1)
					}
					return nil
				})
			}
		}
	}
	_ = all.Wait()
	if refused.Load() < int64(8/every()) {
		t.Errorf("%d commands were refused for a claim that leads elsewhere", refused.Load())
	}
}

func (f *fixture) madeAgain(t *testing.T, name string, n int64, fitting, release bool) (refused bool) {
	c, pv := f.bound(name)
	act := func(api client.Client) error { return f.adopter(api).Adopt(t.Context(), f.key(name), Want{}) }
	if release {
		f.must(act(f.api))
		if err := f.use(f.wantAdopted(name, pv, name)); err != nil {
			t.Error(err)
		}
		act = func(api client.Client) error { return f.adopter(api).Release(t.Context(), f.key(name)) }
	}
	size := int64(8 * mib)
	if !fitting {
		size = 16 * mib // more than the volume has: a new one is made
	}
	var o *operator
	err := act(at(f.api, n, func() { o = f.operate(f.newClaim(name, size)) }))
	o.stop()
	f.wantData(name, pv)
	if err != nil {
		refused = true
		if !strings.Contains(err.Error(), "was made again by somebody") || !strings.Contains(err.Error(), "kubectl delete pvc -n "+f.apps+" "+name) {
			t.Errorf("%s: %v", name, err)
		}
		now := f.claim(name)
		if now == nil || now.DeletionTimestamp != nil || now.UID == c.UID {
			t.Errorf("%s: the claim of somebody else is %+v", name, now)
		}
		f.must(client.IgnoreNotFound(f.api.Delete(t.Context(), now)))
		if err := act(f.api); err != nil {
			t.Errorf("%s, again: %v", name, err)
			return true
		}
	}
	if release {
		f.wantReleased(name, c, pv)
		return refused
	}
	if err := f.use(f.wantAdopted(name, pv, name)); err != nil {
		t.Error(err)
	}
	return refused
}

// testInUse: what uses the claim, or is about to, is named, and nothing is changed.
func testInUse(t *testing.T, f *fixture) {
	_, pv := f.bound("data")
	a := f.adopter(f.api)
	pod := f.pod("worker", "data")
	refuse := func(words ...string) {
		t.Helper()
		err := a.Adopt(t.Context(), f.key("data"), Want{})
		for _, w := range words {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("error %v lacks %q", err, w)
			}
		}
		if now := f.pv(pv.Name); now.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
			t.Errorf("policy %s", now.Spec.PersistentVolumeReclaimPolicy)
		}
	}
	refuse("pod worker (Pending) uses the claim")
	f.must(f.api.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	va := f.attach("va-of-data", pv.Name)
	refuse(pv.Name + " is attached to node node-x (VolumeAttachment va-of-data)")
	f.must(f.api.Delete(t.Context(), va))
	f.must(a.Adopt(t.Context(), f.key("data"), Want{}))
	front := f.wantAdopted("adopted", pv, "data")

	f.must(f.use(front))
	pod = f.pod("worker", "data")
	err := a.Release(t.Context(), f.key("data"))
	if err == nil || !strings.Contains(err.Error(), "pod worker") {
		t.Errorf("released below a pod: %v", err)
	}
	f.must(f.api.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	va = f.attach("va-of-front", front.Name)
	if err = a.Release(t.Context(), f.key("data")); err == nil || !strings.Contains(err.Error(), "VolumeAttachment va-of-front") {
		t.Errorf("released while it is attached: %v", err)
	}
	f.must(f.api.Delete(t.Context(), va))
	if now := f.pv(front.Name); now == nil || now.DeletionTimestamp != nil {
		t.Errorf("PersistentVolume %+v", now)
	}
}

// testVanished: a PersistentVolume that was not deleted by the command is not taken for that.
func testVanished(t *testing.T, f *fixture) {
	c, pv := f.bound("data")
	m := csitest.NewMortal(f.api, 5, true) // the claim is deleted
	if err := f.adopter(m).Adopt(t.Context(), f.key("data"), Want{}); !errors.Is(err, csitest.ErrKilled) {
		t.Fatal(err)
	}
	f.await("the claim is gone", func() bool { return f.claim("data") == nil })
	f.must(f.api.Delete(t.Context(), f.pv(pv.Name)))
	f.await("the PersistentVolume is gone", func() bool { return f.pv(pv.Name) == nil })
	err := f.adopter(f.api).Adopt(t.Context(), f.key("data"), Want{})
	if err == nil || !strings.Contains(err.Error(), "was not deleted by this command") || !strings.Contains(err.Error(), "release -n "+f.apps+" data") {
		t.Fatalf("went on: %v", err)
	}
	a := f.adopter(f.api)
	if err := a.Release(t.Context(), f.key("data")); err == nil || !strings.Contains(err.Error(), "add --volume-exists") {
		t.Fatalf("went on: %v", err)
	}
	a.VolumeExists = true
	f.must(a.Release(t.Context(), f.key("data")))
	f.wantReleased("released", c, pv)
}

// testChanged: what changes while the claim is adopted is there after its release.
func testChanged(t *testing.T, f *fixture) {
	_, pv := f.bound("data")
	a := f.adopter(f.api)
	f.must(a.Adopt(t.Context(), f.key("data"), Want{}))
	front := f.wantAdopted("adopted", pv, "data")
	f.must(f.use(front))
	block := f.pv(front.Name + "-origin")
	block.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("16Mi")
	f.must(f.api.Update(t.Context(), block))
	front.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("16Mi")
	f.must(f.api.Update(t.Context(), front))
	c := f.claim("data")
	c.Labels["tier"] = "gold"
	c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("16Mi")
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "u"}}
	f.must(f.api.Update(t.Context(), c))
	f.must(a.Release(t.Context(), f.key("data")))
	c, pv = f.claim("data"), f.pv(pv.Name)
	if c.Labels["tier"] != "gold" || c.Labels["app"] != "db" || len(c.OwnerReferences) > 0 {
		t.Errorf("claim %+v", c.ObjectMeta)
	}
	if got := []int64{c.Spec.Resources.Requests.Storage().Value(), pv.Spec.Capacity.Storage().Value()}; !slices.Equal(got, []int64{16 * mib, 16 * mib}) {
		t.Errorf("request and capacity are %v", got)
	}
}

// testRebound: the claim of an adopted volume may be deleted, by which nothing is lost, and made
// again by the same command.
func testRebound(t *testing.T, f *fixture) {
	_, pv := f.bound("data")
	a := f.adopter(f.api)
	f.must(a.Adopt(t.Context(), f.key("data"), Want{}))
	front := f.wantAdopted("adopted", pv, "data")
	f.must(f.use(front))
	f.must(f.api.Delete(t.Context(), f.claim("data")))
	f.await("PersistentVolume is Released", func() bool { return f.pv(front.Name).Status.Phase == corev1.VolumeReleased })
	f.must(a.Adopt(t.Context(), f.key("data"), Want{}))
	f.wantAdopted("again", pv, "data")
}
