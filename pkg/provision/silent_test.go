package provision

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/pkg/backend"
	"github.com/nearflash/nearflash/pkg/backend/backendtest"
	"github.com/nearflash/nearflash/pkg/keyagreement"
	"github.com/nearflash/nearflash/pkg/kube"
	"github.com/nearflash/nearflash/pkg/records"
	"github.com/nearflash/nearflash/pkg/volume"
)

// silent is a storage server that takes calls, and never answers.
type silent struct{ *backendtest.Server }

func (silent) Access(ctx context.Context, _ volume.ID) (backend.Access, error) {
	return backend.Access{}, never(ctx)
}

func (silent) AdmittedHosts(ctx context.Context) (map[string]volume.ID, error) {
	return nil, never(ctx)
}

func (silent) Cuts(ctx context.Context) ([]backend.Cut, error) { return nil, never(ctx) }

func never(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", volume.ErrUnavailable, ctx.Err())
}

// TestSilentServer: what nobody waits for, and others wait behind, does not wait for ever.
func TestSilentServer(t *testing.T) {
	scheme, err := kube.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		obj := records.NewObject("v", onSecond())
		obj.Status.OwnerNode, obj.Status.Publication = nodeA, v1alpha1.PublicationPublished
		released := obj.DeepCopy()
		released.Name, released.Status.Publication = "released", v1alpha1.PublicationReleased
		deleted := released.DeepCopy()
		deleted.Name, deleted.DeletionTimestamp = "deleted", new(metav1.Now())
		api := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(obj).WithObjects(obj, released, deleted).Build()
		key, err := keyagreement.New()
		if err != nil {
			t.Fatal(err)
		}
		svc := New(Config{
			Client: api, Servers: map[string]Server{"": {Backend: backendtest.New(gib)}, "second": {Backend: silent{backendtest.New(gib)}}},
			LoginKey: func(context.Context) (*keyagreement.Key, error) { return key, nil },
		})
		for what, call := range map[string]func(context.Context) error{
			"settle": func(ctx context.Context) error { return svc.Settle(ctx, "released") },
			"retire": func(ctx context.Context) error { return svc.Retire(ctx, "deleted") },
			"renew": func(ctx context.Context) error {
				_, err := svc.RenewAccount(ctx, "v")
				return err
			},
			"named": func(ctx context.Context) error {
				n, err := svc.NamedNodes(ctx, nil)
				if err == nil {
					_, err = n.Admitted(&v1alpha1.CachePool{})
				}
				return err
			},
			"sweep": func(ctx context.Context) error {
				return svc.SweepCuts(ctx, func(string) (func(), bool) { return func() {}, true })
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			began := time.Now()
			if err := call(ctx); !errors.Is(err, volume.ErrUnavailable) || time.Since(began) > serverPatience {
				t.Errorf("%s: %v after %s", what, err, time.Since(began))
			}
			cancel()
		}
	})
}
