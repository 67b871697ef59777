package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/keylock"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/volume"
)

// renewals fails for volumes as it is told.
type renewals struct {
	Volumes
	errs map[volume.ID]error
	wait map[volume.ID]bool
}

func (r renewals) RenewAccount(_ context.Context, id volume.ID, _ string) (bool, error) {
	return r.wait[id], r.errs[id]
}

// TestAccountPause: one volume whose storage server is away, or refuses, does not change when the
// node's other volumes are looked at again. Of a result with an error controller-runtime takes the
// error alone.
func TestAccountPause(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.CachePool{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: v1alpha1.CachePoolStatus{LoginPublicKey: "k"}}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).WithIndex(&v1alpha1.CachedVolume{}, ownerIndex, func(o client.Object) []string {
		return []string{o.(*v1alpha1.CachedVolume).Status.OwnerNode}
	})
	for _, id := range []string{"a", "b"} {
		builder.WithObjects(&v1alpha1.CachedVolume{ObjectMeta: metav1.ObjectMeta{Name: id}, Status: v1alpha1.CachedVolumeStatus{OwnerNode: "n"}})
	}
	api := builder.Build()
	for name, tc := range map[string]struct {
		err  error
		wait bool
		want time.Duration
	}{
		"nothing to do":       {},
		"waits":               {wait: true, want: accountPause},
		"server away":         {err: volume.ErrUnavailable, want: accountPause},
		"away, another waits": {err: volume.ErrUnavailable, wait: true, want: accountPause},
		"server refuses":      {err: volume.ErrFenced, want: accountPause},
		"busy":                {err: volume.ErrBusy, wait: true, want: lockedRetry},
	} {
		t.Run(name, func(t *testing.T) {
			var failure error
			if tc.err != nil {
				failure = fmt.Errorf("%w: because", tc.err)
			}
			a := &accounts{
				Config:   Config{Client: api, Locks: &keylock.Set{}, Volumes: renewals{errs: map[volume.ID]error{"a": failure}, wait: map[volume.ID]bool{"b": tc.wait}}},
				informed: api, known: map[string]string{},
			}
			got, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "n"}})
			if err != nil || got.RequeueAfter != tc.want {
				t.Errorf("again after %s, %v; want %s", got.RequeueAfter, err, tc.want)
			}
		})
	}
}
