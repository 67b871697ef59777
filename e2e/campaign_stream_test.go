//go:build e2e

package e2e

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
)

func init() {
	for name, d := range map[string]labDisaster{
		"move by stream":                  {false, moved, checker.LossNothing},
		"node killed in a stream":         {false, nodeKilledComing(true), checker.LossNode},
		"source node cut off in a stream": {false, inStream(sourceCutOff), checker.LossNothing},
		"source node killed in a stream":  {false, inStream(sourceKilled), checker.LossNode}, // the others may have been there
		"node plugin killed in a stream":  {false, inStream(pluginKilled), checker.LossNothing},
		"moved again in a stream":         {false, inStream(movedAgain), checker.LossNothing},
		"mode changed in a stream":        {false, inStream(modeChanged), checker.LossNothing},
		"expanded in a stream":            {false, inStream(expanded), checker.LossNothing},
		"dirty limit changed in a stream": {false, inStream(limited), checker.LossNothing},
	} {
		if name != "move by stream" && name != "node killed in a stream" {
			needCache = append(needCache, name)
		}
		d.do = streaming(d.do)
		labDisasters[name] = d
	}
}

// inStream moves a volume, and has something happen while the stream comes, under load. A stream
// that is over before it can have felt that proves nothing: the volume moves again.
func inStream(happen func(ctx context.Context, w *witness, from string) error) func(context.Context, *witness) error {
	return func(ctx context.Context, w *witness) error {
		for range 5 {
			if err := w.renewed(ctx); err != nil {
				return err
			}
			from := w.node
			if err := moved(ctx, w); err != nil {
				return err
			}
			w.begin(ctx)
			felt, err := w.streams(ctx)
			if err != nil || felt {
				return errors.Join(err, happen(ctx, w, from))
			}
			if err := w.rest(ctx); err != nil {
				return err
			}
		}
		return errors.New("no stream was under way when something was to happen to it")
	}
}

// cutOff is how long a source node is away: who receives gives its connection up (pkg/cachestream,
// goneAfter), and the stream goes on by another one, or from the storage server.
const cutOff = 20 * time.Second

func sourceCutOff(ctx context.Context, w *witness, from string) error {
	err := k.Lab.Cut(context.WithoutCancel(ctx), from, w.node)
	select {
	case <-ctx.Done():
	case <-time.After(cutOff):
	}
	if err := errors.Join(err, k.Lab.Heal(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	return w.moveEnded(ctx)
}

// moveEnded waits until the move is over that brought the volume to where it is.
func (w *witness) moveEnded(ctx context.Context) error {
	generation, err := w.generation(ctx)
	if err != nil {
		return err
	}
	_, err = w.awaitMoveEnded(ctx, generation)
	return err
}

// generation is that of the volume's ownership.
func (w *witness) generation(ctx context.Context) (int64, error) {
	record, err := k.CachedVolume(ctx, w.Volume)
	if err != nil {
		return 0, err
	}
	return ptr.Deref(record.Status.Generation, 0), nil
}

// expanded has the volume grow by a half of what a new one has.
func expanded(ctx context.Context, w *witness, _ string) error {
	claim := &corev1.PersistentVolumeClaim{}
	if err := k.API.Get(ctx, client.ObjectKey{Namespace: w.space.name, Name: w.claim}, claim); err != nil {
		return err
	}
	size := claim.Spec.Resources.Requests.Storage().DeepCopy()
	size.Add(resource.MustParse("32Mi"))
	if err := k.Expand(ctx, w.space.name, w.claim, w.pod, size.String(), late); err != nil {
		return err
	}
	return w.moveEnded(ctx)
}

func sourceKilled(ctx context.Context, _ *witness, from string) error {
	return off(ctx, from, func() error { return nil })
}

// pluginKilled kills the plugin that sends, the one that receives, or both.
func pluginKilled(ctx context.Context, w *witness, from string) error {
	victims := [][]string{{from}, {w.node}, {from, w.node}}[w.r.IntN(3)]
	for _, machine := range victims {
		if err := kill(ctx, machine, "nearflash-node"); err != nil {
			return err
		}
	}
	return recovered(ctx)
}

// movedAgain: the volume goes back before everything has come, and what has come goes with it.
func movedAgain(ctx context.Context, w *witness, _ string) error {
	if err := moved(ctx, w); err != nil {
		return err
	}
	return w.loaded(ctx)
}

// modeChanged asks for the other mode, which comes when the stream has ended, and for the first
// one again.
func modeChanged(ctx context.Context, w *witness, _ string) error {
	other := checker.Writeback
	if w.mode == other {
		other = checker.Writethrough
	}
	w.h.SetMode(checker.Writeback) // the one or the other is
	for _, mode := range []checker.Mode{other, w.mode} {
		if err := w.change(ctx, func(s *v1alpha1.CachedVolumeSpec) {
			s.CacheMode, s.AcceptDirtyLoss = modeOf(mode), v1alpha1.DirtyLossNodeLoss
		}); err != nil {
			return err
		}
	}
	if err := w.rest(ctx); err != nil {
		return err
	}
	if w.mode == checker.Writethrough {
		w.h.Drained()
		w.h.SetMode(w.mode)
	}
	return w.loaded(ctx)
}

// limited gives the volume a dirty limit, and takes it away again.
func limited(ctx context.Context, w *witness, _ string) error {
	for _, limit := range []string{"16Mi", ""} {
		if err := w.change(ctx, func(s *v1alpha1.CachedVolumeSpec) { s.MaxDirtyBytes = limit }); err != nil {
			return err
		}
	}
	return nil
}

// streams reports whether the volume's cache is coming by stream.
func (w *witness) streams(ctx context.Context) (bool, error) {
	generation, err := w.generation(ctx)
	if err != nil {
		return false, err
	}
	cm, err := w.migration(ctx, generation)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return cm.Spec.Method == v1alpha1.MigrationStream && cm.Status.Outcome == "", err
}

// streaming has the caches of a volume's moves follow it by stream meanwhile.
func streaming(do func(context.Context, *witness) error) func(context.Context, *witness) error {
	ask := func(ctx context.Context, w *witness, method string) error {
		obj := &v1alpha1.CachedVolume{}
		obj.Name = w.Handle
		return k.API.Patch(ctx, obj, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"warmStart":{"method":"`+method+`"}}}`)))
	}
	return func(ctx context.Context, w *witness) error {
		if err := ask(ctx, w, "stream"); err != nil {
			return err
		}
		return errors.Join(do(ctx, w), ask(ctx, w, "auto"))
	}
}
