//go:build e2e

package e2e

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
)

func init() {
	labDisasters["move by stream"] = labDisaster{false, streaming(moved), checker.LossNothing}
	labDisasters["node killed in a stream"] = labDisaster{false, streaming(nodeKilledComing(true)), checker.LossNode}
	labDisasters["source node cut off in a stream"] = labDisaster{false, streaming(streamCut(func(ctx context.Context, from, to string) error {
		err := k.Lab.Cut(context.WithoutCancel(ctx), from, to)
		time.Sleep(5 * time.Second)
		return errors.Join(err, k.Lab.Heal(ctx))
	})), checker.LossNothing}
	labDisasters["source node killed in a stream"] = labDisaster{false, streaming(streamCut(func(ctx context.Context, from, _ string) error {
		return off(ctx, from, func() error { return nil })
	})), checker.LossNode} // the others may have been there
	needCache = append(needCache, "source node cut off in a stream", "source node killed in a stream")
}

// streamCut moves a volume, and has something happen to the source node while the stream comes,
// under load. A stream that is over before it can have felt that proves nothing: the volume moves
// again.
func streamCut(happen func(ctx context.Context, from, to string) error) func(context.Context, *witness) error {
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
				return errors.Join(err, happen(ctx, from, w.node))
			}
			if err := w.rest(ctx); err != nil {
				return err
			}
		}
		return errors.New("no stream was under way when something was to happen to its source")
	}
}

// streams reports whether the volume's cache is coming by stream.
func (w *witness) streams(ctx context.Context) (bool, error) {
	record, err := k.CachedVolume(ctx, w.Volume)
	if err != nil {
		return false, err
	}
	cm, err := w.migration(ctx, ptr.Deref(record.Status.Generation, 0))
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
