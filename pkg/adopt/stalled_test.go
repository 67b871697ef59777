package adopt

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
)

// testStalled: a command stalls before any of its writes, while others end what it has begun:
// they release the claim, and, if it was releasing it, adopt it anew. It goes on, says that it was
// overtaken, and leaves no second PersistentVolume of the volume, and nothing else.
func testStalled(t *testing.T, f *fixture) {
	for _, release := range []bool{false, true} {
		var all errgroup.Group
		var stalls atomic.Int64
		const lanes = 4
		for lane := range lanes {
			all.Go(func() error {
				for n := lane*every() + 1; f.stalled(fmt.Sprintf("stalled-%v-%d", release, n), int64(n), release); n += lanes * every() {
					stalls.Add(1)
				}
				return nil
			})
		}
		_ = all.Wait()
		if stalls.Load() < int64(9/every()) {
			t.Errorf("release %v: %d stalls: there are more writes than that", release, stalls.Load())
		}
	}
}

func (f *fixture) stalled(name string, n int64, release bool) (stalls bool) {
	t, key := f.t, f.key(name)
	c, pv := f.bound(name)
	other := f.adopter(f.api)
	if release {
		f.must(other.Adopt(t.Context(), key, Want{}))
		f.must(f.use(f.wantAdopted(name, pv, name)))
	}
	api := at(f.api, n, func() {
		stalls = true
		if err := other.Release(t.Context(), key); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !release {
			return
		}
		if err := other.Adopt(t.Context(), key, Want{}); err != nil {
			t.Errorf("%s, adopted anew: %v", name, err)
		}
	})
	stalled := f.adopter(api)
	var err error
	if release {
		err = stalled.Release(t.Context(), key)
	} else {
		err = stalled.Adopt(t.Context(), key, Want{})
	}
	// Before its first write an adoption has not begun, and behind its last a release has ended.
	begins := !release && n == 1
	if stalls && !begins && err == nil {
		t.Errorf("%s: it was overtaken, and does not say so", name)
	}
	f.wantOne(name, pv)
	switch {
	case !stalls:
		f.must(err)
	case release, begins:
		f.wantAdopted(name, pv, name)
	case n == 2: // on Retain, as it says
		f.wantData(name, pv)
	default:
		front := "adopted-" + string(c.UID)
		f.await(name+" has nothing in front", func() bool { return f.pv(front) == nil })
		f.wantReleased(name, c, pv)
	}
	return stalls
}

// wantOne fails unless one PersistentVolume is of a volume.
func (f *fixture) wantOne(what string, pv *corev1.PersistentVolume) {
	f.t.Helper()
	a := f.adopter(f.api)
	f.await(what+" has one PersistentVolume", func() bool { // what is deleted takes a moment to go
		all, err := a.twinsOf(f.t.Context(), pv)
		return err == nil && len(all) == 1
	})
}

// testTwin: one that stalls for so long, and is killed then, leaves a PersistentVolume that
// nobody is bound to. The next release takes it.
func testTwin(t *testing.T, f *fixture) {
	_, pv := f.bound("data")
	other := f.adopter(f.api)
	f.must(other.Adopt(t.Context(), f.key("data"), Want{}))
	f.must(f.use(f.wantAdopted("adopted", pv, "data")))
	dead := false
	api := interceptor.NewClient(f.api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if obj.GetName() != pv.Name {
				return c.Create(ctx, obj, opts...)
			}
			f.must(errors.Join(other.Release(ctx, f.key("data")), other.Adopt(ctx, f.key("data"), Want{})))
			dead = true
			return errors.Join(c.Create(ctx, obj, opts...), csitest.ErrKilled)
		},
	})
	err := f.adopter(api).Release(t.Context(), f.key("data"))
	if !errors.Is(err, csitest.ErrKilled) || !dead {
		t.Fatal(err)
	}
	f.await("the twin is Released", func() bool { return f.pv(pv.Name).Status.Phase == corev1.VolumeReleased })
	twin, c := f.pv(pv.Name), f.claim("data")
	if !kept(twin) || twin.Spec.ClaimRef.UID == "" || twin.Spec.ClaimRef.UID == c.UID || c.Spec.VolumeName == pv.Name {
		t.Errorf("somebody may be bound to %+v; the claim is %+v", twin.Spec, c.Spec)
	}
	if err := other.Adopt(t.Context(), f.key("data"), Want{}); err == nil {
		t.Error("an adoption whose volume has a second PersistentVolume is done")
	}
	f.must(other.Release(t.Context(), f.key("data")))
	f.wantReleased("released", c, pv)
	f.wantOne("released", pv)
}

// testTwinChanged: one that stalls before it makes the PersistentVolume takes it back, also if
// Kubernetes writes to it at that moment.
func testTwinChanged(t *testing.T, f *fixture) {
	_, pv := f.bound("data")
	other := f.adopter(f.api)
	f.must(other.Adopt(t.Context(), f.key("data"), Want{}))
	f.must(f.use(f.wantAdopted("adopted", pv, "data")))
	overtaken, writes := false, 0
	api := interceptor.NewClient(f.api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if obj.GetName() == pv.Name {
				f.must(errors.Join(other.Release(ctx, f.key("data")), other.Adopt(ctx, f.key("data"), Want{})))
				overtaken = true
			}
			return c.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if overtaken && obj.GetName() == pv.Name && writes < 2 {
				writes++
				now := f.pv(pv.Name)
				base := now.DeepCopy()
				now.Annotations = map[string]string{"example.org/write": fmt.Sprint(writes)}
				f.must(f.api.Patch(ctx, now, client.MergeFrom(base)))
			}
			return c.Delete(ctx, obj, opts...)
		},
	})
	if err := f.adopter(api).Release(t.Context(), f.key("data")); err == nil || !overtaken || writes != 2 {
		t.Errorf("overtaken %v, %d writes: %v", overtaken, writes, err)
	}
	f.wantOne("taken back", pv)
	f.wantAdopted("taken back", pv, "data")
}

// testJournalDeleted: an adoption whose journal somebody deletes is not done, and can be released.
func testJournalDeleted(t *testing.T, f *fixture) {
	c, pv := f.bound("data")
	a := f.adopter(f.api)
	f.must(a.Adopt(t.Context(), f.key("data"), Want{}))
	j, err := a.load(t.Context(), f.key("data"))
	f.must(err)
	f.must(f.api.Delete(t.Context(), j.object))
	if err := a.Adopt(t.Context(), f.key("data"), Want{}); err == nil {
		t.Error("it is done, with a journal that leaves")
	}
	f.must(a.Release(t.Context(), f.key("data")))
	f.wantReleased("released", c, pv)
}
