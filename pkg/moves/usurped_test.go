package moves_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/moves"
)

// testUsurped: another node has made the object of a move before. The admission policy does not let
// this one remove it; the controller does (pkg/reconcile), and the move begins then.
func testUsurped(t *testing.T, f *fixture) {
	f.source()
	obj := &v1alpha1.CacheMigration{
		ObjectMeta: metav1.ObjectMeta{Name: string(f.id) + "-2"},
		Spec:       v1alpha1.CacheMigrationSpec{VolumeName: string(f.id), VolumeUID: f.fence.UID, Generation: 2, DestinationNode: "node-c"},
	}
	must(t, f.api.Create(t.Context(), obj))
	forbidden := make(chan struct{}, 100)
	f.b = moves.NewDestination(interceptor.NewClient(f.api, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if m, ok := o.(*v1alpha1.CacheMigration); ok && m.Spec.DestinationNode != f.nodeB {
				forbidden <- struct{}{}
				return apierrors.NewForbidden(schema.GroupResource{Resource: "cachemigrations"}, o.GetName(), nil)
			}
			return c.Delete(ctx, o, opts...)
		},
	}), f.events, time.Now, testPort, testStreamPort)
	go func() {
		<-forbidden
		if err := f.api.Delete(context.WithoutCancel(t.Context()), obj); err != nil {
			t.Errorf("the controller: %v", err)
		}
	}()
	m, lease, err := f.b.Begin(t.Context(), f.request())
	must(t, err)
	if m.UID == string(obj.UID) || lease == nil {
		t.Errorf("move %+v, lease %+v", m, lease)
	}
	must(t, f.b.Finish(t.Context(), m, "Completed", ""))
}
