//go:build e2e

package e2e

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/checker"
)

func init() {
	labDisasters["move by stream"] = labDisaster{false, streaming(moved), checker.LossNothing}
	labDisasters["node killed in a stream"] = labDisaster{false, streaming(nodeKilledComing(true)), checker.LossNode}
	labDisasters["source node cut off in a stream"] = labDisaster{false, streaming(streamCutOff), checker.LossNothing}
}

// streamCutOff moves a volume, and cuts its nodes apart while the stream comes, under load.
func streamCutOff(ctx context.Context, w *witness) error {
	from := w.node
	if err := moved(ctx, w); err != nil {
		return err
	}
	w.begin(ctx)
	err := k.Lab.Cut(context.WithoutCancel(ctx), from, w.node)
	time.Sleep(5 * time.Second)
	return errors.Join(err, k.Lab.Heal(ctx))
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
