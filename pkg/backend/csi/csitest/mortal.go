package csitest

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// ErrKilled is what a Mortal's process hears from its death on.
var ErrKilled = errors.New("killed")

// Mortal is the client of a process that dies at one of its writes. Whoever is dead neither
// reads nor writes.
type Mortal struct {
	client.WithWatch
	left atomic.Int64
	done bool
	dead atomic.Bool
}

// NewMortal returns a client that dies at its n-th write: before it, or, with done, right
// behind it.
func NewMortal(api client.WithWatch, n int, done bool) *Mortal {
	m := &Mortal{done: done}
	m.left.Store(int64(n))
	m.WithWatch = interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return m.read(func() error { return c.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return m.read(func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return m.write(func() error { return c.Create(ctx, obj, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return m.write(func() error { return c.Delete(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return m.write(func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return m.write(func() error { return c.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
	})
	return m
}

// Dead reports whether the process has died.
func (m *Mortal) Dead() bool { return m.dead.Load() }

func (m *Mortal) read(act func() error) error {
	if m.dead.Load() {
		return ErrKilled
	}
	return act()
}

func (m *Mortal) write(act func() error) error {
	if m.dead.Load() {
		return ErrKilled
	}
	last := m.left.Add(-1) == 0
	if last && !m.done {
		m.dead.Store(true)
		return ErrKilled
	}
	err := act()
	if last {
		m.dead.Store(true)
		return ErrKilled
	}
	return err
}

// Kills calls walk with a kill behind every write of every step, and before the first, until a step has
// fewer: several at a time, since most of it is waiting. With MATRIX=whole it does so before each,
// which differs from behind the one before by what others did in between.
func Kills(steps int, walk func(at, n int, done bool) (dies bool)) {
	var all errgroup.Group
	all.SetLimit(6)
	whole := os.Getenv("MATRIX") == "whole"
	for at := range steps {
		for _, done := range []bool{false, true} {
			all.Go(func() error {
				for n := 1; (n == 1 || done || whole) && walk(at, n, done); n++ {
				}
				return nil
			})
		}
	}
	_ = all.Wait()
}
