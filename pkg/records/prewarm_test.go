package records_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// testPrewarms: a node sees what is asked of it and nothing else, and is told when that
// changes.
func testPrewarms(t *testing.T, cfg *rest.Config) {
	f := newFixture(t, cfg, "prewarm-this")
	other := newFixture(t, cfg, "prewarm-that")
	scheme, err := kube.NewScheme()
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	seen, err := records.NewPrewarms(ctx, cfg, scheme, "node-warm")
	must(t, err)
	if list, err := seen.List(ctx); err != nil || len(list) > 0 {
		t.Errorf("before the watch: %v, %v", list, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := seen.Run(ctx); err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	defer wg.Wait()
	defer cancel()
	changed := seen.Changed()
	ask := func(f *fixture, node, request string) {
		t.Helper()
		obj, err := records.Load(ctx, f.api, f.id)
		must(t, err)
		base := obj.DeepCopy()
		obj.Spec.PrewarmNode, obj.Spec.PrewarmRequest = node, request
		must(t, f.api.Patch(ctx, obj, client.MergeFrom(base)))
	}
	want := func(request string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			list, err := seen.List(ctx)
			must(t, err)
			i := slices.IndexFunc(list, func(v volume.Volume) bool { return v.ID == f.id })
			switch {
			case slices.ContainsFunc(list, func(v volume.Volume) bool { return v.ID == other.id }):
				t.Fatal("a request of another node is seen")
			case i < 0 && request == "", i >= 0 && *list[i].Prewarm == volume.Prewarm{Node: "node-warm", Request: request}:
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("request %q is not seen: %v", request, list)
			}
		}
	}
	ask(other, "node-cold", "r1")
	for _, request := range []string{"r1", "r2"} {
		ask(f, "node-warm", request)
		want(request)
	}
	ask(f, "", "")
	want("")
}
