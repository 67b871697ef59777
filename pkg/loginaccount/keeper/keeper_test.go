package keeper

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/nearflash/nearflash/pkg/volume"
)

const namespace = "ns"

func read(t *testing.T, api client.Client) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: SecretName}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// TestEnsure: the key is made once, and is the same from then on for every controller, also when
// two make it at once; it is in no log.
func TestEnsure(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	api := fake.NewClientBuilder().Build()
	k := &Keeper{Client: api, Namespace: namespace}
	if _, err := k.Key(ctx); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("before there is one: %v", err)
	}
	if err := k.ensure(ctx); err != nil {
		t.Fatal(err)
	}
	first := read(t, api)
	late := &Keeper{Namespace: namespace, Client: interceptor.NewClient(api, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewNotFound(corev1.Resource("secrets"), SecretName) // asked before the other one made it
		},
	})}
	for _, each := range []*Keeper{k, late} {
		if err := each.ensure(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(first, read(t, api)); diff != "" {
		t.Error("the key has changed")
	}
	key, err := k.Key(ctx)
	if err != nil || key.Text() != string(first.Data[SecretKey]) {
		t.Fatalf("the key is not the Secret's: %v", err)
	}
	log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if !strings.Contains(log, key.Public()) || strings.Contains(log, key.Text()) {
		t.Errorf("log:\n%s", log)
	}
}

// TestRotation: without the Secret there is another key, also for a process that had the old one.
func TestRotation(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	k := &Keeper{Client: api, Namespace: namespace}
	var halves []string
	for range 2 {
		if err := k.ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		key, err := k.Key(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		halves = append(halves, key.Public())
		if err := api.Delete(t.Context(), read(t, api)); err != nil {
			t.Fatal(err)
		}
	}
	if halves[0] == halves[1] {
		t.Error("the same key after the Secret was deleted")
	}
}

// TestForeign: what somebody else has put there stays; if it is no key, the error does not show
// it.
func TestForeign(t *testing.T) {
	api := fake.NewClientBuilder().Build()
	const text = "something-secret"
	secret := &corev1.Secret{Data: map[string][]byte{SecretKey: []byte(text)}}
	secret.Namespace, secret.Name = namespace, SecretName
	if err := api.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	k := &Keeper{Client: api, Namespace: namespace}
	if err := k.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(secret.Data, read(t, api).Data); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if _, err := k.Key(t.Context()); !errors.Is(err, volume.ErrUnavailable) || strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "delete the Secret") {
		t.Errorf("got %v", err)
	}
}

// TestUnreadable: that the Secret cannot be read says nothing of whether it is there.
func TestUnreadable(t *testing.T) {
	away := errors.New("the API server is away")
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return away
		},
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			t.Error("made without knowing")
			return nil
		},
	})
	k := &Keeper{Client: api, Namespace: namespace}
	_, keyErr := k.Key(t.Context())
	if err := k.ensure(t.Context()); !errors.Is(err, away) || !errors.Is(keyErr, volume.ErrUnavailable) {
		t.Errorf("got %v, %v", err, keyErr)
	}
}
