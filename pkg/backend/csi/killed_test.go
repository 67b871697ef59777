package csi

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/csi/csitest"
	"github.com/nearflash/nearflash/pkg/volume"
)

// step is one order, and what must be so after it was repeated.
type step struct {
	name string
	act  func(ctx context.Context, b *Backend, id volume.ID) error
}

// life is all orders of a volume, in their order.
func (f *fixture) life() []step {
	export := func(node string, generation int64) func(context.Context, *Backend, volume.ID) error {
		return func(ctx context.Context, b *Backend, id volume.ID) error {
			_, err := b.Export(ctx, id, f.grant(node, generation))
			return err
		}
	}
	return []step{
		{"create", func(ctx context.Context, b *Backend, id volume.ID) error { return b.Create(ctx, id, f.request(mib)) }},
		{"admit a", export("a", 1)},
		{"admit a again", export("a", 1)},
		{"expand", func(ctx context.Context, b *Backend, id volume.ID) error {
			_, err := b.Expand(ctx, id, 2*mib)
			return err
		}},
		{"shut a out", shutOut},
		{"admit b", export("b", 2)},
		{"shut b out", shutOut},
		{"delete", func(ctx context.Context, b *Backend, id volume.ID) error { return b.Delete(ctx, id) }},
	}
}

// shutOut ends every admission, as a controller does.
func shutOut(ctx context.Context, b *Backend, id volume.ID) error {
	access, err := b.Access(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	for _, e := range access.Exports {
		err = errors.Join(err, b.Unexport(ctx, id, e))
	}
	return err
}

// again repeats an order for a while, as a controller does: the stand-in writes to the same
// objects.
func again(ctx context.Context, act func(ctx context.Context) error) error {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if err := act(ctx); !errors.Is(err, volume.ErrBusy) || time.Since(began) > time.Minute {
			return err
		}
	}
}

// walk walks a volume through its life. The process dies once, at the n-th write of one of the
// steps; dies is false if that step has fewer, and the walk ends there. after, when set, comes
// behind the death, in place of the rest.
func (f *fixture) walk(t *testing.T, id volume.ID, at, n int, done bool, after func()) (dies bool) {
	for i, s := range f.life() {
		if i == at {
			m := csitest.NewMortal(f.api, n, done)
			err := s.act(t.Context(), f.backend(m, 20*time.Second), id)
			if m.Dead() != errors.Is(err, csitest.ErrKilled) {
				t.Errorf("%s, killed at write %d: %v", s.name, n, err)
			}
			if !m.Dead() {
				return false
			}
			if after != nil {
				after()
				return true
			}
		}
		if s.name != "delete" && slices.Contains(f.Deleted(), string(id)) {
			t.Errorf("%s, killed at write %d: data are deleted, and nobody has asked for it", s.name, n)
		}
		if err := again(t.Context(), func(ctx context.Context) error { return s.act(ctx, f.b, id) }); err != nil {
			t.Errorf("%s after a kill at write %d of step %d: %v", s.name, n, at, err)
		}
	}
	return true
}

// kills is csitest.Kills, of a volume each.
func (f *fixture) kills(steps int, walk func(id volume.ID, at, n int, done bool) (dies bool)) {
	csitest.Kills(steps, func(at, n int, done bool) bool {
		return walk(volume.ID(fmt.Sprintf("k%d-%d-%v", at, n, done)), at, n, done)
	})
}

// testKilled: killed between any two writes, the same order again ends right.
func testKilled(t *testing.T, f *fixture) {
	var deaths atomic.Int64
	f.kills(len(f.life()), func(id volume.ID, at, n int, done bool) bool {
		if !f.walk(t, id, at, n, done, nil) {
			return false
		}
		deaths.Add(1)
		f.await(t, "the data are deleted, of "+string(id), func() bool { return slices.Contains(f.Deleted(), string(id)) })
		return true
	})
	if n := deaths.Load(); n < 24 {
		t.Errorf("%d deaths: there are more writes than that", n)
	}
}

// testKilledThenMoved: killed between any two writes of an admission, or of its end, the next
// one admits another node, once nobody else is.
func testKilledThenMoved(t *testing.T, f *fixture) {
	f.kills(len(f.life())-1, func(id volume.ID, at, n int, done bool) bool {
		if at == 0 {
			return false
		}
		return f.walk(t, id, at, n, done, func() {
			err := shutOut(t.Context(), f.b, id)
			if va, vaErr := f.b.attachment(t.Context(), id); va != nil || vaErr != nil || err != nil {
				t.Errorf("%s was shut out (%v), and has %v (%v)", id, err, va, vaErr)
			}
			err = again(t.Context(), func(ctx context.Context) error {
				_, err := f.b.Export(ctx, id, f.grant("b", 5))
				return err
			})
			if err != nil {
				t.Error(err)
			}
			if err := errors.Join(shutOut(t.Context(), f.b, id), f.b.Delete(t.Context(), id)); err != nil {
				t.Error(err)
			}
		})
	})
}

// testStalled: a controller that stalls before it makes an attachment, while others end that
// admission and admit another node, attaches nobody.
func testStalled(t *testing.T, f *fixture) {
	f.make(t, "v")
	for _, moved := range []bool{true, false} {
		access, err := f.b.Access(t.Context(), "v")
		must(t, err)
		var once sync.Once
		stalls := interceptor.NewClient(f.api, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if _, ok := obj.(*storagev1.VolumeAttachment); ok {
					once.Do(func() {
						must(t, shutOut(t.Context(), f.b, "v"))
						if moved {
							_, err := f.b.Export(t.Context(), "v", f.grant("b", access.Generation+2))
							must(t, err)
						}
					})
				}
				return c.Create(ctx, obj, opts...)
			},
		})
		_, err = f.backend(stalls, 20*time.Second).Export(t.Context(), "v", f.grant("a", access.Generation+1))
		if !errors.Is(err, volume.ErrBusy) && !errors.Is(err, volume.ErrInUse) {
			t.Fatalf("the one that stalled: %v", err)
		}
		for _, e := range f.exports(t, "v") {
			if e.Initiator == f.Node("a") && !f.leaving(t) {
				t.Errorf("moved %v: admitted is %+v", moved, e)
			}
		}
		must(t, shutOut(t.Context(), f.b, "v"))
	}
}

// leaving reports whether the VolumeAttachment is on its way out.
func (f *fixture) leaving(t *testing.T) bool {
	va, err := f.b.attachment(t.Context(), "v")
	must(t, err)
	return va == nil || va.DeletionTimestamp != nil
}

// testRace: several controllers admit and shut out at once, and die all the time. The stand-in
// sees no volume on two nodes. It goes on until some were admitted, however slow the machine.
func testRace(t *testing.T, f *fixture) {
	f.make(t, "v")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var admitted atomic.Int64
	for i, node := range []string{"a", "b", "b"} {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for ; ctx.Err() == nil && admitted.Load() < 3; time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond)))) {
				b := f.backend(csitest.NewMortal(f.api, 1+random.IntN(60), random.IntN(2) == 0), time.Second)
				access, err := b.Access(ctx, "v")
				if err != nil {
					continue
				}
				for _, e := range access.Exports {
					if e.Initiator != f.Node(node) || random.IntN(2) == 0 {
						_ = b.Unexport(ctx, "v", e)
					}
				}
				if _, err := b.Export(ctx, "v", backend.Grant{Node: f.Node(node), Generation: access.Generation + 1}); err == nil {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n < 3 {
		t.Errorf("%d admissions", n)
	}
	must(t, shutOut(t.Context(), f.b, "v"))
	if got := f.Attached(); len(got) > 0 {
		t.Errorf("attached: %v", got)
	}
}
